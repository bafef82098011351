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
	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

// rtt is what a command takes in these tests.
const rtt = time.Millisecond

// fleet is several processes' caches over one store and one lock service, with all commands counted.
type fleet struct {
	t        *testing.T
	store    *memstore.Store
	lock     *memlock.Locker
	commands atomic.Int64 // of stores and lockers
	loads    atomic.Int64
	most     atomic.Int64 // loads at one time
	now      atomic.Int64
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{t: t, store: memstore.New(&memstore.Options{Latency: rtt}), lock: memlock.New(&memlock.Options{Latency: rtt})}
	t.Cleanup(func() { f.lock.Close() })
	return f
}

// process is the cache of one process. Its Locker is one of its own unless p has Harmless.
func (f *fleet) process(p stampede.Policy, opts *stampede.Options[string]) *stampede.Cache[string] {
	f.t.Helper()
	if p.Pattern == "" {
		p.Pattern = "*"
	}
	if p.Locker == nil && p.Cost != stampede.Harmless {
		l := memlock.New(&memlock.Options{Latency: rtt, Shared: f.lock})
		f.t.Cleanup(func() { l.Close() })
		p.Locker = countedLocker{l, &f.commands}
	}
	c, err := stampede.New(countedStore{f.store, &f.commands}, stampede.Policies{p}, opts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// load returns a loader that takes a while and counts.
func (f *fleet) load(takes time.Duration) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		n := f.loads.Add(1)
		for now := f.now.Add(1); ; {
			if most := f.most.Load(); now <= most || f.most.CompareAndSwap(most, now) {
				break
			}
		}
		defer f.now.Add(-1)
		select {
		case <-time.After(takes):
			return fmt.Sprintf("value %d", n), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// unlocked checks that nobody holds a lease.
func (f *fleet) unlocked(key string) {
	f.t.Helper()
	if h, err := paddock.Inspect(context.Background(), f.lock, "cache/default/"+key); !errors.Is(err, paddock.ErrFree) {
		f.t.Errorf("after the calls have returned a lease is still held: %+v, %v", h, err)
	}
}

type countedStore struct {
	stampede.Store
	n *atomic.Int64
}

func (s countedStore) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	s.n.Add(1)
	return s.Store.Get(ctx, keys...)
}

func (s countedStore) Begin(ctx context.Context, key, id string, keep time.Duration) (stampede.Entry, stampede.Ticket, error) {
	s.n.Add(1)
	return s.Store.Begin(ctx, key, id, keep)
}

func (s countedStore) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	s.n.Add(1)
	return s.Store.Put(ctx, key, t, e)
}

func (s countedStore) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	s.n.Add(2) // and its end
	return s.Store.Watch(ctx, key)
}

type countedLocker struct {
	paddock.Locker
	n *atomic.Int64
}

func (l countedLocker) TryAcquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	l.n.Add(1)
	lease, err := l.Locker.TryAcquire(ctx, key, opts)
	if err == nil {
		l.n.Add(1) // its release
	}
	return lease, err
}

func (l countedLocker) Unwrap() paddock.Locker { return l.Locker }

// herd makes n calls at once, on each cache, and returns their results.
func herd(t *testing.T, n int, load func(context.Context) (string, error), caches ...*stampede.Cache[string]) []stampede.Result[string] {
	t.Helper()
	var wg sync.WaitGroup
	results := make([]stampede.Result[string], n*len(caches))
	for i := range results {
		wg.Go(func() {
			r, err := caches[i%len(caches)].Lookup(context.Background(), "k", load)
			if err != nil {
				t.Errorf("Lookup: %v", err)
			}
			results[i] = r
		})
	}
	wg.Wait()
	return results
}

func TestColdHerdOfOneProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		c := f.process(stampede.Policy{TTL: time.Minute}, nil)
		begun := time.Now()
		rs := herd(t, 250, f.load(200*time.Millisecond), c)
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads for one cold key, want 1", n)
		}
		if n := f.commands.Load(); n > 8 {
			t.Errorf("%d commands for 250 callers of one process, want at most 8", n)
		}
		if took := time.Since(begun); took > 210*time.Millisecond {
			t.Errorf("took %v for a load of 200 ms", took)
		}
		loaded := 0
		for _, r := range rs {
			if r.Value != "value 1" || r.Fence.Token == 0 || r.Backend != "memory" {
				t.Errorf("result %+v, want value 1 with its fence", r)
			}
			if r.Status == stampede.Loaded {
				loaded++
			} else if r.Status != stampede.Waited && r.Status != stampede.Fresh {
				t.Errorf("status %v", r.Status)
			}
		}
		if loaded != 1 {
			t.Errorf("%d calls say that they loaded, want 1", loaded)
		}
		f.unlocked("k")
	})
}

func TestColdHerdOfFourProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		p := stampede.Policy{TTL: time.Minute, OnContention: stampede.Wait}
		caches := []*stampede.Cache[string]{f.process(p, nil), f.process(p, nil), f.process(p, nil), f.process(p, nil)}
		begun := time.Now()
		herd(t, 250, f.load(200*time.Millisecond), caches...)
		if n := f.loads.Load(); n != 1 {
			t.Errorf("%d loads by four processes for one cold key, want 1", n)
		}
		if n := f.commands.Load(); n > 40 {
			t.Errorf("%d commands for 4 x 250 callers, want at most 40", n)
		}
		t.Logf("%d commands, %v", f.commands.Load(), time.Since(begun))
		if took := time.Since(begun); took > 210*time.Millisecond {
			t.Errorf("took %v for a load of 200 ms", took)
		}
		f.unlocked("k")
	})
}
