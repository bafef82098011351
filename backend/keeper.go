package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/bridge"
)

// KeeperOptions of NewKeeper; nil is the zero KeeperOptions.
type KeeperOptions struct {
	// BatchSize is the most leases that one Renew is given. Defaults to 256.
	BatchSize int
	// Margin is what the trust window of a lease is shorter than its TTL by: for clocks that run at different rates, and for what
	// the server does late. Defaults to TTL/100 + 5 ms.
	Margin func(ttl time.Duration) time.Duration
	// CloseWait is how long Close waits for clean-up. Defaults to 5 s.
	CloseWait time.Duration
	// Inline says that every call of the backend returns soon after its context has ended. It is then made on the
	// goroutine of whoever waits for it, which is faster, and is never abandoned.
	Inline bool
	// Deadlines says the same of a context whose deadline has passed, and not of one that was cancelled: calls for a caller whose
	// context cannot end are then made inline.
	Deadlines bool
	// Resends is how soon the backend's client may send a request a second time without being told to, where Try cannot see whether
	// it has and set Attempt.Slow itself. A try that took longer, or that Try has marked, is undone even when it was refused, since
	// its twin may still be under way; so is, by Release, one that was granted. Defaults to never.
	Resends time.Duration
	// Watch is called when a key first has a waiter in this process, before its second try, and stop when it has none any
	// more. Between the two the backend calls Wake when it learns that the key may be free. Neither may block. Defaults
	// to waiters that rely on their timers.
	Watch func(key string) (stop func())
	// Observer defaults to none.
	Observer *paddock.Observer
}

// Keeper is a paddock.Locker over a Backend. All methods may be called concurrently.
type Keeper struct {
	g    paddock.Guarantees
	b    Backend
	o    KeeperOptions
	obs  paddock.Observer
	note string
	done chan struct{}

	mu        sync.Mutex
	closed    bool
	refs      int                                   // what has to be over before done: acquisitions, calls, leases, clean-ups
	acquiring map[*context.CancelCauseFunc]struct{} // acquisitions in flight
	leases    map[*held]struct{}                    // granted, and not known to be gone from the server
	shared    bool                                  // there was a session: what is left behind may outlive its TTL
	lines     map[string]*line
	idle      []*caller

	plan  schedule
	clean cleanup

	settled  chan struct{} // closed when a closed Keeper has no acquisition in flight and nothing to clean up
	shut     chan struct{} // closed when Close has come to closeErr
	closeErr error
}

// NewKeeper returns a Keeper that makes b's calls and promises g. It panics when g makes no sense, which is its author's
// mistake: without a Backend name, with a negative MinTTL or TTLStep. TTLStep defaults to 1 ms, MinTTL to TTLStep.
func NewKeeper(g paddock.Guarantees, b Backend, opts *KeeperOptions) *Keeper {
	if opts == nil {
		opts = &KeeperOptions{}
	}
	k := &Keeper{
		g: g, b: b, o: *opts, note: processNote(),
		done: make(chan struct{}), settled: make(chan struct{}), shut: make(chan struct{}),
		acquiring: map[*context.CancelCauseFunc]struct{}{},
		leases:    map[*held]struct{}{},
		lines:     map[string]*line{},
	}
	if k.g.TTLStep == 0 {
		k.g.TTLStep = time.Millisecond
	}
	if k.g.MinTTL == 0 {
		k.g.MinTTL = k.g.TTLStep
	}
	if g.Backend == "" || k.g.TTLStep < 0 || k.g.MinTTL < k.g.TTLStep {
		panic(fmt.Sprintf("backend: NewKeeper: guarantees without a name, or with a MinTTL below TTLStep: %+v", g))
	}
	if k.o.BatchSize <= 0 {
		k.o.BatchSize = 256
	}
	if k.o.Margin == nil {
		k.o.Margin = func(ttl time.Duration) time.Duration { return ttl/100 + 5*time.Millisecond }
	}
	if k.o.CloseWait <= 0 {
		k.o.CloseWait = 5 * time.Second
	}
	if k.o.Observer != nil {
		k.obs = *k.o.Observer
	}
	k.plan.keeper, k.clean.keeper = k, k
	return k
}

// Guarantees is that of paddock.Locker.
func (k *Keeper) Guarantees() paddock.Guarantees { return k.g }

// Done is closed when the Keeper is closed and has no use for its backend any more: the last holder has released or its
// lease has run out on the server, and no call is under way.
func (k *Keeper) Done() <-chan struct{} { return k.done }

// Acquire is that of paddock.Locker.
func (k *Keeper) Acquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	r, err := k.check(key, opts)
	if err != nil {
		return nil, err
	}
	if bridge.Holds(ctx, k, key) {
		return nil, fmt.Errorf("%w: acquire %q: ctx descends from this Locker's lease on it, so it would wait for itself",
			paddock.ErrInvalid, key)
	}
	actx, leave, err := k.enter(ctx, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	w := &wait{keeper: k, request: r, outer: ctx, begun: time.Now()}
	lease, err := w.acquire(actx)
	if w.contended && k.obs.Waited != nil {
		k.obs.Waited(key, time.Since(w.begun), err)
	}
	return k.acquired(lease, w.begun), err
}

// TryAcquire is that of paddock.Locker.
func (k *Keeper) TryAcquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	r, err := k.check(key, opts)
	if err != nil {
		return nil, err
	}
	actx, leave, err := k.enter(ctx, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	begun := time.Now()
	lease, _, err := k.try(actx, ctx, r, false)
	var held *paddock.HeldError
	switch {
	case err == nil, isPermanent(err):
	case errors.As(err, &held):
		if k.obs.Contended != nil {
			k.obs.Contended(key, held.RetryAfter)
		}
	default:
		err = k.stopped(actx, ctx, key, unavailable(key, time.Since(begun), err))
	}
	return k.acquired(lease, begun), err
}

func (k *Keeper) acquired(lease bridge.Lease, begun time.Time) *paddock.Lease {
	if lease == nil {
		return nil
	}
	l := lease.Public().(*paddock.Lease)
	if k.obs.Acquired != nil {
		k.obs.Acquired(l, time.Since(begun))
	}
	return l
}

// enter counts an acquisition in. Its context ends with outer or at Close.
func (k *Keeper) enter(outer context.Context, key string) (ctx context.Context, leave func(), err error) {
	if outer.Err() != nil {
		return nil, nil, ended(outer, "acquire", key)
	}
	ctx, cancel := context.WithCancelCause(outer)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		cancel(nil)
		return nil, nil, fmt.Errorf("%w: acquire %q", paddock.ErrClosed, key)
	}
	k.acquiring[&cancel] = struct{}{}
	k.refs++
	return ctx, func() {
		cancel(nil)
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.acquiring, &cancel)
		k.settle()
		k.unref()
	}, nil
}

// stopped is the error of an acquisition whose context has ended, or else err.
func (k *Keeper) stopped(ctx, outer context.Context, key string, err error) error {
	switch {
	case outer.Err() != nil:
		return ended(outer, "acquire", key)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: while acquiring %q", paddock.ErrClosed, key)
	}
	return err
}

// unavailable is the error of an acquisition that the backend has not answered for so long.
func unavailable(key string, silent time.Duration, err error) error {
	return fmt.Errorf("%w: acquire %q: no usable answer for %v: %w",
		paddock.ErrUnavailable, key, silent.Round(time.Millisecond), err)
}

// tryWait is how long one try may take: a lost packet should not use up the caller's patience, and a grant is of no use
// after its TTL.
func tryWait(ttl time.Duration) time.Duration { return min(ttl, max(ttl/3, time.Second)) }

// slow reports whether a call made at begun took so long that the client may have sent it twice.
func (k *Keeper) slow(begun time.Time) bool {
	return k.o.Resends > 0 && time.Since(begun) >= k.o.Resends
}

var errSilent = errors.New("the backend did not answer in time")

// unanswered is errSilent, and what a call ended with when its time was over, unless that is no more than the end of a context,
// which would look like the caller's.
func unanswered(err error) error {
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errSilent
	}
	return fmt.Errorf("%w: %w", errSilent, err)
}

var errLate = errors.New("the grant came after its trust window had closed")

// try makes one attempt, and sees to it that one of unknown outcome is undone.
func (k *Keeper) try(ctx, outer context.Context, r request, waits bool) (bridge.Lease, *Attempt, error) {
	a := &Attempt{
		Key: r.key, Owner: uuid.NewString(), Note: r.note, TTL: r.ttl, MaxHold: r.maxHold, NoRenew: r.noRenew, Waits: waits,
		keeper: k, begun: time.Now(),
	}
	cancel := func() {}
	callCtx := ctx
	if !waits {
		callCtx, cancel = context.WithTimeout(ctx, tryWait(r.ttl))
	}
	defer cancel()
	answer := &struct { // not to be read once abandoned
		Grant
		err error
	}{}
	if !k.call(callCtx, outer, func() { answer.Grant, answer.err = k.b.Try(callCtx, a) }) {
		k.clean.undo(a)
		return nil, a, errSilent
	}
	err := answer.err
	if err == nil {
		var lease bridge.Lease
		if lease, err = k.grant(ctx, outer, a, answer.Grant, r); err == nil {
			return lease, a, nil
		}
	}
	refused := errors.Is(answer.err, paddock.ErrHeld) || isPermanent(answer.err)
	if !refused || a.Slow || k.slow(a.begun) { // what was refused may be under way once more
		k.clean.undo(a)
	}
	switch {
	case errors.Is(err, paddock.ErrHeld):
		if held := (*paddock.HeldError)(nil); !errors.As(err, &held) {
			err = &paddock.HeldError{Key: a.Key}
		}
	case isPermanent(err):
		err = fmt.Errorf("%w: acquire %q: %w", paddock.ErrUnavailable, a.Key, err)
	case answer.err != nil && callCtx.Err() != nil: // whose end is not the end of the caller's
		err = unanswered(answer.err)
	}
	return nil, a, err
}

// grant makes a lease of what the backend granted, unless nobody is there to take it or it has come too late.
func (k *Keeper) grant(ctx, outer context.Context, a *Attempt, g Grant, r request) (bridge.Lease, error) {
	now := time.Now()
	a.Slow = a.Slow || k.slow(a.begun)
	if g.Sent.IsZero() {
		g.Sent = a.begun
	}
	if g.TTL == 0 {
		g.TTL = a.TTL
	}
	if k.g.Fencing != fencing.None && !g.Token.Valid() {
		return nil, Permanent(fmt.Errorf("backend %s granted the token %d", k.g.Backend, g.Token))
	}
	h := &held{keeper: k, a: a, turn: make(chan struct{}, 1), ttl: r.ttl, granted: g.Sent, session: g.Session}
	h.task.lease = h
	if a.MaxHold > 0 {
		h.last = g.Sent.Add(a.MaxHold)
	}
	end := h.window(g.Sent, g.TTL, g.Session)
	spec := bridge.Spec{
		Locker: k, Key: a.Key, TTL: g.TTL, End: end, Holder: h,
		Fence: fencing.Fence{Domain: g.Domain, Token: g.Token, Owner: a.Owner},
	}
	if g.Session != nil {
		spec.Session = g.Session.window
	}
	if (!end.IsZero() && bridge.Past(now, end)) || (g.Session != nil && bridge.Past(now, g.Session.Deadline())) {
		return nil, errLate
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lost != nil {
		return nil, a.lost
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, paddock.ErrClosed
	}
	if g.Session != nil && !g.Session.add(h) {
		return nil, errSessionEnded
	}
	h.lease = bridge.NewLease(outer, spec)
	a.held = h
	k.leases[h] = struct{}{}
	k.refs++
	if g.Session == nil && !a.NoRenew {
		k.planRenewal(&h.task, g.Sent, g.TTL)
	}
	return h.lease, nil
}

// Close is that of paddock.Locker.
func (k *Keeper) Close() error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		<-k.shut
		return k.closeErr
	}
	k.closed = true
	k.refs++ // Close itself
	for cancel := range k.acquiring {
		(*cancel)(paddock.ErrClosed)
	}
	k.plan.stop()
	for _, c := range k.idle {
		close(c.jobs)
	}
	k.idle = nil
	leases := make([]*held, 0, len(k.leases))
	for h := range k.leases {
		leases = append(leases, h)
	}
	k.settle()
	k.mu.Unlock()

	for _, h := range leases {
		h.close()
	}
	limit := time.NewTimer(k.o.CloseWait)
	defer limit.Stop()
	select {
	case <-k.settled:
	case <-limit.C:
		if n := k.clean.drop(); n > 0 {
			k.closeErr = fmt.Errorf("%w: closed with %d keys not cleaned up after %v; they are left to expire",
				paddock.ErrUnavailable, n, k.o.CloseWait)
		}
	}
	close(k.shut)
	k.mu.Lock()
	k.unref()
	k.mu.Unlock()
	return k.closeErr
}

// settle closes settled when nothing is left that Close waits for. The caller holds k.mu.
func (k *Keeper) settle() {
	if k.closed && len(k.acquiring) == 0 && k.clean.pending == 0 {
		select {
		case <-k.settled:
		default:
			close(k.settled)
		}
	}
}

// unref drops a reference. The caller holds k.mu.
func (k *Keeper) unref() {
	k.refs--
	if k.closed && k.refs == 0 {
		close(k.done)
	}
}
