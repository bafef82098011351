package stampede_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
)

var errLuck = errors.New("no luck")

// failing is a load that fails.
func (f *fleet) failing(takes time.Duration) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		f.loads.Add(1)
		time.Sleep(takes)
		return "", errLuck
	}
}

func TestFailureReachesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, ErrorTTL: 10 * time.Second}
		caches := []*stampede.Cache[string]{f.process(p, nil), f.process(p, nil), f.process(p, nil)}
		var wg sync.WaitGroup
		var own, remote atomic.Int64
		for i := range 300 {
			wg.Go(func() {
				_, err := caches[i%3].Get(t.Context(), "k", f.failing(200*time.Millisecond))
				r := (*stampede.RemoteError)(nil)
				switch {
				case errors.Is(err, errLuck):
					own.Add(1)
				case errors.As(err, &r) && r.Message == errLuck.Error() && r.Key == "k":
					remote.Add(1)
				default:
					t.Errorf("got %v, want the load's error or a RemoteError", err)
				}
			})
		}
		begun := time.Now()
		wg.Wait()
		if took := time.Since(begun); took > 220*time.Millisecond {
			t.Errorf("took %v: they failed one by one", took)
		}
		if n := f.loads.Load(); n != 1 || own.Load() != 100 || remote.Load() != 200 {
			t.Errorf("%d loads, %d calls with its error and %d with a remote one; want 1, 100, 200", n, own.Load(), remote.Load())
		}
		time.Sleep(9 * time.Second)
		if _, err := caches[0].Get(t.Context(), "k", f.load(0)); err == nil || errors.Is(err, errLuck) {
			t.Errorf("within ErrorTTL: %v, want a RemoteError", err)
		}
		time.Sleep(time.Second)
		if v, err := caches[1].Get(t.Context(), "k", f.load(0)); v != "value 2" || err != nil {
			t.Errorf("after ErrorTTL: %q, %v", v, err)
		}
	})
}

func TestStaleOnFailure(t *testing.T) {
	for _, p := range []stampede.Policy{
		{OnContention: stampede.ServeStale}, {OnContention: stampede.ServeStale, Refresh: stampede.Inline}, {OnContention: stampede.Wait},
	} {
		t.Run(p.OnContention.String()+" "+p.Refresh.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				p.TTL, p.StaleFor, p.ErrorTTL = time.Minute, time.Hour, 10*time.Second
				c := f.process(p, nil)
				f.expire(c, time.Minute)
				for range 3 {
					r, err := c.Lookup(t.Context(), "k", f.failing(10*time.Millisecond))
					if err != nil || r.Value != "old" || r.Status != stampede.Stale {
						t.Errorf("%+v, %v; want what is stale", r, err)
					}
					time.Sleep(time.Second)
				}
				r, err := c.Lookup(t.Context(), "k", f.failing(0))
				if remote := (*stampede.RemoteError)(nil); err != nil || !errors.As(r.Cause, &remote) {
					t.Errorf("%+v, %v; want the failure as its cause", r, err)
				}
				if n := f.loads.Load(); n != 1 {
					t.Errorf("%d loads within ErrorTTL, want 1", n)
				}
			})
		})
	}
}

func TestNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, NotFoundTTL: 10 * time.Second, StaleFor: time.Hour}, nil)
		f.expire(c, time.Minute)
		none := func(context.Context) (string, error) {
			f.loads.Add(1)
			return "", errors.Join(errors.New("no rows"), stampede.ErrNotFound)
		}
		if _, err := c.Get(t.Context(), "k", none); err != nil { // stale, and replaced behind it
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Second)
		for range 3 {
			if _, err := c.Get(t.Context(), "k", none); !errors.Is(err, stampede.ErrNotFound) {
				t.Errorf("got %v, want ErrNotFound", err)
			}
		}
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads within NotFoundTTL, want 1", n)
		}
		time.Sleep(10 * time.Second)
		if v, err := c.Get(t.Context(), "k", f.load(0)); v != "value 2" || err != nil {
			t.Errorf("after NotFoundTTL: %q, %v", v, err)
		}
	})
}

func TestBackgroundPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		var seen atomic.Value
		c := f.process(stampede.Policy{TTL: time.Minute, StaleFor: time.Hour}, &stampede.Options[string]{
			Observer: &stampede.Observer{Loaded: func(_ string, _ time.Duration, err error) { seen.Store(err) }},
		})
		f.expire(c, time.Minute)
		if v, err := c.Get(t.Context(), "k", func(context.Context) (string, error) { panic("in the background") }); v != "old" || err != nil {
			t.Errorf("%q, %v", v, err)
		}
		time.Sleep(time.Second)
		if p, ok := seen.Load().(*stampede.PanicError); !ok || p.Value != "in the background" || len(p.Stack) == 0 {
			t.Errorf("the observer saw %v, want the panic", seen.Load())
		}
		f.unlocked("k")
	})
}

func TestStoreDown(t *testing.T) {
	for _, on := range []stampede.Recourse{stampede.Load, stampede.Fail} {
		t.Run(on.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				var down atomic.Int64
				p := stampede.Policy{Pattern: "*", TTL: time.Minute, OnStoreDown: on, MaxConcurrentLoads: 3}
				c := f.process(p, &stampede.Options[string]{Observer: &stampede.Observer{StoreDown: func(string, error) { down.Add(1) }}})
				f.store.Cut()
				begun := time.Now()
				var wg sync.WaitGroup
				for i := range 90 {
					wg.Go(func() {
						r, err := c.Lookup(t.Context(), string(rune('a'+i%9)), f.load(100*time.Millisecond))
						if on == stampede.Fail && !errors.Is(err, stampede.ErrStoreDown) {
							t.Errorf("got %v, want ErrStoreDown", err)
						}
						if on == stampede.Load && (err != nil || r.Status != stampede.Bypassed && r.Status != stampede.Waited || !errors.Is(r.Cause, stampede.ErrStoreDown)) {
							t.Errorf("%+v, %v; want it bypassed, with the cause", r, err)
						}
					})
				}
				wg.Wait()
				if took := time.Since(begun); took > 4*time.Second {
					t.Errorf("took %v", took)
				}
				if n := f.most.Load(); n > 3 {
					t.Errorf("%d loads at a time, want MaxConcurrentLoads (3)", n)
				}
				if n := f.loads.Load(); on == stampede.Fail && n != 0 || on == stampede.Load && n > 18 {
					t.Errorf("%d loads of nine keys", n)
				}
				if down.Load() == 0 {
					t.Error("the observer was not told")
				}
				f.store.Restore()
				time.Sleep(time.Second)
				r, err := c.Lookup(t.Context(), "a", f.load(0))
				if err != nil || r.Status != stampede.Loaded {
					t.Errorf("once the store is back: %+v, %v", r, err)
				}
			})
		})
	}
}

func TestLockerDown(t *testing.T) {
	for _, on := range []stampede.Recourse{stampede.Load, stampede.Fail} {
		t.Run(on.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				var down atomic.Int64
				l := &leases{Locker: f.lock, err: paddock.ErrUnavailable}
				c := f.process(stampede.Policy{TTL: time.Minute, OnLockerDown: on, Locker: l, MaxConcurrentLoads: 3},
					&stampede.Options[string]{Observer: &stampede.Observer{LockerDown: func(string, error) { down.Add(1) }}})
				var wg sync.WaitGroup
				for i := range 90 {
					wg.Go(func() {
						r, err := c.Lookup(t.Context(), string(rune('a'+i%9)), f.load(100*time.Millisecond))
						switch {
						case on == stampede.Fail:
							if !errors.Is(err, stampede.ErrLockerDown) || !errors.Is(err, paddock.ErrUnavailable) {
								t.Errorf("got %v, want ErrLockerDown with the locker's error", err)
							}
						case err != nil || r.Status == stampede.Bypassed && !errors.Is(r.Cause, stampede.ErrLockerDown):
							t.Errorf("%+v, %v; want it bypassed, with the cause", r, err)
						}
					})
				}
				wg.Wait()
				if n := f.most.Load(); n > 3 {
					t.Errorf("%d loads at a time, want MaxConcurrentLoads (3)", n)
				}
				if n := f.loads.Load(); on == stampede.Fail && n != 0 || on == stampede.Load && n != 9 {
					t.Errorf("%d loads of nine keys", n)
				}
				if n := down.Load(); n == 0 || n > 9 {
					t.Errorf("the observer was told %d times", n)
				}
				l.err = nil
				time.Sleep(time.Second)
				r, err := c.Lookup(t.Context(), "z", f.load(0))
				if err != nil || r.Status != stampede.Loaded {
					t.Errorf("once the locker is back: %+v, %v", r, err)
				}
			})
		})
	}
}

func TestUndecodable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		var undecodable atomic.Int64
		c := f.process(stampede.Policy{TTL: time.Minute}, &stampede.Options[string]{
			Observer: &stampede.Observer{Undecodable: func(string, error) { undecodable.Add(1) }},
		})
		for _, e := range []stampede.Entry{
			{Kind: stampede.Value, Value: []byte("not JSON"), TTL: time.Hour}, {Kind: stampede.Foreign, TTL: time.Hour},
		} {
			if err := f.store.Set(t.Context(), "default/k", e); err != nil {
				t.Fatal(err)
			}
			undecodable.Store(0)
			if r, err := c.Lookup(t.Context(), "k", f.load(0)); err != nil || r.Status != stampede.Loaded {
				t.Errorf("%+v, %v; want it loaded", r, err)
			}
			if undecodable.Load() == 0 {
				t.Error("the observer was not told")
			}
			if r, err := c.Lookup(t.Context(), "k", f.load(0)); err != nil || r.Status != stampede.Fresh {
				t.Errorf("afterwards: %+v, %v", r, err)
			}
		}
	})
}

// promising is a Locker that promises more than it is.
type promising struct{ paddock.Locker }

func (promising) Guarantees() paddock.Guarantees {
	return paddock.Guarantees{Backend: "promising", Exclusion: paddock.Consensus, Fencing: fencing.Durable, MinTTL: 10 * time.Millisecond}
}

func TestLeaseLost(t *testing.T) {
	for _, cost := range []stampede.Cost{stampede.Wasteful, stampede.Harmful} {
		t.Run(cost.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				c := f.process(stampede.Policy{TTL: time.Minute, Cost: cost, Locker: promising{f.lock}}, nil)
				ended := false
				time.AfterFunc(100*time.Millisecond, func() { f.lock.Expire("cache/default/k") })
				r, err := c.Lookup(t.Context(), "k", func(ctx context.Context) (string, error) {
					select {
					case <-time.After(200 * time.Millisecond):
					case <-ctx.Done():
						ended = true
					}
					return "v", nil
				})
				switch cost {
				case stampede.Wasteful:
					if r.Value != "v" || r.Status != stampede.Loaded || err != nil || ended {
						t.Errorf("%+v, %v, ended: %v; want the value, and the load to go on", r, err, ended)
					}
					if r, err := c.Lookup(t.Context(), "k", f.load(0)); r.Value != "v" || err != nil {
						t.Errorf("it was not stored, though nothing newer was: %+v, %v", r, err)
					}
				case stampede.Harmful:
					if !errors.Is(err, stampede.ErrLeaseLost) || !errors.Is(err, paddock.ErrLost) || !ended {
						t.Errorf("%+v, %v, ended: %v; want it refused, and its context to end", r, err, ended)
					}
					if r, err := c.Lookup(t.Context(), "k", f.load(0)); r.Value != "value 1" || err != nil {
						t.Errorf("afterwards: %+v, %v", r, err)
					}
				}
			})
		})
	}
}

// TestHungHarmfulLoad: the lock of a harmful key is held for as long as its load may be at work, though its callers are not.
func TestHungHarmfulLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{
			TTL: time.Minute, Cost: stampede.Harmful, Locker: promising{f.lock}, LoadTimeout: time.Second, LockTTL: 10 * time.Second, ErrorTTL: -1,
		}, nil)
		begun := time.Now()
		hung := func(context.Context) (string, error) { time.Sleep(5 * time.Second); return "", nil }
		if _, err := c.Get(t.Context(), "k", hung); !errors.Is(err, stampede.ErrLoadTimeout) || time.Since(begun) > 1200*time.Millisecond {
			t.Errorf("%v after %v, want ErrLoadTimeout after a second", err, time.Since(begun))
		}
		if _, err := paddock.Inspect(t.Context(), f.lock, "cache/default/k"); err != nil {
			t.Errorf("the lock is not held while the load hangs: %v", err)
		}
		time.Sleep(5 * time.Second)
		f.unlocked("k")
	})
}

// TestDeposedLoaders: a loader slower than its lock does not livelock its key: loads are bounded, and one is cached in the end.
func TestDeposedLoaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
		var caches []*stampede.Cache[string]
		for range 8 {
			caches = append(caches, f.process(p, nil))
		}
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-time.After(300 * time.Millisecond): // every load takes longer than that
					f.lock.Expire("cache/default/k")
				case <-stop:
					return
				}
			}
		}()
		begun := time.Now()
		herd(t, 20, f.load(time.Second), caches...)
		if took := time.Since(begun); took > 2100*time.Millisecond {
			t.Errorf("took %v, want no more than the last load that began before the first one ended", took)
		}
		time.Sleep(2 * time.Second)
		close(stop)
		if n := f.loads.Load(); n > 4 {
			t.Errorf("%d loads, want no more than holders in the time of one", n)
		}
		if r, err := caches[7].Lookup(t.Context(), "k", f.load(0)); err != nil || r.Status != stampede.Fresh {
			t.Errorf("in the end: %+v, %v; want it cached", r, err)
		}
	})
}

// TestChangeOfBackend: while a fleet changes the Locker of a key, there is one load for each of the two, and nothing stays old.
func TestChangeOfBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		other := memlock.New(&memlock.Options{Domain: "other", Latency: rtt})
		defer other.Close()
		p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
		was, is := f.process(p, nil), (*stampede.Cache[string])(nil)
		p.Locker = other
		is = f.process(p, nil)
		for round := range 5 {
			f.loads.Store(0)
			herd(t, 50, f.load(100*time.Millisecond), was, is)
			if n := f.loads.Load(); n < 1 || n > 2 {
				t.Errorf("round %d: %d loads over two lockers, want one each at most", round, n)
			}
			source := "changed"
			changed := func(context.Context) (string, error) { return source, nil }
			if err := was.Invalidate(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			for _, c := range []*stampede.Cache[string]{is, was} {
				if v, err := c.Get(t.Context(), "k", changed); v != source || err != nil {
					t.Errorf("round %d: after a change %q, %v", round, v, err)
				}
			}
			time.Sleep(2 * time.Minute)
		}
	})
}
