package paddock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/bridge"
)

// quiet is a Keeper that has nothing to do.
type quiet struct {
	lost     []error
	released int
}

func (q *quiet) Extend(context.Context, time.Duration) error { return nil }
func (q *quiet) Release(context.Context) error               { q.released++; return nil }
func (q *quiet) Lost(err error)                              { q.lost = append(q.lost, err) }

func newLease(ctx context.Context, q *quiet, end time.Time) (*Lease, bridge.Lease) {
	k := bridge.NewLease(ctx, bridge.Spec{
		Locker: q, Key: "a", TTL: time.Second, End: end, Holder: q,
		Fence: fencing.Fence{Domain: "test", Token: 7, Owner: "o"},
	})
	return k.Public().(*Lease), k
}

// suspend takes d off the monotonic reading of t, as a machine does that was suspended for d: t's wall clock is d further.
func suspend(t time.Time, d time.Duration) time.Time {
	raw := (*struct {
		wall uint64
		ext  int64
	})(unsafe.Pointer(&t))
	if raw.wall>>63 == 0 {
		panic("no monotonic reading")
	}
	raw.ext += int64(d)
	return t
}

func TestSuspendedMachineEndsTheLease(t *testing.T) {
	q := &quiet{}
	l, _ := newLease(t.Context(), q, suspend(time.Now(), time.Hour)) // by the monotonic clock an hour is left, by the wall clock none
	if d := time.Until(l.end); d < 59*time.Minute {
		t.Fatalf("the monotonic clock leaves %v; the test has lost its grip on time.Time", d)
	}
	if err := l.Err(); !errors.Is(err, ErrLost) {
		t.Errorf("Err: %v, want ErrLost", err)
	}
	if len(q.lost) != 1 || l.Context().Err() == nil {
		t.Errorf("the Keeper was told %v, the context %v", q.lost, l.Context().Err())
	}
}

func TestLeaseEndsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(*Lease, bridge.Lease) error{
			"released": func(l *Lease, k bridge.Lease) error { l.Release(t.Context()); return ErrReleased },
			"lost":     func(l *Lease, k bridge.Lease) error { k.Lose(errors.New("gone")); return ErrLost },
			"closed":   func(l *Lease, k bridge.Lease) error { k.Close(); return ErrClosed },
			"deadline": func(l *Lease, k bridge.Lease) error { time.Sleep(time.Second); return ErrLost },
		} {
			q := &quiet{}
			l, k := newLease(t.Context(), q, time.Now().Add(time.Second))
			want := end(l, k)
			k.Lose(errors.New("again"))
			k.Close()
			k.Raise(time.Hour, time.Now().Add(time.Hour))
			time.Sleep(time.Minute)
			if err := l.Err(); !errors.Is(err, want) || context.Cause(l.Context()) != err {
				t.Errorf("%s: Err %v, cause %v", name, err, context.Cause(l.Context()))
			}
			if lost := want == ErrLost; (len(q.lost) == 1) != lost {
				t.Errorf("%s: the Keeper was told of %d losses", name, len(q.lost))
			}
		}
	})
}

func TestContextOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Second)
		defer cancel()
		l, k := newLease(ctx, &quiet{}, time.Now().Add(time.Hour))
		time.Sleep(time.Minute)
		if l.Context().Err() != nil {
			t.Error("the hold ended with the context of the wait")
		}
		if _, ok := l.Context().Deadline(); ok {
			t.Error("the context has a Deadline, which renewals cannot move")
		}
		if l.Context().Value(key{}) != "value" {
			t.Error("the context does not carry the values of the acquiring one")
		}
		if f, ok := fencing.FromContext(l.Context()); !ok || f != l.Fence() || f.Token != 7 {
			t.Errorf("the context carries the fence %v, %v", f, ok)
		}
		k.Close()
	})
}

func TestWindowsOfALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		l, k := newLease(t.Context(), &quiet{}, now.Add(10*time.Second))
		at := func(what string, want time.Duration) {
			t.Helper()
			if got := l.Deadline().Sub(now); got != want {
				t.Errorf("%s: Deadline at %v, want %v", what, got, want)
			}
		}
		k.Raise(5*time.Second, now.Add(5*time.Second))
		at("a renewal that ends sooner", 10*time.Second)
		k.Raise(20*time.Second, now.Add(20*time.Second))
		at("a renewal", 20*time.Second)
		k.Lower(now.Add(30 * time.Second))
		at("lowered to later", 20*time.Second)
		s := bridge.NewWindow(now.Add(15 * time.Second))
		k.Move(s, time.Minute, time.Time{})
		at("in a session", 15*time.Second)
		s.Set(now.Add(40 * time.Second))
		at("after the session's renewal", 40*time.Second)
		k.Lower(now.Add(25 * time.Second))
		at("bounded in a session", 25*time.Second)
		time.Sleep(25*time.Second - time.Nanosecond)
		if l.Context().Err() != nil {
			t.Error("ended early")
		}
		time.Sleep(1 * time.Nanosecond)
		synctest.Wait()
		if l.Context().Err() == nil {
			t.Error("did not end at its Deadline")
		}
	})
}

// TestEndedLeaseLeavesItsSession: a session's late renewal does not move the Deadline of a lease that was over.
func TestEndedLeaseLeavesItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		l, k := newLease(t.Context(), &quiet{}, now.Add(10*time.Second))
		s := bridge.NewWindow(now.Add(15 * time.Second))
		k.Move(s, time.Minute, time.Time{})
		<-l.Context().Done()
		s.Set(now.Add(40 * time.Second))
		if got := l.Deadline().Sub(now); got != 15*time.Second {
			t.Errorf("Deadline at %v, want 15s, when the lease ended", got)
		}
		if err := l.Err(); !errors.Is(err, ErrLost) {
			t.Errorf("Err = %v; want ErrLost", err)
		}
	})
}

func TestReleaseOnTheLeasesOwnContext(t *testing.T) {
	q := &seeing{}
	k := bridge.NewLease(t.Context(), bridge.Spec{Locker: q, Key: "a", TTL: time.Minute, End: time.Now().Add(time.Minute), Holder: q})
	l := k.Public().(*Lease)
	if err := l.Release(l.Context()); err != nil || q.err != nil {
		t.Errorf("Release: %v, with a context that had ended: %v", err, q.err)
	}
}

// seeing notes whether the context of a Release has ended.
type seeing struct {
	quiet
	err error
}

func (s *seeing) Release(ctx context.Context) error { s.err = ctx.Err(); return nil }
