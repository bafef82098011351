package stampede_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

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

// TestLoadThatNeverEnds: MaxHold ends the renewal of a harmful key's lock, so that a load that hangs for ever does not hold it as long.
func TestLoadThatNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{
			TTL: time.Minute, Cost: stampede.Harmful, Locker: promising{f.lock}, LoadTimeout: time.Second, LockTTL: 10 * time.Second, ErrorTTL: -1,
		}, nil)
		if _, err := c.Get(t.Context(), "k", func(context.Context) (string, error) { time.Sleep(10 * time.Hour); return "", nil }); !errors.Is(err, stampede.ErrLoadTimeout) {
			t.Errorf("%v, want ErrLoadTimeout", err)
		}
		time.Sleep(15 * time.Second) // LoadTimeout, LockTTL, and the store's share
		f.unlocked("k")
		if v, err := c.Get(t.Context(), "k", f.load(0)); v != "value 1" || err != nil {
			t.Errorf("afterwards: %q, %v", v, err)
		}
		time.Sleep(10 * time.Hour)
	})
}

// TestLoadSlowerThanEverything: a load that takes longer than TTL, stale window and LockTTL is made once, and is cached.
func TestLoadSlowerThanEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: 2 * time.Second, LockTTL: time.Second, LoadTimeout: 10 * time.Second, OnContention: stampede.Wait}
		caches := []*stampede.Cache[string]{f.process(p, nil), f.process(p, nil)}
		for _, r := range herd(t, 50, f.load(5*time.Second), caches...) {
			if r.Value != "value 1" {
				t.Errorf("%+v, want the one value that was loaded", r)
			}
		}
		if r, err := caches[1].Lookup(t.Context(), "k", f.load(0)); err != nil || r.Status != stampede.Fresh || f.loads.Load() != 1 {
			t.Errorf("afterwards: %+v, %v, %d loads; want it cached", r, err, f.loads.Load())
		}
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
