package paddock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/bridge"
)

// Lease is one acquisition of a key. Its methods are safe for concurrent use.
//
// A lease ends once: by Release, by loss, or by its Locker's Close. From then on Err is not nil and Context is done.
type Lease struct {
	locker any
	key    string
	fence  fencing.Fence
	holder bridge.Holder
	outer  *Lease // the innermost lease that the acquiring context descends from

	ctx    context.Context
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	ttl     time.Duration
	end     time.Time      // of its own window; zero: only the session's counts
	session *bridge.Window // shared with other leases, or nil
	timer   *time.Timer    // looks at the window when it may have closed
	err     error          // why the lease ended
}

// Key is the key that the lease is on.
func (l *Lease) Key() string { return l.key }

// Owner is a UUID, fresh for every acquisition.
func (l *Lease) Owner() string { return l.fence.Owner }

// Token is the fencing token of the acquisition; zero when Guarantees.Fencing is none.
func (l *Lease) Token() fencing.Token { return l.fence.Token }

// Fence is what the holder shows to a guard.
func (l *Lease) Fence() fencing.Fence { return l.fence }

// TTL is how long the server said the lease lives after its last renewal: what was asked for, after rounding and the
// server's floor.
func (l *Lease) TTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// Deadline is the end of the trust window as known now; every answered renewal moves it, until the lease has ended.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline()
}

func (l *Lease) deadline() time.Time {
	if l.session == nil {
		return l.end
	}
	if s := l.session.End(); l.end.IsZero() || s.Before(l.end) {
		return s
	}
	return l.end
}

// Err is nil while the lease is held, and then says how it ended: ErrReleased, ErrLost or ErrClosed. It looks at both
// clocks, so it tells a process that was paused, or a machine that was suspended, at once. Call it before each step that
// cannot be undone; between the call and the step only a guard can help.
func (l *Lease) Err() error {
	l.check()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Context ends with the lease; its context.Cause is then what Err returns. It carries the values of the context that the
// lease was acquired with, and the fence (fencing.FromContext). It has no Deadline: that moves with each renewal.
func (l *Lease) Context() context.Context { return l.ctx }

// Extend sets the TTL, now and for all later renewals, and waits for the server's answer. A shorter TTL lowers Deadline
// before anything is sent, since the answer may be lost. An error is ErrLost, ErrReleased or ErrClosed when the lease has
// ended, ErrInvalid for a TTL below Guarantees.MinTTL, ctx's error, or ErrUnavailable; after the latter two the lease goes
// on, with whichever of the two TTLs is the safer.
func (l *Lease) Extend(ctx context.Context, ttl time.Duration) error {
	if err := l.Err(); err != nil {
		return err
	}
	return l.holder.Extend(ctx, ttl)
}

// Release gives the key back, to nobody's harm but this acquisition's, however late or often it is called.
//
// The lease's context ends before anything is sent. When ctx has ended already, Release returns its error at once and goes
// on in the background, and so it does, with ErrUnavailable, when the backend cannot be reached. A lease that was lost
// before is ErrLost. A later call waits for the first and returns what that came to.
func (l *Lease) Release(ctx context.Context) error {
	l.check()
	if ctx.Err() == nil && slices.Contains(slices.Collect(leases(ctx)), l) {
		ctx = context.WithoutCancel(ctx) // it would end with the lease, which is now
	}
	if was := l.finish(ErrReleased); errors.Is(was, ErrLost) {
		return was
	}
	return l.holder.Release(ctx)
}

// finish ends the lease with err, unless it has ended before: then it returns how.
func (l *Lease) finish(err error) (was error) {
	l.mu.Lock()
	if was = l.err; was != nil {
		l.mu.Unlock()
		return was
	}
	l.err = err
	l.end, l.session = l.deadline(), nil // which may go on, and move
	l.timer.Stop()
	l.mu.Unlock()
	l.cancel(err)
	return nil
}

var errWindow = errors.New("its trust window has closed")

func (l *Lease) lose(reason error) {
	err := fmt.Errorf("%w: key %q: %w", ErrLost, l.key, reason)
	if l.finish(err) == nil {
		l.holder.Lost(err)
	}
}

// check ends the lease if its window has closed, on either clock.
func (l *Lease) check() {
	l.mu.Lock()
	over := l.err == nil && bridge.Past(time.Now(), l.deadline())
	l.mu.Unlock()
	if over {
		l.lose(errWindow)
	}
}

// arm sets the timer to the end of the window. Renewals do not touch it: it looks again when it fires.
func (l *Lease) arm() {
	if d := time.Until(l.deadline()); l.timer == nil {
		l.timer = time.AfterFunc(d, l.tick)
	} else {
		l.timer.Reset(d)
	}
}

func (l *Lease) tick() {
	l.check()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.arm()
	}
}

type leaseKey struct{}

// within returns a context that descends from l.
func (l *Lease) within(ctx context.Context) context.Context {
	return fencing.NewContext(context.WithValue(ctx, leaseKey{}, l), l.fence)
}

// leases are those that ctx descends from, innermost first.
func leases(ctx context.Context) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		l, _ := ctx.Value(leaseKey{}).(*Lease)
		for ; l != nil && yield(l); l = l.outer {
		}
	}
}

func init() {
	bridge.NewLease = func(ctx context.Context, s bridge.Spec) bridge.Lease {
		l := &Lease{locker: s.Locker, key: s.Key, fence: s.Fence, ttl: s.TTL, end: s.End, session: s.Session, holder: s.Holder}
		l.outer, _ = ctx.Value(leaseKey{}).(*Lease)
		l.ctx, l.cancel = context.WithCancelCause(l.within(context.WithoutCancel(ctx)))
		l.mu.Lock()
		defer l.mu.Unlock()
		l.arm()
		return (*kept)(l)
	}
	bridge.Holds = func(ctx context.Context, locker any, key string) bool {
		for l := range leases(ctx) {
			if l.locker == locker && l.key == key && l.Err() == nil {
				return true
			}
		}
		return false
	}
}

// kept is a Lease as its Keeper sees it.
type kept Lease

func (k *kept) Public() any         { return (*Lease)(k) }
func (k *kept) Err() error          { return (*Lease)(k).Err() }
func (k *kept) Deadline() time.Time { return (*Lease)(k).Deadline() }
func (k *kept) Lose(reason error)   { (*Lease)(k).lose(reason) }
func (k *kept) Close()              { (*Lease)(k).finish(ErrClosed) }

func (k *kept) Raise(ttl time.Duration, end time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over() {
		return
	}
	k.ttl = ttl
	if end.After(k.end) {
		k.end = end
	}
}

func (k *kept) Lower(end time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil && (k.end.IsZero() || end.Before(k.end)) {
		k.end = end
		(*Lease)(k).arm()
	}
}

func (k *kept) Move(session *bridge.Window, ttl time.Duration, end time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over() {
		return
	}
	k.session, k.ttl, k.end = session, ttl, end
	(*Lease)(k).arm()
}

// over reports whether the lease has ended or is about to: its window has closed, though nobody has looked. What is over
// stays over, whatever an answer that came too late says.
func (k *kept) over() bool {
	return k.err != nil || bridge.Past(time.Now(), (*Lease)(k).deadline())
}
