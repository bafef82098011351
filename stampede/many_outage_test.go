package stampede_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/stampede"
)

// switched is a Locker that can be cut off.
type switched struct {
	paddock.Locker
	down *atomic.Bool
}

func (l switched) TryAcquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	if l.down.Load() {
		return nil, paddock.ErrUnavailable
	}
	return l.Locker.TryAcquire(ctx, key, opts)
}

func (l switched) Unwrap() paddock.Locker { return l.Locker }

// loadMany is load for several keys at a time.
func (f *fleet) loadMany(takes time.Duration) func(context.Context, []string) (map[string]string, error) {
	return func(ctx context.Context, keys []string) (map[string]string, error) {
		v, err := f.load(takes)(ctx)
		values := map[string]string{}
		for _, key := range keys {
			values[key] = v
		}
		return values, err
	}
}

func (f *fleet) holds(key string) *paddock.Lease {
	f.t.Helper()
	l, err := f.lock.TryAcquire(context.Background(), "cache/default/"+key, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return l
}

// TestGetManyEnds: the end of one caller's context is no reason for the others to load beside the lock's holder.
func TestGetManyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}, nil)
		holder := f.holds("a")
		var r stampede.Result[string]
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { r, err = c.Lookup(t.Context(), "a", f.load(0)) })
		time.Sleep(20 * rtt)
		ctx, cancel := context.WithTimeout(t.Context(), rtt/2)
		defer cancel()
		_, many := c.GetMany(ctx, []string{"a", "b"}, f.loadMany(0))
		if me := (*stampede.ManyError)(nil); !errors.As(many, &me) || len(me.Errors) != 2 || !errors.Is(me.Errors["b"], context.DeadlineExceeded) {
			t.Errorf("GetMany whose context ends: %v", many)
		}
		time.Sleep(time.Second)
		if n := f.loads.Load(); n != 0 {
			t.Errorf("%d loads while another process holds the lock", n)
		}
		if e := holder.Release(t.Context()); e != nil {
			t.Fatal(e)
		}
		wg.Wait()
		if err != nil || r.Status != stampede.Loaded {
			t.Errorf("who waited: %+v, %v; want it loaded", r, err)
		}
	})
}

// TestGetManyTooLate: keys that come too late for their batch, since they were held elsewhere, keep within MaxConcurrentLoads when the Locker
// goes down.
func TestGetManyTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		var down atomic.Bool
		c := f.process(stampede.Policy{
			TTL: time.Minute, OnContention: stampede.Wait, MaxConcurrentLoads: 3, Locker: switched{f.lock, &down},
		}, nil)
		var keys []string
		for i := range 20 {
			keys = append(keys, fmt.Sprint("k", i))
			f.holds(keys[i])
		}
		time.AfterFunc(500*time.Millisecond, func() { down.Store(true) })
		rs, err := c.LookupMany(t.Context(), keys, f.loadMany(100*time.Millisecond))
		if err != nil || len(rs) != len(keys) || rs["k7"].Status != stampede.Bypassed || !errors.Is(rs["k7"].Cause, stampede.ErrLockerDown) {
			t.Errorf("%d results, %+v, %v", len(rs), rs["k7"], err)
		}
		if n := f.most.Load(); n > 3 {
			t.Errorf("%d loads at a time, want MaxConcurrentLoads (3)", n)
		}
	})
}

// crowded is a cache whose keys b... have no Locker and room for one load, which is taken for two seconds.
func (f *fleet) crowded() *stampede.Cache[string] {
	f.t.Helper()
	down := new(atomic.Bool)
	down.Store(true)
	c, err := stampede.New[string](countedStore{f.store, &f.commands}, stampede.Policies{
		{Pattern: "a*", TTL: time.Minute, Locker: f.lock},
		{Pattern: "b*", TTL: time.Minute, MaxConcurrentLoads: 1, Locker: switched{f.lock, down}},
	}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	go func() {
		if _, err := c.Get(context.Background(), "b", f.load(2*time.Second)); err != nil {
			f.t.Error(err)
		}
	}()
	time.Sleep(10 * rtt)
	return c
}

// TestGetManyHoldsNothing: who has a lock does not wait with those who have none.
func TestGetManyHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.crowded()
		m := &many{takes: 100 * time.Millisecond}
		var wg sync.WaitGroup
		wg.Go(func() {
			rs, err := c.LookupMany(t.Context(), []string{"a", "b1", "b2"}, m.load)
			if err != nil || rs["a"].Status != stampede.Loaded || rs["b1"].Status != stampede.Bypassed || rs["b2"].Value != "value of b2" {
				t.Errorf("%+v, %v", rs, err)
			}
		})
		time.Sleep(200 * time.Millisecond)
		if fmt.Sprint(m.calls()) != "[[a]]" {
			t.Errorf("loaded %v while there is no room for b1 and b2, want a", m.calls())
		}
		f.unlocked("a")
		wg.Wait()
		if fmt.Sprint(m.calls()) != "[[a] [b1 b2]]" {
			t.Errorf("loaded %v, want a, then the others together", m.calls())
		}
	})
}

// TestGetManyLeavesTheQueue: who leaves the queue for room takes nobody along.
func TestGetManyLeavesTheQueue(t *testing.T) {
	for _, stays := range []string{"b1", "b2"} { // the one that came first, and the other
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t)
			c := f.crowded()
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := c.GetMany(ctx, []string{"b1", "b2"}, f.loadMany(0)); !errors.Is(err, context.Canceled) {
					t.Errorf("GetMany that was cancelled: %v", err)
				}
			})
			time.Sleep(100 * time.Millisecond)
			wg.Go(func() {
				if r, err := c.Lookup(t.Context(), stays, f.load(0)); err != nil || r.Value == "" {
					t.Errorf("who joined for %s: %+v, %v; want a value when there is room", stays, r, err)
				}
			})
			time.Sleep(100 * time.Millisecond)
			cancel()
			wg.Wait()
			if r, err := c.Lookup(t.Context(), "b3", f.load(0)); err != nil || r.Status != stampede.Bypassed {
				t.Errorf("afterwards: %+v, %v; want the room back", r, err)
			}
		})
	}
}

// TestStaleUntilJustNow: what was stale when the call began and is not when the lock turns out to be held is waited for.
func TestStaleUntilJustNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, Jitter: -1, StaleFor: time.Minute, Refresh: stampede.Inline}, nil)
		if err := c.Set(t.Context(), "a", "old"); err != nil {
			t.Fatal(err)
		}
		stored := time.Now()
		holder := f.holds("a")
		time.AfterFunc(2*time.Minute+time.Second, func() { holder.Release(context.Background()) })
		time.Sleep(time.Until(stored.Add(2*time.Minute - 2*rtt)))
		if r, err := c.Lookup(t.Context(), "a", f.load(0)); err != nil || r.Status != stampede.Loaded {
			t.Errorf("%+v, %v; want it loaded when the lock is free", r, err)
		}
	})
}

// uncomparable is a context such as some people make.
type uncomparable struct {
	context.Context
	_ map[string]any
}

func TestUncomparableContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newFleet(t).process(stampede.Policy{TTL: time.Minute}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // less than StoreTimeout
		defer cancel()
		odd := uncomparable{Context: ctx}
		if err := errors.Join(c.Set(odd, "a", "v"), c.Invalidate(odd, "a")); err != nil {
			t.Error(err)
		}
		if _, err := c.GetMany(odd, []string{"a"}, (&many{}).load); err != nil {
			t.Error(err)
		}
	})
}
