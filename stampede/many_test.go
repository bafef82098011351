package stampede_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// many is a load of several keys, which takes a while and notes what it was asked for.
type many struct {
	takes time.Duration
	mu    sync.Mutex
	asked [][]string
}

func (m *many) calls() [][]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.asked)
}

func (m *many) load(ctx context.Context, keys []string) (map[string]string, error) {
	m.mu.Lock()
	m.asked = append(m.asked, slices.Sorted(slices.Values(keys)))
	m.mu.Unlock()
	select {
	case <-time.After(m.takes):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	values := map[string]string{}
	for _, key := range keys {
		if key != "none" {
			values[key] = "value of " + key
		}
	}
	return values, nil
}

func TestGetMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		m := &many{takes: 50 * time.Millisecond}
		keys := []string{"a", "b", "none", "c", "a"}
		want := map[string]string{"a": "value of a", "b": "value of b", "c": "value of c"}
		if got, err := c.GetMany(t.Context(), keys, m.load); err != nil || !maps.Equal(got, want) {
			t.Errorf("cold: %v, %v", got, err)
		}
		if len(m.calls()) != 1 || fmt.Sprint(m.calls()) != "[[a b c none]]" {
			t.Errorf("loaded %v, want all in one call", m.calls())
		}
		before := f.commands.Load()
		if got, err := c.GetMany(t.Context(), keys, m.load); err != nil || !maps.Equal(got, want) {
			t.Errorf("warm: %v, %v", got, err)
		}
		if n := f.commands.Load() - before; n != 1 || len(m.calls()) != 1 {
			t.Errorf("hits cost %d commands and %d loads, want one round trip", n, len(m.calls())-1)
		}
		if err := c.Invalidate(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		rs, err := c.LookupMany(t.Context(), keys, m.load)
		if err != nil || rs["a"].Status != stampede.Fresh || rs["b"].Status != stampede.Loaded || !rs["b"].Fence.Token.Valid() {
			t.Errorf("one of them cold: %+v, %v", rs, err)
		}
		if got, err := c.GetMany(t.Context(), nil, m.load); err != nil || len(got) != 0 {
			t.Errorf("no keys: %v, %v", got, err)
		}
		for _, key := range keys {
			f.unlocked(key)
		}
	})
}

// TestGetManyCrossed: who asks for (a, b) and who asks for (b, a) never wait for each other, and nothing is loaded twice.
func TestGetManyCrossed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
		caches := []*stampede.Cache[string]{f.process(p, nil), f.process(p, nil), f.process(p, nil)}
		m := &many{takes: 100 * time.Millisecond}
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				keys := []string{"a", "b", "c", "d"}
				if i%2 == 1 {
					slices.Reverse(keys)
				}
				got, err := caches[i%3].GetMany(t.Context(), keys[i%3:], m.load)
				if err != nil || len(got) != 4-i%3 {
					t.Errorf("%v, %v", got, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begun); took > 120*time.Millisecond {
			t.Errorf("took %v for loads of 100 ms: one waited for another", took)
		}
		loaded := slices.Sorted(slices.Values(slices.Concat(m.calls()...)))
		if fmt.Sprint(loaded) != "[a b c d]" {
			t.Errorf("loaded %v, want each once", m.calls())
		}
	})
}

// TestGetManyWaitsLast: what was won is stored and free before anything is waited for.
func TestGetManyWaitsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
		c, other := f.process(p, nil), f.process(p, nil)
		release := f.elsewhere(nil) // "k"
		m := &many{takes: 10 * time.Millisecond}
		var got map[string]string
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			got, err = c.GetMany(t.Context(), []string{"a", "k", "b"}, m.load)
		}()
		time.Sleep(50 * time.Millisecond)
		f.unlocked("a")
		f.unlocked("b")
		if r, err := other.Lookup(t.Context(), "a", f.load(0)); err != nil || r.Status != stampede.Fresh {
			t.Errorf("while k is waited for a is not stored: %+v, %v", r, err)
		}
		release()
		<-done
		if err != nil || len(got) != 3 || fmt.Sprint(m.calls()) != "[[a b] [k]]" {
			t.Errorf("%v, %v; loaded %v", got, err, m.calls())
		}
	})
}

func TestGetManyFails(t *testing.T) {
	for name, c := range map[string]struct {
		load  func(context.Context, []string) (map[string]string, error)
		check func(error) bool
	}{
		"error": {func(context.Context, []string) (map[string]string, error) { return nil, errLuck }, is(errLuck)},
		"panic": {func(context.Context, []string) (map[string]string, error) { panic(errLuck) }, func(err error) bool {
			p := (*stampede.PanicError)(nil)
			return errors.As(err, &p) && errors.Is(err, errLuck)
		}},
		"hangs": {func(context.Context, []string) (map[string]string, error) { time.Sleep(time.Hour); return nil, nil }, is(stampede.ErrLoadTimeout)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				cache := f.process(stampede.Policy{TTL: time.Minute, LoadTimeout: time.Second, ErrorTTL: -1}, nil)
				if err := cache.Set(t.Context(), "warm", "v"); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for range 10 { // one leads, the others follow
					wg.Go(func() {
						got, err := cache.GetMany(t.Context(), []string{"a", "warm", "b"}, c.load)
						m := (*stampede.ManyError)(nil)
						if !errors.As(err, &m) || len(m.Errors) != 2 || !c.check(m.Errors["a"]) || !c.check(m.Errors["b"]) {
							t.Errorf("%v", err)
						}
						if len(got) != 1 || got["warm"] != "v" {
							t.Errorf("beside the error there is %v, want what could be had", got)
						}
					})
				}
				wg.Wait()
				f.unlocked("a")
				f.unlocked("b")
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

func TestGetManyStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, MaxConcurrentLoads: 2}, nil)
		f.store.Cut()
		m := &many{takes: 50 * time.Millisecond}
		var keys []string
		for i := range 100 {
			keys = append(keys, fmt.Sprint("k", i))
		}
		rs, err := c.LookupMany(t.Context(), keys, m.load)
		if err != nil || len(rs) != 100 || rs["k7"].Status != stampede.Bypassed || !errors.Is(rs["k7"].Cause, stampede.ErrStoreDown) {
			t.Errorf("%d results, %v", len(rs), err)
		}
		if len(m.calls()) != 1 {
			t.Errorf("%d loads, want one for all", len(m.calls()))
		}
	})
}

func TestGetManyStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, StaleFor: time.Hour}, nil)
		m := &many{takes: 50 * time.Millisecond}
		if _, err := c.GetMany(t.Context(), []string{"a", "b"}, m.load); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		rs, err := c.LookupMany(ctx, []string{"a", "b"}, m.load)
		if err != nil || rs["a"].Status != stampede.Stale || rs["b"].Status != stampede.Stale || time.Since(begun) > 2*rtt {
			t.Errorf("%+v, %v after %v", rs, err, time.Since(begun))
		}
		cancel()
		time.Sleep(time.Second)
		if fmt.Sprint(m.calls()) != "[[a b] [a b]]" {
			t.Errorf("loaded %v, want both replaced by one load", m.calls())
		}
	})
}

// TestGetManyHarmful: every key of a batch is loaded under a lock and a fence of its own, and losing one of them ends the load.
func TestGetManyHarmful(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute, Cost: stampede.Harmful, Locker: promising{f.lock}}, nil)
		var ended atomic.Bool
		time.AfterFunc(100*time.Millisecond, func() { f.lock.Expire("cache/default/b") })
		_, err := c.GetMany(t.Context(), []string{"a", "b"}, func(ctx context.Context, keys []string) (map[string]string, error) {
			a, ok1 := stampede.FenceOf(ctx, "a")
			b, ok2 := stampede.FenceOf(ctx, "b")
			if _, ok := stampede.FenceOf(ctx, "c"); !ok1 || !ok2 || ok || a.Owner == b.Owner {
				t.Errorf("fences %v and %v", a, b)
			}
			select {
			case <-ctx.Done():
				ended.Store(true)
			case <-time.After(time.Second):
			}
			return nil, ctx.Err()
		})
		m := (*stampede.ManyError)(nil)
		if !errors.As(err, &m) || !errors.Is(m.Errors["b"], stampede.ErrLeaseLost) || !ended.Load() {
			t.Errorf("%v, ended: %v", err, ended.Load())
		}
		f.unlocked("a")
	})
}
