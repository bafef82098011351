package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
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

// TestForeignTickets: hashes that are no ticket of ours do not keep a key from being loaded, whatever their fields hold.
func TestForeignTickets(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t, servers.SharedRedis(t)), t.Context()
	s := open(t, client)
	for i, fields := range [][]any{
		{"turn", "x"}, {"id", "x", "turn", "1.5"}, {"id", "x", "turn", "9223372036854775807"}, {"id", "x", "stored", "x", "domain", "d"},
	} {
		key := fmt.Sprint(t.Name(), time.Now(), i)
		if err := client.HSet(ctx, base(key)+":t1", fields...).Err(); err != nil {
			t.Fatal(err)
		}
		_, ticket, err := s.Begin(ctx, key, "id", time.Minute)
		if err != nil {
			t.Errorf("Begin with the ticket %v: %v", fields, err)
			continue
		}
		e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
		e.Fence.Domain, e.Fence.Token, e.Fence.Owner = "d", 1, "o"
		if o, err := s.Put(ctx, key, ticket, e); err != nil || o != stampede.Stored {
			t.Errorf("Put with the ticket %v: %v, %v", fields, o, err)
		}
	}
}

// TestForeignEntries: what is no entry is a miss, and hides no failure that is remembered beside it.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t, servers.SharedRedis(t)), t.Context()
	s := open(t, client)
	for i, text := range []string{
		"", "x", "pk1", "pk1v", "pk1v\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "pf1", "pf1" + strings.Repeat("x", 40),
		"pf1" + strings.Repeat("0", 26) + "-0001x", "pf1" + strings.Repeat("9", 26) + "00001x",
	} {
		key := fmt.Sprint(t.Name(), time.Now(), i)
		if err := client.Set(ctx, base(key)+":e1", text, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if es, err := s.Get(ctx, key); err != nil || es[0].Kind != stampede.Foreign || es[0].Failure != "" {
			t.Errorf("Get of %q: %+v, %v", text, es, err)
		}
		_, ticket, err := s.Begin(ctx, key, "id", time.Minute)
		if err != nil {
			t.Fatalf("Begin with %q: %v", text, err)
		}
		if o, err := s.Put(ctx, key, ticket, stampede.Entry{Kind: stampede.Failed, Failure: "bad", TTL: time.Minute}); err != nil || o != stampede.Stored {
			t.Errorf("Put of a failure over %q: %v, %v", text, o, err)
		}
		if es, err := s.Get(ctx, key); err != nil || es[0].Failure != "bad" && !strings.HasPrefix(text, "pk1") {
			t.Errorf("Get of a failure over %q: %+v, %v", text, es, err)
		}
	}
}

// TestFullServer: what is there can be read and invalidated on a server without memory, and what cannot be stored is its error.
func TestFullServer(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t, servers.Redis(t).Addr), t.Context()
	s := open(t, client)
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
	set := func(key string) error { return s.Set(ctx, key, e) }
	if err := errors.Join(set("kept"), set("dropped"), client.ConfigSet(ctx, "maxmemory", "1").Err()); err != nil {
		t.Fatal(err)
	}
	if err := set("new"); !redis.IsOOMError(err) {
		t.Errorf("Set: %v; want OOM", err)
	}
	if _, _, err := s.Begin(ctx, "new", "id", time.Minute); !redis.IsOOMError(err) {
		t.Errorf("Begin: %v; want OOM", err)
	}
	if err := s.Invalidate(ctx, "dropped"); err != nil {
		t.Errorf("Invalidate: %v", err)
	}
	es, err := s.Get(ctx, "kept", "dropped", "new")
	if err != nil || string(es[0].Value) != "v" || es[1].Kind != stampede.Absent || es[2].Kind != stampede.Absent {
		t.Errorf("Get: %+v, %v", es, err)
	}
	if err := errors.Join(client.ConfigSet(ctx, "maxmemory", "0").Err(), set("new")); err != nil {
		t.Errorf("Set with memory again: %v", err)
	}
}

// TestRefusedUsers: what a user may not do is the server's error, at once, and shows no password.
func TestRefusedUsers(t *testing.T) {
	t.Parallel()
	server, ctx := servers.Redis(t), t.Context()
	admin := connect(t, server.Addr)
	const password = "p@s:s/w?o#r d%\u00e9"
	for user, rules := range map[string][]any{
		"good": {"~*", "&*", "+@all"}, "noscripts": {"~*", "&*", "+@all", "-@scripting"}, "nokeys": {"~other:*", "&*", "+@all"},
	} {
		if err := admin.Do(ctx, append([]any{"ACL", "SETUSER", user, "on", ">" + password}, rules...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for user, why := range map[string]string{"good": "", "noscripts": "NOPERM", "nokeys": "NOPERM", "nobody": "WRONGPASS"} {
		store, err := stampede.OpenStore(ctx, (&url.URL{Scheme: "redis", User: url.UserPassword(user, password), Host: server.Addr}).String())
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = store.Begin(ctx, "k", "id", time.Minute)
		if (err == nil) != (why == "") || err != nil && (!strings.Contains(err.Error(), why) || strings.Contains(err.Error(), password)) {
			t.Errorf("Begin of the user %s: %v; want %q", user, err, why)
		}
		if printed := fmt.Sprintf("%v %+v", store, store); strings.Contains(printed, password) {
			t.Errorf("the store shows the password: %s", printed)
		}
		store.(*redisstore.Store).Close()
	}
}
