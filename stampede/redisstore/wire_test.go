package redisstore_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/redisstore"
)

// wire counts what a client sends.
type wire struct {
	trips, commands atomic.Int64
	also            *atomic.Int64 // counts trips with others; may be nil
}

func (w *wire) count(commands int) {
	w.trips.Add(1)
	w.commands.Add(int64(commands))
	if w.also != nil {
		w.also.Add(1)
	}
}

func (w *wire) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (w *wire) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.count(1)
		return next(ctx, cmd)
	}
}

func (w *wire) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		w.count(len(cmds))
		return next(ctx, cmds)
	}
}

// TestRoundTrips: every call but Set, which is two, is one round trip, whatever the number of keys.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t, servers.SharedRedis(t)), t.Context()
	w := &wire{}
	client.AddHook(w)
	s := open(t, client)
	keys := []string{uuid.NewString(), uuid.NewString(), uuid.NewString()}
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
	var ticket stampede.Ticket
	for _, c := range []struct {
		name     string
		commands int64
		call     func() error
	}{
		{"Begin", 1, func() (err error) { _, ticket, err = s.Begin(ctx, keys[0], "id", time.Minute); return err }},
		{"Put", 1, func() error { _, err := s.Put(ctx, keys[0], ticket, e); return err }},
		{"Get", 2, func() error { _, err := s.Get(ctx, keys[0]); return err }},
		{"Get of three", 6, func() error { _, err := s.Get(ctx, keys...); return err }},
		{"Invalidate of three", 6, func() error { return s.Invalidate(ctx, keys...) }},
	} {
		if err := c.call(); err != nil { // once more, for the script to be there
			t.Fatalf("%s: %v", c.name, err)
		}
		trips, commands := w.trips.Load(), w.commands.Load()
		if err := c.call(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if n, m := w.trips.Load()-trips, w.commands.Load()-commands; n != 1 || m != c.commands {
			t.Errorf("%s: %d round trips of %d commands, want one of %d", c.name, n, m, c.commands)
		}
	}
	if err := s.Set(ctx, keys[0], e); err != nil {
		t.Fatalf("Set: %v", err)
	}
	trips := w.trips.Load()
	if err := s.Set(ctx, keys[0], e); err != nil || w.trips.Load()-trips != 2 {
		t.Errorf("Set: %d round trips, %v; want two", w.trips.Load()-trips, err)
	}
}

func TestScriptFlush(t *testing.T) {
	t.Parallel()
	client, ctx := connect(t, servers.Redis(t).Addr), t.Context()
	s := open(t, client)
	for range 2 {
		_, ticket, err := s.Begin(ctx, "k", uuid.NewString(), time.Minute)
		if err != nil {
			t.Fatalf("Begin: %v", err)
		}
		if err := client.ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
		if o, err := s.Put(ctx, "k", ticket, e); err != nil || o != stampede.Stored {
			t.Fatalf("Put after SCRIPT FLUSH: %v, %v", o, err)
		}
	}
}

// TestLostReply: a Put whose reply is lost is sent again by the client, and is stored.
func TestLostReply(t *testing.T) {
	t.Parallel()
	proxy := servers.NewProxy(t, servers.SharedRedis(t))
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr, ReadTimeout: 200 * time.Millisecond})
	defer client.Close()
	s, key := open(t, client), uuid.NewString()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, ticket, err := s.Begin(ctx, key, uuid.NewString(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	proxy.LoseReplies()
	go func() {
		for !proxy.Lost() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		proxy.Pass()
	}()
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
	e.Fence.Domain, e.Fence.Token = "d", 7
	if o, err := s.Put(ctx, key, ticket, e); err != nil || o != stampede.Stored {
		t.Errorf("Put: %v, %v; want it stored", o, err)
	}
}

// TestSilentServer: a caller's deadline counts, although a client does not by default end a command with its context; and a store that
// is silent costs a cache no more than StoreTimeout.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	for name, heeds := range map[string]bool{"default client": false, "ContextTimeoutEnabled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := servers.NewProxy(t, servers.SharedRedis(t))
			client := redis.NewClient(&redis.Options{Addr: proxy.Addr, ContextTimeoutEnabled: heeds})
			defer client.Close()
			s := open(t, client)
			if _, err := s.Get(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			proxy.Hold()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			begun := time.Now()
			if _, err := s.Get(ctx, "k"); err == nil || time.Since(begun) > time.Second {
				t.Errorf("Get with 200 ms of a silent server: %v after %v", err, time.Since(begun))
			}
			c, err := stampede.New[string](s, stampede.Policies{{Pattern: "*", TTL: time.Minute, OnStoreDown: stampede.Load}},
				&stampede.Options[string]{StoreTimeout: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			begun = time.Now()
			r, err := c.Lookup(t.Context(), uuid.NewString(), func(context.Context) (string, error) { return "v", nil })
			if err != nil || r.Status != stampede.Bypassed || time.Since(begun) > 2*time.Second {
				t.Errorf("%+v, %v after %v; want it bypassed after StoreTimeout", r, err, time.Since(begun))
			}
		})
	}
}

// TestReplica: a client connected to a replica cannot begin a load.
func TestReplica(t *testing.T) {
	t.Parallel()
	primary := servers.Redis(t)
	replica := servers.RedisReplica(t, primary.Addr)
	client := redis.NewClient(&redis.Options{Addr: replica.Addr, MaxRetries: -1})
	defer client.Close()
	if _, _, err := open(t, client).Begin(t.Context(), "k", "id", time.Minute); err == nil || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("Begin on a replica: %v, want READONLY", err)
	}
}

// TestLostConnection: watchers are told again after their connection was lost.
func TestLostConnection(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	client, ctx := connect(t, server.Addr), t.Context()
	s := open(t, client)
	hints, err := s.Watch(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := client.ClientKillByFilter(ctx, "TYPE", "pubsub").Result(); err != nil || n != 1 {
		t.Fatalf("killed %d connections, %v; want one", n, err)
	}
	end := time.After(30 * time.Second)
	for told := 0; told < 3; {
		if err := s.Invalidate(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
			told++
		case <-time.After(20 * time.Millisecond):
		case <-end:
			t.Fatal("the watcher was not told any more")
		}
	}
}

// TestNoChannelPermission: a user who may not use the channel can do all else, and is told at once that nothing can be watched.
func TestNoChannelPermission(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	admin, ctx := connect(t, server.Addr), t.Context()
	if err := admin.Do(ctx, "ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "mute", Password: "pw"})
	defer client.Close()
	s := open(t, client)
	for range 2 {
		begun := time.Now()
		wctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		if _, err := s.Watch(wctx, "k"); err == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("Watch: %v after %v, want an error at once", err, time.Since(begun))
		}
		cancel()
	}
	_, ticket, err := s.Begin(ctx, "k", "id", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	e := stampede.Entry{Kind: stampede.Value, Value: []byte("v"), TTL: time.Minute}
	if o, err := s.Put(ctx, "k", ticket, e); err != nil || o != stampede.Stored {
		t.Errorf("Put: %v, %v", o, err)
	}
	if err := s.Set(ctx, "k", e); err != nil {
		t.Errorf("Set: %v", err)
	}
	if err := s.Invalidate(ctx, "k"); err != nil {
		t.Errorf("Invalidate: %v", err)
	}
	if es, err := s.Get(ctx, "k"); err != nil || es[0].Kind != stampede.Absent {
		t.Errorf("after all that: %+v, %v", es, err)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	client, ctx := connect(t, server.Addr), t.Context()
	s, err := redisstore.New(client, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Watch(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Watch(ctx, "k"); err == nil {
		t.Error("Watch after Close: no error")
	}
	end := time.Now().Add(10 * time.Second)
	for {
		list, err := client.Do(ctx, "CLIENT", "LIST", "TYPE", "pubsub").Text()
		if err != nil {
			t.Fatal(err)
		}
		if list == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after Close there is a subscription: %s", list)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
