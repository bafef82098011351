package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/redisstore"
	"github.com/paddock-go/paddock/stampede/storetest"
)

func connect(tb testing.TB, addr string) *redis.Client {
	tb.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	tb.Cleanup(func() { c.Close() })
	return c
}

func open(tb testing.TB, client redis.UniversalClient) *redisstore.Store {
	tb.Helper()
	s, err := redisstore.New(client, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	return s
}

// base is what the names of a key's records begin with, as the package documents them.
func base(key string) string { return fmt.Sprintf("paddock/cache{/%s}", key) }

func del(tb testing.TB, client redis.UniversalClient, key string) {
	tb.Helper()
	if err := client.Del(context.Background(), key).Err(); err != nil {
		tb.Error(err)
	}
}

// under is the suite's description of a server.
func under(direct redis.UniversalClient, connect func(testing.TB) redis.UniversalClient) storetest.Store {
	return storetest.Store{
		Open:        func(tb testing.TB) stampede.Store { return open(tb, connect(tb)) },
		EvictEntry:  func(tb testing.TB, key string) { del(tb, direct, base(key)+":e1") },
		EvictTicket: func(tb testing.TB, key string) { del(tb, direct, base(key)+":t1") },
		Spoil: func(tb testing.TB, key string) {
			if err := direct.Set(context.Background(), base(key)+":e1", "somebody else's", time.Minute).Err(); err != nil {
				tb.Fatal(err)
			}
		},
	}
}

func TestStore(t *testing.T) {
	addr := servers.SharedRedis(t)
	storetest.Run(t, under(connect(t, addr), func(tb testing.TB) redis.UniversalClient { return connect(tb, addr) }))
}

func TestForeignTypes(t *testing.T) {
	t.Parallel()
	client, ctx, key := connect(t, servers.SharedRedis(t)), context.Background(), t.Name()+time.Now().String()
	s := open(t, client)
	client.LPush(ctx, base(key)+":e1", "x")
	client.LPush(ctx, base(key)+":t1", "x")
	es, err := s.Get(ctx, key)
	if err != nil || es[0].Kind != stampede.Foreign {
		t.Fatalf("of a list in the entry's place: %+v, %v", es, err)
	}
	if o, err := s.Put(ctx, key, stampede.Ticket{ID: "x"}, stampede.Entry{}); err != nil || o != stampede.Invalidated {
		t.Errorf("Put with a list in the ticket's place: %v, %v", o, err)
	}
	_, ticket, err := s.Begin(ctx, key, "id", time.Minute)
	if err != nil {
		t.Fatalf("Begin with a list in the ticket's place: %v", err)
	}
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
	if o, err := s.Put(ctx, key, ticket, stampede.Entry{Kind: stampede.Failed, Failure: "f", TTL: time.Minute}); err != nil || o != stampede.Stored {
		t.Errorf("Put of a failure: %v, %v", o, err)
	}
	if o, err := s.Put(ctx, key, ticket, e); err != nil || o != stampede.Stored {
		t.Errorf("Put: %v, %v", o, err)
	}
	if err := client.Persist(ctx, base(key)+":e1").Err(); err != nil {
		t.Fatal(err)
	}
	if es, err := s.Get(ctx, key); err != nil || es[0].Kind != stampede.Foreign {
		t.Errorf("of an entry that somebody made immortal: %+v, %v", es, err)
	}
}

func TestRefusedClients(t *testing.T) {
	t.Parallel()
	cluster := func(o redis.ClusterOptions) redis.UniversalClient {
		o.Addrs = []string{"127.0.0.1:1"}
		c := redis.NewClusterClient(&o)
		t.Cleanup(func() { c.Close() })
		return c
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	for name, c := range map[string]redis.UniversalClient{
		"none":           nil,
		"a nil client":   (*redis.Client)(nil),
		"ReadOnly":       cluster(redis.ClusterOptions{ReadOnly: true}),
		"RouteByLatency": cluster(redis.ClusterOptions{RouteByLatency: true}),
		"RouteRandomly":  cluster(redis.ClusterOptions{RouteRandomly: true}),
		"a Ring":         ring,
	} {
		if s, err := redisstore.New(c, nil); s != nil || !errors.Is(err, stampede.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := redisstore.New(cluster(redis.ClusterOptions{}), &redisstore.Options{Prefix: "a{b"}); !errors.Is(err, stampede.ErrInvalid) {
		t.Errorf("a prefix with a brace: %v, want ErrInvalid", err)
	}
}
