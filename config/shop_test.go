package config_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/config"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
)

// ledger is an office that counts its work, and keeps it waiting at a gate.
type ledger struct {
	gate   chan struct{} // work waits until it is closed; nil: it does not
	works  atomic.Int64
	atOnce atomic.Int64
	most   atomic.Int64
	fence  atomic.Value // of the last work
	ended  atomic.Int64 // works whose context ended
}

func (l *ledger) work(ctx context.Context) (int64, error) {
	n := l.works.Add(1)
	for now := l.atOnce.Add(1); ; {
		if most := l.most.Load(); now <= most || l.most.CompareAndSwap(most, now) {
			break
		}
	}
	defer l.atOnce.Add(-1)
	if f, ok := fencing.FromContext(ctx); ok {
		l.fence.Store(f)
	}
	if l.gate == nil {
		return n, nil
	}
	select {
	case <-l.gate:
		return n, nil
	case <-ctx.Done():
		l.ended.Add(1)
		return 0, context.Cause(ctx)
	}
}

func (l *ledger) Leaders(ctx context.Context, week string) ([]string, error) {
	n, err := l.work(ctx)
	return []string{fmt.Sprint(week, " ", n)}, err
}

func (l *ledger) Count(ctx context.Context, _ string) (int, error) {
	n, err := l.work(ctx)
	return int(n), err
}

func (l *ledger) Settle(ctx context.Context, order string) (string, error) {
	n, err := l.work(ctx)
	return fmt.Sprint(order, " ", n), err
}

func (l *ledger) Banner(ctx context.Context, page string) (string, error) {
	n, err := l.work(ctx)
	return fmt.Sprint(page, " ", n), err
}

// town is two shops with the configuration that is documented, and real servers behind it.
type town struct {
	shops [2]*shop
	etcd  *clientv3.Client
	line  *servers.Proxy // to etcd
	file  string
}

// documented is docs/paddock.yaml with some of its words replaced.
func documented(t *testing.T, words ...string) string {
	t.Helper()
	b, err := os.ReadFile("../docs/paddock.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(words); i += 2 {
		if !strings.Contains(string(b), words[i]) {
			t.Fatalf("docs/paddock.yaml has no %q any more", words[i])
		}
	}
	return strings.NewReplacer(words...).Replace(string(b))
}

func openTown(t *testing.T) *town {
	t.Helper()
	endpoints := servers.SharedEtcd(t)
	w := &town{line: servers.NewProxy(t, endpoints[0])}
	r := servers.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer admin.Close()
	if err := admin.ConfigSet(t.Context(), "requirepass", secret).Err(); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.etcd, err = clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.etcd.Close() })
	prefix := "shop-" + uuid.NewString()
	w.file = documented(t, "localhost:6379", r.Addr, "localhost:2379", w.line.Addr, "prefix=shop", "prefix="+prefix,
		"ttl: 60s", "ttl: 1s", "ttl: 5s", "ttl: 1s") // not so long that a test has to wait for it
	for i := range w.shops {
		conf, err := config.Parse(t.Context(), "docs/paddock.yaml", []byte(w.file), &config.Options{LookupEnv: env})
		if err != nil {
			t.Fatal(err)
		}
		if w.shops[i], err = newShop(conf); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.shops[i].close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	return w
}

// customers calls n times at each shop at once, and returns how often each status came.
func customers[V any](t *testing.T, w *town, n int, call func(s *shop) (stampede.Result[V], error)) map[stampede.Status]int {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[stampede.Status]int{}
	for i := range n * len(w.shops) {
		wg.Go(func() {
			r, err := call(w.shops[i%len(w.shops)])
			if err != nil {
				t.Errorf("a call failed: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[r.Status]++
		})
	}
	wg.Wait()
	return seen
}

// holder waits until the lock of key is held in the backend of that name, or is not.
func (w *town) holder(t *testing.T, backend, key string, held bool) {
	t.Helper()
	until(t, fmt.Sprintf("the lock of %q in backend %q is held: %v", key, backend, held), func() bool {
		_, err := paddock.Inspect(t.Context(), w.shops[0].conf.Lockers[backend], "cache/default/"+key)
		if err != nil && !errors.Is(err, paddock.ErrFree) {
			t.Fatal(err)
		}
		return (err == nil) == held
	})
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after 20 s it is still not so that %s", what)
		}
	}
}
