package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
)

func TestTryHeld(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		_, err := k.TryAcquire(t.Context(), "a", nil)
		wantErr(t, "a held key", err, paddock.ErrHeld)
		var held *paddock.HeldError
		if !errors.As(err, &held) || held.RetryAfter != 15*time.Second || held.Key != "a" {
			t.Errorf("got %#v, want the key and what is left of it", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		if n := s.count("try"); n != 2 {
			t.Errorf("%d tries on the wire, want 2", n)
		}
		if s.count("undo") != 0 {
			t.Error("a refused try was undone: the server had said that nothing of it is there")
		}
	})
}

func TestLostReplyIsUndone(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		s.spoil(replyLost("try"))
		begun := time.Now()
		_, err := k.TryAcquire(t.Context(), "a", &paddock.Options{TTL: 9 * time.Second})
		wantErr(t, "a try without an answer", err, paddock.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: looks like the end of the caller's context, which has none", err)
		}
		if d := time.Since(begun); d != 3*time.Second {
			t.Errorf("gave up after %v, want a third of the TTL", d)
		}
		time.Sleep(time.Second)
		if o := s.owner("a"); o != "" {
			t.Errorf("%s still holds the key", o)
		}
	})
}

func TestCancelledAttemptLeavesNothing(t *testing.T) {
	for name, link := range map[string]func(context.Context, string, func()) error{
		"lost reply":                    replyLost("try"),
		"request after the clean-up":    late("try", 2*time.Second),
		"request after TTL":             late("try", time.Minute),
		"client that ignores its ctx":   deaf(3 * time.Second),
		"clean-up that is not answered": replyLost("undo"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
				s.spoil(link)
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("shop closes"))
				defer cancel()
				if name == "clean-up that is not answered" {
					s.spoil(func(ctx context.Context, c string, do func()) error {
						do()
						return silent(ctx, c, nil)
					})
				}
				begun := time.Now()
				_, err := k.Acquire(ctx, "a", nil)
				wantErr(t, "Acquire", err, context.DeadlineExceeded)
				if err == nil || !strings.Contains(err.Error(), "shop closes") {
					t.Errorf("%v does not tell the cause", err)
				}
				if d := time.Since(begun); d != time.Second {
					t.Errorf("returned after %v, want at ctx's end", d)
				}
				time.Sleep(2 * time.Minute)
				if o := s.owner("a"); o != "" {
					t.Errorf("%s holds the key for ever", o)
				}
			})
		})
	}
}

// A client that repeats a request by itself may leave the first one on its way: it must not take the key after the second was
// answered.
func TestTwinOfATry(t *testing.T) {
	t.Run("guessed", func(t *testing.T) {
		bubble(t, &KeeperOptions{Resends: 5 * time.Millisecond}, twinOfATry)
	})
	t.Run("known", func(t *testing.T) {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			s.twins = true
			twinOfATry(t, s, k)
		})
	})
}

func twinOfATry(t *testing.T, s *server, k *Keeper) {
	twins := func() {
		s.spoil(func(_ context.Context, call string, do func()) error {
			if call == "try" {
				time.AfterFunc(5*time.Second, do)
				time.Sleep(8 * time.Millisecond)
			}
			do()
			return nil
		})
	}
	l := mustAcquire(t, k, "a", nil)
	twins()
	_, err := k.TryAcquire(t.Context(), "a", nil)
	wantErr(t, "TryAcquire", err, paddock.ErrHeld)
	s.spoil(nil)
	l.Release(t.Context())
	time.Sleep(6 * time.Second)
	if s.owner("a") != "" {
		t.Error("the twin of a refused try took the key")
	}
	twins()
	l = mustAcquire(t, k, "a", nil)
	s.spoil(nil)
	l.Release(t.Context())
	time.Sleep(6 * time.Second)
	if s.owner("a") != "" {
		t.Error("the twin of a granted try took the key after its release")
	}
	s.spoil(func(_ context.Context, call string, do func()) error {
		if call == "try" {
			time.AfterFunc(5*time.Second, do)
			time.Sleep(8 * time.Millisecond)
			return Permanent(errors.New("no permission any more"))
		}
		do()
		return nil
	})
	_, err = k.TryAcquire(t.Context(), "a", nil)
	wantErr(t, "TryAcquire", err, paddock.ErrUnavailable)
	s.spoil(nil)
	time.Sleep(6 * time.Second)
	if s.owner("a") != "" {
		t.Error("the twin of a try that was refused for good took the key")
	}
}

func TestGrantThatComesTooLate(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		n := 0
		s.spoil(func(ctx context.Context, c string, do func()) error {
			do()
			if c == "try" {
				if n++; n == 1 {
					time.Sleep(995 * time.Millisecond) // within the TTL, past the margin
				}
			}
			return nil
		})
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: time.Second})
		if s.owner("a") != l.Owner() || n < 2 {
			t.Errorf("after %d tries the server names %q, the lease %q", n, s.owner("a"), l.Owner())
		}
		l.Release(t.Context())
		n = 0
		_, err := k.TryAcquire(t.Context(), "b", &paddock.Options{TTL: time.Second})
		wantErr(t, "TryAcquire", err, paddock.ErrUnavailable)
	})
}

func TestDeadlineCountsFromTheSending(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		sent := time.Now()
		s.spoil(func(_ context.Context, _ string, do func()) error {
			do()
			time.Sleep(2 * time.Second) // for the reply
			return nil
		})
		l := mustAcquire(t, k, "a", &paddock.Options{TTL: 10 * time.Second, NoRenew: true})
		if want := sent.Add(10*time.Second - 105*time.Millisecond); !l.Deadline().Equal(want) {
			t.Errorf("Deadline %v after the sending, want %v", l.Deadline().Sub(sent), want.Sub(sent))
		}
		<-l.Context().Done()
		if now := time.Now(); !now.Equal(l.Deadline()) {
			t.Errorf("the context ended %v after the Deadline", now.Sub(l.Deadline()))
		}
		wantErr(t, "cause", context.Cause(l.Context()), paddock.ErrLost)
	})
}

func TestSilence(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		for _, c := range []struct{ ttl, after time.Duration }{{time.Second, 5 * time.Second}, {30 * time.Second, 30 * time.Second}} {
			s.spoil(silent)
			begun := time.Now()
			_, err := k.Acquire(t.Context(), "a", &paddock.Options{TTL: c.ttl})
			wantErr(t, "Acquire", err, paddock.ErrUnavailable)
			if d := time.Since(begun); d < c.after || d > c.after+c.ttl+2*time.Second {
				t.Errorf("TTL %v: gave up after %v, want %v and no more than one try beyond", c.ttl, d, c.after)
			}
		}
		// An answer, even a refusal, ends the silence.
		s.spoil(nil)
		mustAcquire(t, k, "a", &paddock.Options{TTL: time.Hour})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		_, err := k.Acquire(ctx, "a", &paddock.Options{TTL: time.Second})
		wantErr(t, "a wait for a holder", err, context.DeadlineExceeded)
	})
}

type refusing struct{ *server }

func (refusing) Try(context.Context, *Attempt) (Grant, error) {
	return Grant{}, Permanent(errors.New("NOPERM"))
}

func TestPermanentAnswersEndTheWait(t *testing.T) {
	k := NewKeeper(testGuarantees, refusing{newServer()}, nil)
	defer k.Close()
	_, err := k.Acquire(t.Context(), "a", nil)
	wantErr(t, "Acquire", err, paddock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("%v does not hold the driver's error", err)
	}
}

func TestClose(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		holder := mustAcquire(t, k, "a", nil)
		idle := mustAcquire(t, k, "b", &paddock.Options{TTL: 20 * time.Second})
		errs := make(chan error, 2)
		go func() { _, err := k.Acquire(t.Context(), "a", nil); errs <- err }() // a waiter
		time.Sleep(time.Second)
		s.spoil(func(ctx context.Context, c string, do func()) error {
			do()
			if c == "try" {
				time.Sleep(time.Minute) // and an attempt in flight whose client does not heed its context
			}
			return nil
		})
		go func() { _, err := k.Acquire(t.Context(), "c", nil); errs <- err }()
		time.Sleep(time.Second)
		if err := k.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		for range 2 {
			wantErr(t, "an Acquire in flight", <-errs, paddock.ErrClosed)
		}
		if s.owner("c") != "" {
			t.Error("Close returned before the attempt in flight was cleaned up")
		}
		_, err := k.TryAcquire(t.Context(), "d", nil)
		wantErr(t, "TryAcquire after Close", err, paddock.ErrClosed)
		wantErr(t, "the holder's context", context.Cause(holder.Context()), paddock.ErrClosed)
		if s.owner("a") != holder.Owner() {
			t.Error("Close took the holder's key")
		}
		if err := holder.Release(t.Context()); err != nil || s.owner("a") != "" {
			t.Errorf("the holder's Release after Close: %v, key held by %q", err, s.owner("a"))
		}
		select {
		case <-k.Done():
			t.Error("Done while a lease has not run out")
		default:
		}
		time.Sleep(time.Minute)
		<-k.Done()
		wantErr(t, "Release of what ran out", idle.Release(t.Context()), paddock.ErrLost)
	})
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	bubble(t, &KeeperOptions{CloseWait: 3 * time.Second}, func(t *testing.T, s *server, k *Keeper) {
		s.spoil(silent)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = k.Acquire(ctx, "a", nil)
		_, _ = k.Acquire(ctx, "b", nil)
		begun := time.Now()
		other := make(chan error, 1)
		go func() { other <- k.Close() }()
		err := k.Close()
		wantErr(t, "Close", err, paddock.ErrUnavailable)
		if d := time.Since(begun); d != 3*time.Second {
			t.Errorf("Close took %v, want CloseWait", d)
		}
		if err == nil || !strings.Contains(err.Error(), "1 keys") {
			t.Errorf("%v does not say how many keys are left", err)
		}
		if again := <-other; again != err {
			t.Errorf("a second Close: %v, want what the first returned", again)
		}
		k.closeErr = nil // for bubble
	})
}

func TestNoReentrancy(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		err := paddock.Do(t.Context(), k, "a", nil, func(ctx context.Context, lease *paddock.Lease) error {
			_, err := k.Acquire(ctx, "a", nil)
			wantErr(t, "Acquire below Do", err, paddock.ErrInvalid)
			_, err = k.Acquire(lease.Context(), "a", nil)
			wantErr(t, "Acquire on the lease's context", err, paddock.ErrInvalid)
			_, err = k.TryAcquire(ctx, "a", nil)
			wantErr(t, "TryAcquire below Do", err, paddock.ErrHeld)
			return paddock.Do(ctx, k, "b", nil, func(ctx context.Context, _ *paddock.Lease) error {
				_, err := k.Acquire(ctx, "a", nil)
				wantErr(t, "Acquire two levels below", err, paddock.ErrInvalid)
				if err := lease.Release(ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
				again, err := k.Acquire(context.WithoutCancel(ctx), "a", nil)
				if err != nil {
					t.Errorf("Acquire after the outer lease has ended: %v", err)
					return nil
				}
				return again.Release(t.Context())
			})
		})
		if err != nil {
			t.Errorf("Do: %v", err)
		}
	})
}

func TestBadRequests(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		long := strings.Repeat("k", 1025)
		for _, c := range []struct {
			key  string
			opts *paddock.Options
			says string
		}{
			{"", nil, "empty"},
			{long, nil, "1025 bytes"},
			{"a\xff", nil, `"a\xff"`},
			{"a", &paddock.Options{TTL: time.Millisecond}, "1ms"},
			{"a", &paddock.Options{TTL: -time.Second}, "-1s"},
			{"a", &paddock.Options{TTL: 1 << 62}, "10ms to"},
			{"a", &paddock.Options{MaxHold: -1}, "MaxHold"},
			{"a", &paddock.Options{Note: strings.Repeat("n", 257)}, "257 bytes"},
			{"a", &paddock.Options{Note: "\xff"}, "UTF-8"},
		} {
			_, err := k.Acquire(t.Context(), c.key, c.opts)
			wantErr(t, c.says, err, paddock.ErrInvalid)
			if err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
		}
		if n := s.count("try"); n != 0 {
			t.Errorf("%d tries were sent for what can never work", n)
		}
		l := mustAcquire(t, k, long[1:], &paddock.Options{TTL: 1234567 * time.Microsecond, Note: strings.Repeat("ü", 128)})
		if l.TTL() != 1235*time.Millisecond {
			t.Errorf("TTL() %v, want it rounded up to a millisecond", l.TTL())
		}
		l.Release(t.Context())
	})
}

func TestUnusedObserverAllocatesNothing(t *testing.T) {
	per := func(o *paddock.Observer) float64 {
		k := NewKeeper(testGuarantees, newServer(), &KeeperOptions{Inline: true, Observer: o})
		defer k.Close()
		ctx := context.Background()
		return testing.AllocsPerRun(200, func() {
			l, err := k.TryAcquire(ctx, "a", nil)
			if err != nil {
				t.Fatal(err)
			}
			l.Release(ctx)
		})
	}
	none, empty := per(nil), per(&paddock.Observer{})
	used := per(&paddock.Observer{Acquired: func(*paddock.Lease, time.Duration) {}, Released: func(*paddock.Lease, time.Duration, error) {}})
	if empty > none || used > none {
		t.Errorf("allocations: %v without an observer, %v with an empty one, %v with one in use", none, empty, used)
	}
}

// What a call that has used up its time says is told, and that its context has ended is not.
func TestReasonForSilence(t *testing.T) {
	refused := errors.New("connection refused")
	for why, want := range map[error]bool{refused: true, context.DeadlineExceeded: false} {
		bubble(t, &KeeperOptions{Deadlines: true}, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "held", nil)
			s.spoil(func(ctx context.Context, _ string, _ func()) error {
				<-ctx.Done()
				return fmt.Errorf("client: %w", why)
			})
			_, err := k.TryAcquire(context.Background(), "a", nil)
			for what, err := range map[string]error{"TryAcquire": err, "Release": l.Release(context.Background())} {
				wantErr(t, what, err, paddock.ErrUnavailable)
				wantErr(t, what, err, errSilent)
				if errors.Is(err, why) != want {
					t.Errorf("%s: %v; that it was %v is to be told: %v", what, err, why, want)
				}
			}
			s.spoil(nil)
		})
	}
}

// What a call leaves that is still under way when CloseWait is over is not cleaned up.
func TestCloseDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		k := NewKeeper(testGuarantees, s, &KeeperOptions{Deadlines: true, CloseWait: time.Second})
		s.spoil(func(ctx context.Context, _ string, _ func()) error {
			deadline, _ := ctx.Deadline()
			time.Sleep(time.Until(deadline))
			return context.DeadlineExceeded
		})
		got := make(chan error)
		go func() {
			_, err := k.TryAcquire(context.Background(), "a", &paddock.Options{TTL: 9 * time.Second})
			got <- err
		}()
		synctest.Wait()
		begun := time.Now()
		wantErr(t, "Close", k.Close(), paddock.ErrUnavailable)
		if d := time.Since(begun); d != time.Second {
			t.Errorf("Close took %v, want CloseWait", d)
		}
		wantErr(t, "the try", <-got, paddock.ErrClosed)
		<-k.Done()
	})
}

// A client that heeds deadlines is called inline for who cannot leave early, and can be abandoned by who can.
func TestDeadlines(t *testing.T) {
	bubble(t, &KeeperOptions{Deadlines: true}, func(t *testing.T, s *server, k *Keeper) {
		s.spoil(func(ctx context.Context, _ string, _ func()) error {
			deadline, ok := ctx.Deadline()
			if !ok {
				t.Error("a call without a deadline")
			}
			time.Sleep(time.Until(deadline))
			return context.DeadlineExceeded
		})
		begun := time.Now()
		_, err := k.TryAcquire(context.Background(), "a", &paddock.Options{TTL: 9 * time.Second})
		wantErr(t, "TryAcquire", err, paddock.ErrUnavailable)
		if d := time.Since(begun); d != 3*time.Second {
			t.Errorf("returned after %v, want a third of the TTL", d)
		}
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		begun = time.Now()
		_, err = k.TryAcquire(ctx, "a", &paddock.Options{TTL: 9 * time.Second})
		wantErr(t, "TryAcquire", err, context.Canceled)
		if d := time.Since(begun); d != time.Second {
			t.Errorf("returned after %v, want at the cancellation", d)
		}
	})
}
