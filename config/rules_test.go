package config_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

// TestOneFile: every rule of the documented file does what its line says, in two instances of one program, over Redis and etcd.
func TestOneFile(t *testing.T) {
	w := openTown(t)
	t.Run("rules", func(t *testing.T) {
		for name, rule := range map[string]func(*testing.T, *town){
			"leaderboard": leaderboard, "inventory": inventory, "settlement": settlement, "settlement without its lease": leaseless, "banner": banner,
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); rule(t, w) })
		}
	})
	w.line.Cut()
	t.Run("etcd is down", func(t *testing.T) {
		for name, rule := range map[string]func(*testing.T, *shop){
			"leaderboard": leaderboardInOutage, "inventory": inventoryInOutage, "settlement": settlementInOutage, "banner": bannerInOutage,
		} {
			t.Run(name, func(t *testing.T) { t.Parallel(); rule(t, w.shops[0]) })
		}
	})
	w.line.Pass()
}

// leaderboard: wasteful, on Redis, served stale while one instance makes the new one.
func leaderboard(t *testing.T, w *town) {
	ctx := t.Context()
	call := func(l *ledger) func(*shop) (stampede.Result[[]string], error) {
		return func(s *shop) (stampede.Result[[]string], error) { return s.leaders(ctx, l, "week") }
	}
	old := &ledger{}
	customers(t, w, 10, call(old))
	if n := old.works.Load(); n != 1 {
		t.Errorf("a new leaderboard was made %d times, want once", n)
	}
	l := &ledger{gate: make(chan struct{})}
	l.works.Store(100) // so that what is new is told from what is old
	until(t, "the leaderboard is stale", func() bool {
		r, err := call(l)(w.shops[0])
		return err == nil && r.Status == stampede.Stale
	})
	until(t, "a new one is being made", func() bool { return l.works.Load() == 101 })
	w.holder(t, "fast", "leaderboard:week", true)
	if seen := customers(t, w, 50, call(l)); seen[stampede.Stale] != 100 {
		t.Errorf("while the new one is made, calls were served %v; want all stale", seen)
	}
	close(l.gate)
	until(t, "both have the new one", func() bool {
		for _, s := range w.shops {
			r, err := call(l)(s)
			if err != nil {
				t.Fatal(err)
			}
			if r.Value[0] == "week 1" {
				return false
			}
		}
		return true
	})
	if l.most.Load() != 1 {
		t.Errorf("it was made by %d at the same time", l.most.Load())
	}
}

// inventory: wasteful, on etcd, never stale: callers wait for the one that counts.
func inventory(t *testing.T, w *town) {
	ctx := t.Context()
	old, l := &ledger{}, &ledger{gate: make(chan struct{})}
	l.works.Store(100) // so that new counts are told from old ones
	if _, err := w.shops[0].count(ctx, old, "shoes"); err != nil {
		t.Fatal(err)
	}
	until(t, "the count has expired", func() bool {
		es, err := w.shops[0].conf.Store.Get(ctx, "default/inventory:shoes")
		return err == nil && !es[0].Fresh()
	})
	go func() {
		for ctx.Err() == nil && l.works.Load() == 100 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // counting takes a while
		close(l.gate)
	}()
	seen := customers(t, w, 50, func(s *shop) (stampede.Result[int], error) {
		r, err := s.count(ctx, l, "shoes")
		if r.Value != 101 {
			t.Errorf("served %d, which is not the new count", r.Value)
		}
		return r, err
	})
	if n := l.works.Load(); n != 101 || seen[stampede.Stale] != 0 || seen[stampede.Loaded] != 1 {
		t.Errorf("counted %d times, served %v; want one count, and nothing stale", n-100, seen)
	}
	if f, _ := l.fence.Load().(fencing.Fence); !strings.HasPrefix(f.Domain, "etcd/") {
		t.Errorf("counted under the fence %+v, want one of etcd's", f)
	}

	// Who has waited for max_wait loads without the lock: after_max_wait.
	lease, err := w.shops[0].conf.Lockers["safe"].TryAcquire(ctx, "cache/default/inventory:socks", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release(ctx)
	r, err := w.shops[1].count(ctx, old, "socks")
	if err != nil || r.Status != stampede.Bypassed || !errors.Is(r.Cause, stampede.ErrWaitTimeout) {
		t.Errorf("while another holds the lock for longer than max_wait: %+v, %v; want it bypassed", r, err)
	}
}

// settlement: harmful, on etcd: nobody else is at it, and what it writes is fenced.
func settlement(t *testing.T, w *town) {
	l := &ledger{gate: make(chan struct{})}
	var receipts sync.Map
	time.AfterFunc(200*time.Millisecond, func() { close(l.gate) })
	customers(t, w, 20, func(s *shop) (stampede.Result[string], error) {
		r, err := s.settle(t.Context(), l, "order 1")
		receipts.Store(r.Value, true)
		return r, err
	})
	if n := l.works.Load(); n != 1 {
		t.Errorf("settled %d times, want once", n)
	}
	if _, ok := receipts.Load("order 1 1"); !ok {
		t.Error("nobody has the receipt")
	}
	receipts.Range(func(receipt, _ any) bool {
		if receipt != "order 1 1" {
			t.Errorf("somebody has the receipt %q", receipt)
		}
		return true
	})
	if f, _ := l.fence.Load().(fencing.Fence); f.Token == 0 || !strings.HasPrefix(f.Domain, "etcd/") {
		t.Errorf("settled under the fence %+v, want one of etcd's", f)
	}
	w.holder(t, "safe", "settlement:order 1", false)
}

// leaseless: a settlement whose lease is lost while it runs is told to end, and its result is refused.
func leaseless(t *testing.T, w *town) {
	l := &ledger{gate: make(chan struct{})}
	defer close(l.gate)
	result := make(chan error, 1)
	go func() {
		_, err := w.shops[0].settle(t.Context(), l, "order-2")
		result <- err
	}()
	until(t, "it is being settled", func() bool { return l.works.Load() == 1 })
	found, err := w.etcd.Get(t.Context(), "shop-", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range found.Kvs {
		if strings.Contains(string(kv.Key), "order-2") {
			if _, err := w.etcd.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-result; !errors.Is(err, stampede.ErrLeaseLost) || !errors.Is(err, paddock.ErrLost) || l.ended.Load() != 1 {
		t.Errorf("%v, ended: %d; want ErrLeaseLost, and the work to be told", err, l.ended.Load())
	}
}

// banner: harmless, without a lock: every instance makes its own, once at a time.
func banner(t *testing.T, w *town) {
	l := &ledger{gate: make(chan struct{})}
	go func() {
		for t.Context().Err() == nil && l.works.Load() < 2 {
			time.Sleep(time.Millisecond)
		}
		close(l.gate)
	}()
	page := uuid.NewString()
	seen := customers(t, w, 50, func(s *shop) (stampede.Result[string], error) {
		r, err := s.banner(t.Context(), l, page)
		if r.Backend != "" || r.Fence != (fencing.Fence{}) {
			t.Errorf("%+v; want no lock", r)
		}
		return r, err
	})
	if n := l.works.Load(); n != 2 || l.most.Load() != 2 {
		t.Errorf("made %d times, %d at once, served %v; want once by each instance", n, l.most.Load(), seen)
	}
}
