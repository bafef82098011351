package redisstore_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
)

// What a client has sent may arrive long after it gave up, and what it sent twice may arrive twice: after an invalidation as well. Nothing
// old is to come back by that.

// TestLateSet: a Set that nobody waits for any more arrives after an invalidation, and stores nothing.
func TestLateSet(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.SharedRedis(t))
	direct, key := connect(t, servers.SharedRedis(t)), uuid.NewString()
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr, MaxRetries: -1, ReadTimeout: 200 * time.Millisecond, ContextTimeoutEnabled: true})
	defer client.Close()
	s, other := open(t, client), open(t, direct)
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("old"), TTL: time.Minute}
	if err := s.Set(t.Context(), uuid.NewString(), e); err != nil { // the scripts are there
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	proxy.Hold()
	if err := s.Set(ctx, key, e); err == nil {
		t.Fatal("Set through a line that is silent: no error")
	}
	if err := other.Invalidate(ctx, key); err != nil {
		t.Fatal(err)
	}
	proxy.Pass()
	arrives(t, direct, key)
	if es, err := other.Get(ctx, key); err != nil || es[0].Kind != stampede.Absent {
		t.Errorf("after the invalidation there is %q, %v; want nothing", es[0].Value, err)
	}
}

// TestDoubledBegin: a Begin that the client has sent twice arrives a second time after an invalidation: what was loaded before it cannot be
// stored.
func TestDoubledBegin(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.SharedRedis(t))
	direct, key := connect(t, servers.SharedRedis(t)), uuid.NewString()
	var held atomic.Bool
	client := redis.NewClient(&redis.Options{
		Addr: proxy.Addr, ReadTimeout: 200 * time.Millisecond,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if held.Load() { // it has given up the connection that it had, and sends again what it sent there
				proxy.PassNew()
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	defer client.Close()
	s, other := open(t, client), open(t, direct)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, err := s.Begin(ctx, uuid.NewString(), "id", time.Minute); err != nil { // the script is there
		t.Fatal(err)
	}
	proxy.Hold()
	held.Store(true)
	_, ticket, err := s.Begin(ctx, key, uuid.NewString(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Invalidate(ctx, key); err != nil {
		t.Fatal(err)
	}
	proxy.Pass()
	arrives(t, direct, key)
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("old"), TTL: time.Minute}
	if o, err := s.Put(ctx, key, ticket, e); err != nil || o != stampede.Invalidated {
		t.Errorf("Put of what was loaded before the invalidation: %v, %v; want it refused", o, err)
	}
}

// arrives waits until the server has got something that concerns key.
func arrives(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		n, err := client.Exists(t.Context(), base(key)+":t1", base(key)+":e1").Result()
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("what was held back does not arrive")
		}
	}
}
