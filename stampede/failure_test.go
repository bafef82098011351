package stampede_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
