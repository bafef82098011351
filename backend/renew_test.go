package backend

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
)

func TestTenThousandLeases(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		const n = 10_000
		leases := make([]*paddock.Lease, n)
		for i := range leases {
			leases[i] = mustAcquire(t, k, keyN(i), nil)
			time.Sleep(100 * time.Microsecond)
		}
		s.spoil(func(_ context.Context, _ string, do func()) error {
			time.Sleep(time.Millisecond)
			do()
			return nil
		})
		most := 0
		before := s.count("renew")
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			most = max(most, runtime.NumGoroutine())
		}
		for i, l := range leases {
			if l.Err() != nil || s.owner(keyN(i)) != l.Owner() {
				t.Fatalf("lease %d: %v, on the server %q", i, l.Err(), s.owner(keyN(i)))
			}
		}
		calls := s.count("renew") - before
		if most > 100 || s.batch > 256 || calls > 1200 {
			t.Errorf("in a minute %d calls, the largest of %d leases, at most %d goroutines", calls, s.batch, most)
		}
		for _, l := range leases {
			l.Release(t.Context())
		}
	})
}

func TestRenewalThroughSilence(t *testing.T) {
	var late atomic.Int32
	opts := &KeeperOptions{Observer: &paddock.Observer{
		RenewalLate: func(_ *paddock.Lease, left time.Duration, err error) {
			if left <= 0 || left > 10*time.Second || err == nil {
				t.Errorf("renewal late with %v left: %v", left, err)
			}
			late.Add(1)
		},
	}}
	bubble(t, opts, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		time.Sleep(time.Minute)
		s.spoil(silent)
		time.Sleep(9 * time.Second) // of the 10 s that are left at least when a renewal is due
		s.spoil(nil)
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Errorf("9 s of silence ended a lease of 15 s: %v", err)
		}
		if late.Load() < 2 {
			t.Errorf("RenewalLate was called %d times", late.Load())
		}
		s.spoil(silent)
		begun := time.Now()
		<-l.Context().Done()
		if d := time.Since(begun); d < 9*time.Second || d > 15*time.Second {
			t.Errorf("lost %v after the silence began", d)
		}
		if s.owner("a") != l.Owner() {
			t.Error("the context ended after the server had let go")
		}
		s.spoil(nil)
		time.Sleep(2 * time.Second)
		if s.owner("a") != "" {
			t.Error("what was lost here is still held on the server")
		}
		wantErr(t, "Release", l.Release(t.Context()), paddock.ErrLost)
	})
}

func TestLossIsToldOnce(t *testing.T) {
	var lost, released atomic.Int32
	opts := &KeeperOptions{Observer: &paddock.Observer{
		Lost: func(_ *paddock.Lease, held time.Duration, reason error) {
			wantErr(t, "reason", reason, paddock.ErrLost)
			lost.Add(1)
		},
		Released: func(*paddock.Lease, time.Duration, error) { released.Add(1) },
	}}
	bubble(t, opts, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		s.forget("a")
		other := NewKeeper(testGuarantees, s, nil)
		defer other.Close()
		next, err := other.Acquire(t.Context(), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		<-l.Context().Done()
		for range 3 {
			wantErr(t, "Release", l.Release(t.Context()), paddock.ErrLost)
			wantErr(t, "Extend", l.Extend(t.Context(), time.Minute), paddock.ErrLost)
		}
		time.Sleep(time.Minute)
		if s.owner("a") != next.Owner() || next.Err() != nil {
			t.Error("the lost lease harmed the next holder's")
		}
		if lost.Load() != 1 || released.Load() != 0 {
			t.Errorf("Lost was called %d times, Released %d times", lost.Load(), released.Load())
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestNoRenewAndMaxHold(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		begun := time.Now()
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: 10 * time.Second, NoRenew: true})
		time.Sleep(5 * time.Second)
		if err := l.Extend(t.Context(), 10*time.Second); err != nil {
			t.Errorf("Extend: %v", err)
		}
		<-l.Context().Done()
		if d := time.Since(begun); d != 15*time.Second-105*time.Millisecond {
			t.Errorf("an Extend at 5 s to 10 s ended at %v", d)
		}
		begun = time.Now()
		l = mustAcquire(t, k, "b", &paddock.Options{TTL: 10 * time.Second, MaxHold: 25 * time.Second})
		time.Sleep(20 * time.Second)
		if err := l.Extend(t.Context(), time.Hour); err != nil {
			t.Errorf("Extend: %v", err)
		}
		<-l.Context().Done()
		if d := time.Since(begun); d < 24*time.Second || d > 25*time.Second {
			t.Errorf("MaxHold of 25 s ended at %v", d)
		}
		wantErr(t, "MaxHold", l.Err(), paddock.ErrLost)
		time.Sleep(time.Second)
		if s.owner("b") != "" {
			t.Error("the server still holds what MaxHold ended")
		}
		l = mustAcquire(t, k, "c", &paddock.Options{TTL: 10 * time.Second, MaxHold: 2 * time.Second})
		if l.TTL() != 2*time.Second || s.left("c") != 2*time.Second {
			t.Errorf("MaxHold of 2 s: TTL %v, on the server %v", l.TTL(), s.left("c"))
		}
		l.Release(t.Context())
	})
}

func TestPausedProcessLearnsAtOnce(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: 10 * time.Second})
		k.mu.Lock() // as if the timers had not come to run
		k.plan.timer.Stop()
		k.mu.Unlock()
		time.Sleep(10*time.Second - 105*time.Millisecond)
		wantErr(t, "Err at the Deadline", l.Err(), paddock.ErrLost)
	})
}

func TestLateAnswerDoesNotResurrect(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: 10 * time.Second})
		s.spoil(func(_ context.Context, call string, do func()) error {
			do()
			if call == "renew" {
				time.Sleep(30 * time.Second) // longer than anybody waits
			}
			return nil
		})
		<-l.Context().Done()
		time.Sleep(time.Minute)
		wantErr(t, "Err", l.Err(), paddock.ErrLost)
	})
}

func TestExtend(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		for _, ttl := range []time.Duration{time.Minute, time.Second, 15 * time.Second} {
			if err := l.Extend(t.Context(), ttl); err != nil {
				t.Fatalf("Extend(%v): %v", ttl, err)
			}
			if s.left("a") != ttl || l.TTL() != ttl {
				t.Errorf("Extend(%v): TTL %v, on the server %v", ttl, l.TTL(), s.left("a"))
			}
			if d := time.Until(l.Deadline()); d != ttl-k.o.Margin(ttl) {
				t.Errorf("Extend(%v): Deadline in %v", ttl, d)
			}
			time.Sleep(10 * ttl)
			if l.Err() != nil || s.left("a") < ttl/2 || s.left("a") > ttl {
				t.Errorf("10 TTLs after Extend(%v): %v, on the server %v", ttl, l.Err(), s.left("a"))
			}
		}
		wantErr(t, "Extend to nothing", l.Extend(t.Context(), 0), paddock.ErrInvalid)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, "Extend on an ended ctx", l.Extend(ctx, time.Minute), context.Canceled)
		l.Release(t.Context())
		wantErr(t, "Extend after Release", l.Extend(t.Context(), time.Minute), paddock.ErrReleased)
	})
}

// Extend(1 s) is delayed and abandoned, Extend(30 s) is answered, then the first arrives: no window may be longer than 1 s
// from then on until the server cannot be reached by it any more.
func TestShorterExtendOfUnknownOutcome(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: 20 * time.Second})
		var calls atomic.Int32
		s.spoil(func(_ context.Context, call string, do func()) error {
			if call == "renew" && calls.Add(1) == 1 {
				time.Sleep(8 * time.Second)
			}
			do()
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		sent := time.Now()
		wantErr(t, "Extend that was not answered", l.Extend(ctx, time.Second), context.DeadlineExceeded)
		if d := l.Deadline().Sub(sent); d > time.Second {
			t.Errorf("the window is %v from the sending of Extend(1s)", d)
		}
		if err := l.Extend(t.Context(), 30*time.Second); err != nil {
			t.Errorf("Extend(30s): %v", err)
		}
		for time.Since(sent) < 8*time.Second {
			if d := time.Until(l.Deadline()); d > time.Second {
				t.Fatalf("%v after the abandoned Extend(1s), which may still arrive, the window is %v", time.Since(sent), d)
			}
			if err := l.Err(); err != nil {
				t.Fatalf("lost though every renewal is answered: %v", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		// Now it has arrived, and its client has said so.
		time.Sleep(time.Second)
		if d := time.Until(l.Deadline()); d < 15*time.Second {
			t.Errorf("the window is still %v, though the Extend(1s) can do no more harm", d)
		}
		l.Release(t.Context())
	})
}

// The answer to a shorter Extend that was given up says nothing of those that were sent after the server had proved their order.
func TestLateAnswerSettlesNoLaterDoubt(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		extend := func(l *paddock.Lease, link func(context.Context, string, func()) error) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			s.spoil(link)
			wantErr(t, "Extend", l.Extend(ctx, 10*time.Second), context.DeadlineExceeded)
			s.spoil(nil)
		}
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: time.Minute})
		extend(l, func(_ context.Context, _ string, do func()) error {
			do()
			time.Sleep(2 * time.Second) // deaf to its context, and then it has an answer
			return nil
		})
		s.orders = true
		if err := l.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		s.orders = false
		extend(l, late("renew", 10*time.Second))
		time.Sleep(5 * time.Second) // the first has returned
		if err := l.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(l.Deadline()); left > 10*time.Second {
			t.Errorf("the window is %v while an Extend to 10 s is under way", left)
		}
		l.Release(t.Context())
	})
}

func TestExtendsTakeTurns(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: 20 * time.Second})
		var now, most atomic.Int32
		s.spoil(func(_ context.Context, call string, do func()) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(time.Second)
			do()
			return nil
		})
		done := make(chan error)
		for range 5 {
			go func() { done <- l.Extend(t.Context(), 20*time.Second) }()
		}
		for range 5 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		time.Sleep(20 * time.Second)
		if most.Load() != 1 {
			t.Errorf("%d renewals of one lease at once", most.Load())
		}
		s.spoil(nil)
		l.Release(t.Context())
	})
}

func TestRelease(t *testing.T) {
	t.Run("ended ctx", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "a", nil)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			wantErr(t, "Release", l.Release(ctx), context.Canceled)
			wantErr(t, "the lease", l.Err(), paddock.ErrReleased)
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("a later Release: %v, want what the first came to", err)
			}
			if s.owner("a") != "" {
				t.Error("the key is still held")
			}
		})
	})
	t.Run("unreachable", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "a", nil)
			s.spoil(silent)
			if err := l.Extend(t.Context(), time.Minute); !errors.Is(err, paddock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Extend: %v, want ErrUnavailable and not the end of a context that is not the caller's", err)
			}
			err := l.Release(t.Context())
			if !errors.Is(err, paddock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Release: %v, want ErrUnavailable and not the end of a context that is not the caller's", err)
			}
			wantErr(t, "cause", context.Cause(l.Context()), paddock.ErrReleased)
			again := make(chan error, 1)
			go func() { again <- l.Release(t.Context()) }()
			time.Sleep(5 * time.Second)
			s.spoil(nil)
			if err := <-again; err != nil {
				t.Errorf("a later Release: %v", err)
			}
			if s.owner("a") != "" {
				t.Error("the key is still held")
			}
		})
	})
	t.Run("unreachable past the TTL", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "a", nil)
			s.spoil(silent)
			wantErr(t, "Release", l.Release(t.Context()), paddock.ErrUnavailable)
			begun := time.Now()
			wantErr(t, "a later Release", l.Release(t.Context()), paddock.ErrUnavailable)
			if d := time.Since(begun); d < 15*time.Second || d > 25*time.Second {
				t.Errorf("given up after %v; the server drops the key after 15s", d)
			}
		})
	})
	t.Run("lost reply", func(t *testing.T) {
		bubble(t, &KeeperOptions{Resends: 5 * time.Millisecond}, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "a", nil)
			s.spoil(func(_ context.Context, _ string, do func()) error {
				do()
				time.Sleep(10 * time.Millisecond)
				do() // the client repeats it
				return nil
			})
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("a Release that the client sent twice: %v", err)
			}
		})
	})
	t.Run("renewal in flight", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "a", &paddock.Options{TTL: 30 * time.Second})
			s.spoil(late("renew", 4*time.Second))
			time.Sleep(11 * time.Second) // it was sent about a second ago
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
			deadline := l.Deadline()
			time.Sleep(time.Minute)
			if s.owner("a") != "" || !l.Deadline().Equal(deadline) {
				t.Error("a renewal took effect after Release had returned")
			}
		})
	})
	t.Run("stale", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			old := mustAcquire(t, k, "a", nil)
			old.Release(t.Context())
			l := mustAcquire(t, k, "a", nil)
			for range 3 {
				if err := old.Release(t.Context()); err != nil {
					t.Errorf("Release again: %v, want what the first came to", err)
				}
			}
			if s.owner("a") != l.Owner() || old.Owner() == l.Owner() {
				t.Error("a late Release touched the next acquisition")
			}
			l.Release(t.Context())
		})
	})
}

func TestLostBeforeTheGrantReturns(t *testing.T) {
	synctest1(t, func(t *testing.T, s *server) Backend { return hasty{s} }, func(t *testing.T, s *server, k *Keeper) {
		_, err := k.TryAcquire(t.Context(), "a", nil)
		wantErr(t, "TryAcquire", err, paddock.ErrUnavailable, errHasty)
		time.Sleep(time.Second)
		if s.owner("a") != "" {
			t.Error("the key is still held")
		}
	})
}

var errHasty = errors.New("seen to go")

// hasty loses every lock before it has granted it.
type hasty struct{ *server }

func (h hasty) Try(ctx context.Context, a *Attempt) (Grant, error) {
	g, err := h.server.Try(ctx, a)
	a.Lost(errHasty)
	return g, err
}
