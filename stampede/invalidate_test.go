package stampede_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
)

// TestInvalidateDuringLoad: what a load read before an invalidation is neither stored nor served to who asks after it, here and in
// another process.
func TestInvalidateDuringLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
		var refused atomic.Int64
		loader := f.process(p, &stampede.Options[string]{Observer: &stampede.Observer{
			Stored: func(_ string, o stampede.Outcome, _ error) {
				if o == stampede.Invalidated {
					refused.Add(1)
				}
			},
		}})
		other := f.process(p, nil)
		var source atomic.Value
		source.Store("old")
		load := func(context.Context) (string, error) {
			v := source.Load().(string)
			time.Sleep(100 * time.Millisecond)
			return v, nil
		}
		var wg sync.WaitGroup
		wg.Go(func() { // began before the change, so either answer is right
			if _, err := loader.Get(t.Context(), "k", load); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(50 * time.Millisecond)
		source.Store("new")
		if err := other.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		for _, c := range []*stampede.Cache[string]{loader, other, loader, other} {
			wg.Go(func() {
				if v, err := c.Get(t.Context(), "k", load); v != "new" || err != nil {
					t.Errorf("who asked after the change got %q, %v", v, err)
				}
			})
		}
		wg.Wait()
		if refused.Load() != 1 {
			t.Errorf("%d results were fenced off, want 1", refused.Load())
		}
		if r, err := other.Lookup(t.Context(), "k", load); err != nil || r.Value != "new" || r.Status != stampede.Fresh {
			t.Errorf("in the end: %+v, %v", r, err)
		}
	})
}

// TestLateJoiner: who asks when the result was sent to the store, but the answer is not back, does not take it: an invalidation
// may have come between.
func TestLateJoiner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		st := &slowPut{Store: f.store, stored: make(chan struct{}), answer: make(chan struct{})}
		c, err := stampede.New[string](st, stampede.Policies{{Pattern: "*", TTL: time.Minute}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		source := "old"
		load := func(context.Context) (string, error) { return source, nil }
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = c.Get(t.Context(), "k", load) })
		<-st.stored
		source = "new"
		if err := c.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if v, err := c.Get(t.Context(), "k", load); v != "new" || err != nil {
				t.Errorf("who asked after the change got %q, %v", v, err)
			}
		})
		synctest.Wait()
		close(st.answer)
		wg.Wait()
	})
}

// slowPut is a Store whose first Put is answered late.
type slowPut struct {
	stampede.Store
	once           sync.Once
	stored, answer chan struct{}
}

func (s *slowPut) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	o, err := s.Store.Put(ctx, key, t, e)
	s.once.Do(func() {
		close(s.stored)
		<-s.answer
	})
	return o, err
}

func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		go c.Get(t.Context(), "k", f.load(100*time.Millisecond))
		time.Sleep(50 * time.Millisecond)
		if err := c.Set(t.Context(), "k", "set"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if r, err := c.Lookup(t.Context(), "k", f.load(0)); r.Value != "set" || err != nil || r.Status != stampede.Fresh {
			t.Errorf("a load that was under way has replaced what was set: %+v, %v", r, err)
		}
	})
}

func TestRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, ErrorTTL: time.Minute}
		c, other := f.process(p, nil), f.process(p, nil)
		if err := c.Set(t.Context(), "k", "old"); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				r, err := []*stampede.Cache[string]{c, other}[i%2].Refresh(t.Context(), "k", f.load(100*time.Millisecond))
				if err != nil || r.Value != "value 1" || r.Status != stampede.Loaded && r.Status != stampede.Waited {
					t.Errorf("%+v, %v; want what one of them loaded", r, err)
				}
			})
		}
		time.Sleep(20 * time.Millisecond)
		if r, err := c.Lookup(t.Context(), "k", f.load(0)); err != nil || r.Value != "old" || r.Status != stampede.Fresh {
			t.Errorf("meanwhile: %+v, %v; want what there is", r, err)
		}
		wg.Wait()
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads for 20 refreshes at once, want 1", n)
		}
		if _, err := c.Refresh(t.Context(), "k", f.failing(0)); err == nil {
			t.Error("a refresh whose load fails: no error")
		}
		if r, err := c.Lookup(t.Context(), "k", f.load(0)); err != nil || r.Value != "value 1" {
			t.Errorf("after a refresh that failed: %+v, %v", r, err)
		}
		if r, err := c.Refresh(t.Context(), "k", f.load(0)); err != nil || r.Status != stampede.Loaded {
			t.Errorf("a refresh after a failure: %+v, %v; want that it tries", r, err)
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
