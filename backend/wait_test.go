package backend

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
)

// waiters starts n Acquires of key, in order, and returns their results in the order in which they end.
func waiters(t *testing.T, k *Keeper, key string, n int) <-chan *paddock.Lease {
	got := make(chan *paddock.Lease, n)
	for range n {
		go func() {
			l, err := k.Acquire(t.Context(), key, nil)
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
			got <- l
		}()
		synctest.Wait()
	}
	return got
}

func TestWaitersOfOneProcessAreOneOnTheServer(t *testing.T) {
	for _, n := range []int{1, 10, 1000} {
		bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
			l := mustAcquire(t, k, "a", nil)
			before := s.count("try")
			got := waiters(t, k, "a", n)
			if d := s.count("try") - before; d != 2 {
				t.Errorf("%d waiters sent %d tries, want one and one more once it could be woken", n, d)
			}
			before = s.count("try")
			begun := time.Now()
			for range n {
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
				next := <-got
				if next.Token() <= l.Token() {
					t.Errorf("token %d after %d", next.Token(), l.Token())
				}
				l = next
			}
			if d := s.count("try") - before; d != n {
				t.Errorf("%d hand-offs took %d tries, want one each", n, d)
			}
			if d := time.Since(begun); d != 0 {
				t.Errorf("%d hand-offs took %v on an instant server: somebody slept", n, d)
			}
			l.Release(t.Context())
		})
	}
}

// All at once: those who come while the first try is on its way do not make one of their own.
func TestCrowdOnAHeldKey(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		s.spoil(func(_ context.Context, _ string, do func()) error {
			time.Sleep(time.Millisecond)
			do()
			return nil
		})
		before := s.count("try")
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				lease, err := k.Acquire(t.Context(), "a", nil)
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				lease.Release(t.Context())
			})
		}
		time.Sleep(time.Second)
		if d := s.count("try") - before; d != 2 {
			t.Errorf("200 goroutines at once sent %d tries, want 2", d)
		}
		l.Release(t.Context())
		wg.Wait()
		if d := s.count("try") - before; d != 202 {
			t.Errorf("200 acquisitions took %d tries, want one each and 2", d)
		}
	})
}

func TestWaitEndsWithoutAHint(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		other := NewKeeper(testGuarantees, s, nil)
		defer other.Close()
		l, err := other.Acquire(t.Context(), "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := waiters(t, k, "a", 3)
		time.Sleep(time.Minute)
		begun := time.Now()
		l.Release(t.Context())
		for range 3 {
			(<-got).Release(t.Context())
		}
		if d := time.Since(begun); d > maxPoll {
			t.Errorf("the first waiter came %v after the release, want at most %v", d, maxPoll)
		}

		// A holder that dies: just after what it had left.
		s.spoil(nil)
		if _, err := other.Acquire(t.Context(), "b", &paddock.Options{TTL: 2 * time.Second, NoRenew: true}); err != nil {
			t.Fatal(err)
		}
		begun = time.Now()
		(<-waiters(t, k, "b", 1)).Release(t.Context())
		if d := time.Since(begun); d < 2*time.Second || d > 2*time.Second+60*time.Millisecond {
			t.Errorf("acquired %v after a grant for 2s that nobody renewed", d)
		}
	})
}

func TestHints(t *testing.T) {
	var mu sync.Mutex
	watched := map[string]int{}
	opts := &KeeperOptions{Watch: func(key string) func() {
		mu.Lock()
		defer mu.Unlock()
		watched[key]++
		return func() {
			mu.Lock()
			defer mu.Unlock()
			watched[key]--
		}
	}}
	bubble(t, opts, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		if len(watched) != 0 {
			t.Error("Watch was called though nobody waited")
		}
		l.Release(t.Context())
		for round, wake := range []func(){func() { k.Wake("a") }, k.WakeAll} {
			other := mustAcquire(t, k, "a", &paddock.Options{TTL: time.Hour})
			got := waiters(t, k, "a", 5)
			if watched["a"] != 1 {
				t.Errorf("round %d: Watch is open %d times for 5 waiters, want once", round, watched["a"])
			}
			s.forget("a") // the key is free and only a hint will tell
			begun := time.Now()
			wake()
			next := <-got
			if d := time.Since(begun); d != 0 {
				t.Errorf("round %d: woken after %v", round, d)
			}
			next.Release(t.Context())
			for range 4 {
				(<-got).Release(t.Context())
			}
			synctest.Wait()
			if watched["a"] != 0 {
				t.Errorf("round %d: Watch is still open", round)
			}
			wantErr(t, "the holder that the server forgot", other.Release(t.Context()), paddock.ErrLost)
		}
	})
}

// A waiter at the head that is cancelled just when it is woken must not swallow the hint.
func TestCancelledHeadPassesTheHintOn(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		ctx, cancel := context.WithCancel(t.Context())
		headErr := make(chan error)
		go func() {
			l, err := k.Acquire(ctx, "a", nil)
			if err == nil { // the release was first
				l.Release(t.Context())
			}
			headErr <- err
		}()
		synctest.Wait()
		got := waiters(t, k, "a", 2)
		begun := time.Now()
		go cancel()
		go l.Release(t.Context())
		err := <-headErr
		if err != nil {
			wantErr(t, "the cancelled head", err, context.Canceled)
		}
		for range 2 {
			(<-got).Release(t.Context())
		}
		if d := time.Since(begun); err != nil && d > 0 {
			t.Errorf("its successors came %v after the release", d)
		}
	})
}

func TestCancelledWaitersLeaveTheLine(t *testing.T) {
	bubble(t, nil, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				_, err := k.Acquire(ctx, "a", nil)
				wantErr(t, "Acquire", err, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		if n := s.count("try"); n > 1003 {
			t.Errorf("1000 cancelled waits took %d tries", n)
		}
		if len(k.lines) != 0 {
			t.Error("the line is still there")
		}
		begun := time.Now()
		got := waiters(t, k, "a", 1)
		l.Release(t.Context())
		(<-got).Release(t.Context())
		if d := time.Since(begun); d != 0 {
			t.Errorf("acquired %v after the release", d)
		}
	})
}

func TestObserverOfWaits(t *testing.T) {
	var events []string
	var mu sync.Mutex
	note := func(e string) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}
	opts := &KeeperOptions{Observer: &paddock.Observer{
		Contended: func(key string, left time.Duration) { note("contended " + key + " " + left.String()) },
		Waited: func(key string, d time.Duration, err error) {
			if err != nil {
				note("waited in vain " + d.String())
			} else {
				note("waited " + d.String())
			}
		},
		Acquired: func(l *paddock.Lease, d time.Duration) { note("acquired " + l.Key() + " " + d.String()) },
		Released: func(l *paddock.Lease, held time.Duration, err error) { note("released " + held.String()) },
	}}
	bubble(t, opts, func(t *testing.T, s *server, k *Keeper) {
		l := mustAcquire(t, k, "a", nil)
		_, _ = k.TryAcquire(t.Context(), "a", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = k.Acquire(ctx, "a", nil)
		got := waiters(t, k, "a", 1)
		time.Sleep(time.Second)
		l.Release(t.Context())
		(<-got).Release(t.Context())
		want := []string{
			"acquired a 0s", "contended a 15s", "contended a 15s", "waited in vain 1s", "contended a 14s",
			"released 2s", "waited 1s", "acquired a 1s", "released 0s",
		}
		mu.Lock()
		defer mu.Unlock()
		if len(events) != len(want) {
			t.Fatalf("events %q, want %q", events, want)
		}
		for i := range want {
			if events[i] != want[i] && !(i == 5 || i == 6 || i == 7) { // a release and its waiter run side by side
				t.Errorf("event %d: %q, want %q", i, events[i], want[i])
			}
		}
	})
}
