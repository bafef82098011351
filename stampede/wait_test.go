package stampede_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/stampede"
)

// expire gives key a value and lets its TTL pass.
func (f *fleet) expire(c *stampede.Cache[string], ttl time.Duration) {
	f.t.Helper()
	if err := c.Set(f.t.Context(), "k", "old"); err != nil {
		f.t.Fatal(err)
	}
	time.Sleep(ttl + ttl/5)
}

// elsewhere holds the lock of key as another program would, until the returned function is called.
func (f *fleet) elsewhere(opts *paddock.Options) (release func()) {
	f.t.Helper()
	lease, err := f.lock.TryAcquire(f.t.Context(), "cache/default/k", opts)
	if err != nil {
		f.t.Fatal(err)
	}
	return func() {
		if err := lease.Release(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	}
}

func TestServeStaleInBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, StaleFor: time.Hour}
		caches := []*stampede.Cache[string]{f.process(p, nil), f.process(p, nil), f.process(p, nil), f.process(p, nil)}
		f.expire(caches[0], time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		before, begun := f.commands.Load(), time.Now()
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				r, err := caches[i%4].Lookup(ctx, "k", f.load(200*time.Millisecond))
				if err != nil || r.Value != "old" || r.Status != stampede.Stale || r.Age < time.Minute || r.Cause != nil {
					t.Errorf("%+v, %v; want what is stale", r, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begun); took > 5*rtt {
			t.Errorf("callers that were served stale took %v", took)
		}
		cancel() // the request is over; the refresh is not
		time.Sleep(time.Second)
		if n, cmds := f.loads.Load(), f.commands.Load()-before; n != 1 || cmds > 40 {
			t.Errorf("%d loads and %d commands, want 1 and at most 40", n, cmds)
		}
		r, err := caches[1].Lookup(t.Context(), "k", f.load(0))
		if err != nil || r.Value != "value 1" || r.Status != stampede.Fresh {
			t.Errorf("after the refresh: %+v, %v", r, err)
		}
		f.unlocked("k")
	})
}

func TestServeStaleInline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, StaleFor: time.Hour, Refresh: stampede.Inline}
		caches := []*stampede.Cache[string]{f.process(p, nil), f.process(p, nil)}
		f.expire(caches[0], time.Minute)
		statuses := map[stampede.Status]int{}
		for _, r := range herd(t, 50, f.load(200*time.Millisecond), caches...) {
			statuses[r.Status]++
		}
		if statuses[stampede.Loaded] != 1 || statuses[stampede.Stale] != 99 || f.loads.Load() != 1 {
			t.Errorf("served %v with %d loads; want one that loaded, and the others stale", statuses, f.loads.Load())
		}
	})
}

func TestWaitersAreWoken(t *testing.T) {
	for name, end := range map[string]func() (string, error){
		"by a value":     func() (string, error) { return "v", nil },
		"by not found":   func() (string, error) { return "", stampede.ErrNotFound },
		"by a failure":   func() (string, error) { return "", errors.New("no luck") },
		"by a panic":     func() (string, error) { panic("no luck") },
		"by cancelation": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
				loader, waiter := f.process(p, nil), f.process(p, nil)
				const takes = 1234 * time.Millisecond
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				begun := time.Now()
				go loader.Get(ctx, "k", func(ctx context.Context) (string, error) {
					if end == nil {
						<-ctx.Done()
						return "", ctx.Err()
					}
					time.Sleep(takes)
					return end()
				})
				if end == nil {
					time.AfterFunc(takes, cancel)
				}
				time.Sleep(10 * rtt)
				_, err := waiter.Get(t.Context(), "k", f.load(0))
				if late := time.Since(begun) - takes; late < 0 || late > 10*time.Millisecond {
					t.Errorf("woken %v after the load had ended (%v)", late, err)
				}
			})
		})
	}
}

func TestWaitersPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		l := &leases{Locker: f.lock}
		c, err := stampede.New[string](deaf{f.store}, stampede.Policies{{Pattern: "*", TTL: time.Minute, Locker: l}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		release := f.elsewhere(nil)
		time.AfterFunc(3*time.Second, func() {
			if err := f.store.Set(context.Background(), "default/k", stampede.Entry{Kind: stampede.Value, Value: []byte(`"v"`), TTL: time.Minute}); err != nil {
				t.Error(err)
			}
		})
		begun := time.Now()
		v, err := c.Get(t.Context(), "k", f.load(0))
		if late := time.Since(begun) - 3*time.Second; v != "v" || err != nil || late > 150*time.Millisecond {
			t.Errorf("without hints: %q, %v, %v after it was there", v, err, late)
		}
		if l.tried.Load() > 31 {
			t.Errorf("%d tries in 3 s, want at most one in 100 ms", l.tried.Load())
		}
		release()
	})
}

// deaf is a Store whose hints are all lost.
type deaf struct{ stampede.Store }

func (deaf) Watch(context.Context, string) (<-chan struct{}, error) { return make(chan struct{}), nil }

func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		const lockTTL = 2 * time.Second
		c := f.process(stampede.Policy{TTL: time.Minute, LockTTL: lockTTL}, nil)
		f.elsewhere(&paddock.Options{TTL: lockTTL, NoRenew: true}) // and dies
		begun := time.Now()
		herd(t, 50, f.load(0), c)
		if took := time.Since(begun); took < lockTTL*95/100 || took > lockTTL+200*time.Millisecond {
			t.Errorf("a dead loader was replaced after %v, want LockTTL (%v) and at most 200 ms", took, lockTTL)
		}
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads", n)
		}
	})
}

func TestMaxWait(t *testing.T) {
	const maxWait = 300 * time.Millisecond
	for name, c := range map[string]struct {
		p     stampede.Policy
		stale bool
		want  stampede.Status
		err   error
	}{
		"fail":              {p: stampede.Policy{}, err: stampede.ErrWaitTimeout},
		"load":              {p: stampede.Policy{AfterMaxWait: stampede.Load}, want: stampede.Bypassed},
		"stale, if there":   {p: stampede.Policy{OnContention: stampede.Wait, StaleFor: time.Hour}, stale: true, want: stampede.Stale},
		"stale before load": {p: stampede.Policy{OnContention: stampede.Wait, StaleFor: time.Hour, AfterMaxWait: stampede.Load}, stale: true, want: stampede.Stale},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				c.p.TTL, c.p.MaxWait = time.Minute, maxWait
				cache := f.process(c.p, nil)
				if c.stale {
					f.expire(cache, time.Minute)
				}
				release := f.elsewhere(nil)
				defer release()
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						begun := time.Now()
						r, err := cache.Lookup(t.Context(), "k", f.load(10*time.Millisecond))
						took := time.Since(begun)
						if r.Status != c.want && r.Status != stampede.Fresh || c.err != nil && !errors.Is(err, c.err) || c.err == nil && err != nil {
							t.Errorf("%+v, %v; want %v, %v", r, err, c.want, c.err)
						}
						if r.Status == c.want && c.err == nil && !errors.Is(r.Cause, stampede.ErrWaitTimeout) {
							t.Errorf("its cause is %v", r.Cause)
						}
						if took < maxWait || took > maxWait+50*time.Millisecond {
							t.Errorf("after %v, want MaxWait (%v)", took, maxWait)
						}
					})
				}
				wg.Wait()
				if n, want := f.loads.Load(), map[bool]int64{true: 1}[c.want == stampede.Bypassed]; n != want {
					t.Errorf("%d loads in this process, want %d", n, want)
				}
			})
		})
	}
}

func TestOwnLoadIsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: 2 * time.Second, LockTTL: time.Second, MaxWait: time.Second, LoadTimeout: 20 * time.Second}, nil)
		r, err := c.Lookup(t.Context(), "k", f.load(5*time.Second))
		if err != nil || r.Status != stampede.Loaded {
			t.Errorf("a load longer than TTL, LockTTL and MaxWait: %+v, %v", r, err)
		}
	})
}

func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, OnContention: stampede.Fail, StaleFor: time.Hour}, nil)
		f.expire(c, time.Minute)
		release := f.elsewhere(nil)
		begun := time.Now()
		for range 20 {
			if _, err := c.Get(t.Context(), "k", f.load(0)); !errors.Is(err, stampede.ErrContended) {
				t.Errorf("got %v, want ErrContended", err)
			}
		}
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("20 failures took %v", took)
		}
		release()
		time.Sleep(100 * time.Millisecond)
		if v, err := c.Get(t.Context(), "k", f.load(0)); v != "value 1" || err != nil {
			t.Errorf("once it is free: %q, %v", v, err)
		}
	})
}

// TestHeldBackOff: after ErrHeld no try for that key in this process for min(RetryAfter, 100 ms), and each key by itself.
func TestHeldBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		l := &leases{Locker: f.lock}
		c, err := stampede.New[string](f.store, stampede.Policies{{Pattern: "*", TTL: time.Minute, StaleFor: time.Hour, Locker: l}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f.expire(c, time.Minute)
		release := f.elsewhere(nil)
		end := time.Now().Add(time.Second)
		for time.Now().Before(end) {
			if r, err := c.Lookup(t.Context(), "k", f.load(0)); r.Status != stampede.Stale || err != nil {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if l.tried.Load() < 9 || l.tried.Load() > 11 {
			t.Errorf("%d tries in a second, want 10", l.tried.Load())
		}
		if r, err := c.Lookup(t.Context(), "another", f.load(0)); r.Status != stampede.Loaded || err != nil {
			t.Errorf("another key is held back too: %+v, %v", r, err)
		}
		release()
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c, other := f.process(stampede.Policy{TTL: time.Minute}, nil), f.process(stampede.Policy{TTL: time.Minute}, nil)
		var wg sync.WaitGroup
		for _, c := range []*stampede.Cache[string]{c, c, other} {
			wg.Go(func() {
				if _, err := c.Get(t.Context(), "k", f.load(time.Hour)); !errors.Is(err, stampede.ErrClosed) {
					t.Errorf("a call during Close got %v, want ErrClosed", err)
				}
			})
			time.Sleep(10 * rtt)
		}
		begun := time.Now()
		for _, c := range []*stampede.Cache[string]{other, c, c} {
			if err := c.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
		wg.Wait()
		if took := time.Since(begun); took > 100*time.Millisecond {
			t.Errorf("Close took %v", took)
		}
		f.unlocked("k")
		if _, err := c.Get(t.Context(), "k", f.load(0)); !errors.Is(err, stampede.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := c.Set(t.Context(), "k", "v"); !errors.Is(err, stampede.ErrClosed) {
			t.Errorf("Set after Close: %v", err)
		}
	})
}

func TestCloseWithHungLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		go c.Get(t.Context(), "k", func(context.Context) (string, error) { time.Sleep(time.Hour); return "", nil })
		time.Sleep(10 * rtt)
		begun := time.Now()
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("Close took %v for a load that ignores its context", took)
		}
		f.unlocked("k")
		time.Sleep(2 * time.Hour)
	})
}
