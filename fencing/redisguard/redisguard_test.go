package redisguard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/guardtest"
	"github.com/paddock-go/paddock/internal/servers"
)

func TestGuard(t *testing.T) {
	addr := servers.SharedRedis(t)
	suite(t, func(tb testing.TB) redis.UniversalClient { return connect(tb, addr, redis.Options{}) })
}

// TestGuardOldProtocol is the suite for a client that speaks RESP2 and ends commands with their contexts.
func TestGuardOldProtocol(t *testing.T) {
	t.Parallel()
	addr := servers.SharedRedis(t)
	suite(t, func(tb testing.TB) redis.UniversalClient {
		return connect(tb, addr, redis.Options{Protocol: 2, ContextTimeoutEnabled: true})
	})
}

// TestGuardCluster is the suite on a Cluster.
func TestGuardCluster(t *testing.T) {
	t.Parallel()
	cluster := servers.RedisCluster(t, 0)
	suite(t, func(tb testing.TB) redis.UniversalClient { return connectCluster(tb, cluster) })
}

// suite is guardtest's, with a prefix of its own. The data of a resource is the key itself.
func suite(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
	prefix := newPrefix()
	probe := connect(t)
	guardtest.Run(t, guardtest.Guard{
		Open: func(tb testing.TB) guardtest.Migrater { return open(tb, connect(tb), prefix) },
		Write: func(ctx context.Context, m guardtest.Migrater, resource string, f fencing.Fence, value string) error {
			return m.(*Guard).Set(ctx, f, resource, value, 0)
		},
		Read: func(ctx context.Context, _ guardtest.Migrater, resource string) (string, error) {
			value, err := probe.Get(ctx, resource).Result()
			if errors.Is(err, redis.Nil) {
				err = nil
			}
			return value, err
		},
	})
}

func connect(tb testing.TB, addr string, o redis.Options) *redis.Client {
	o.Addr = addr
	client := redis.NewClient(&o)
	tb.Cleanup(func() { client.Close() })
	return client
}

func connectCluster(tb testing.TB, c *servers.Cluster) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs})
	tb.Cleanup(func() { client.Close() })
	return client
}

func open(tb testing.TB, client redis.UniversalClient, prefix string) *Guard {
	tb.Helper()
	g, err := New(client, &Options{Prefix: prefix})
	must(tb, err)
	return g
}

func newPrefix() string { return fmt.Sprintf("test-%d", rand.Uint64()) }

func newKey(t *testing.T) string { return fmt.Sprintf("%s/%d", t.Name(), rand.Uint64()) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func fence(token fencing.Token, owner string) fencing.Fence {
	return fencing.Fence{Domain: "redisguard", Token: token, Owner: owner}
}

// oddKeys have braces where they decide the slot, or do not.
var oddKeys = []string{
	"plain", "{a}b", "a{b}", "a{b}c{d}", "{}", "{}a", "a{}", "a{}{b}", "{", "}", "}{", "}{a}", "{{a}}", "{{}}", "a}b", "a{b", "{a", "a}",
	"%7D", "{user:1}:{cart}", "\x00}", "ä}", strings.Repeat("{}", 512), strings.Repeat("}", 1024),
}

// TestMarksShareTheSlot asks a Cluster for the slots of keys and marks, and writes to all of them.
func TestMarksShareTheSlot(t *testing.T) {
	t.Parallel()
	probe := connectCluster(t, servers.RedisCluster(t, 0))
	g := open(t, probe, newPrefix())
	ctx := t.Context()
	marks := map[string]string{}
	for _, key := range oddKeys {
		a, err := probe.ClusterKeySlot(ctx, key).Result()
		must(t, err)
		b, err := probe.ClusterKeySlot(ctx, g.mark(key)).Result()
		must(t, err)
		if a != b {
			t.Errorf("%.40q is in slot %d, its mark %.80q in %d", key, a, g.mark(key), b)
		}
		if other, ok := marks[g.mark(key)]; ok {
			t.Errorf("%.40q and %.40q have one mark", key, other)
		}
		marks[g.mark(key)] = key
		must(t, g.Set(ctx, fence(5, "a"), key, "v", 0))
		if err := g.Set(ctx, fence(4, "b"), key, "w", 0); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("a stale write to %.40q: %v", key, err)
		}
		must(t, g.Del(ctx, fence(6, "c"), key))
		must(t, g.HSet(ctx, fence(6, "c"), key, "f", 1))
	}
}

// TestSlots compares our count of slots with the server's.
func TestSlots(t *testing.T) {
	t.Parallel()
	probe := connectCluster(t, servers.RedisCluster(t, 0))
	for range 500 {
		bytes := make([]byte, rand.IntN(30))
		for i := range bytes {
			bytes[i] = byte(rand.Uint32())
		}
		text := strings.Trim(string(bytes), "{}") + "x"
		if strings.Contains(text, "{") {
			continue
		}
		want, err := probe.ClusterKeySlot(t.Context(), text).Result()
		must(t, err)
		if got := slot(text); int64(got) != want {
			t.Errorf("slot(%q) = %d; the server says %d", text, got, want)
		}
	}
	for s, digits := range numbers() {
		if slot(digits) != s {
			t.Errorf("%s is in slot %d, not %d", digits, slot(digits), s)
		}
	}
}

// TestValues: what is written is what go-redis would have written, and expires when it should.
func TestValues(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedRedis(t), redis.Options{})
	g := open(t, client, newPrefix())
	ctx, key, f := t.Context(), newKey(t), fence(5, "a")
	for want, value := range map[string]any{"text": "text", "bytes\x00": []byte("bytes\x00"), "7": 7, "0.5": 0.5, "1": true, "": ""} {
		must(t, g.Set(ctx, f, key, value, 0))
		if got := client.Get(ctx, key).Val(); got != want || client.PTTL(ctx, key).Val() != -1 {
			t.Errorf("Set(%v) wrote %q with the TTL %v", value, got, client.PTTL(ctx, key).Val())
		}
	}
	expires := func(what string) {
		t.Helper()
		if left := client.PTTL(ctx, key).Val(); left <= 0 || left > time.Minute {
			t.Errorf("%s: %v are left of a minute", what, left)
		}
		if left := client.PTTL(ctx, g.mark(key)).Val(); left != -1 {
			t.Errorf("%s: the mark expires in %v", what, left)
		}
	}
	must(t, g.Set(ctx, f, key, "v", time.Minute))
	expires("Set")
	must(t, g.Set(ctx, f, key, "w", redis.KeepTTL))
	expires("Set with KeepTTL")

	must(t, g.Del(ctx, f, key))
	must(t, g.Del(ctx, f, key)) // which is not there
	var fields []any
	for i := range 20_000 { // more than go on Lua's stack
		fields = append(fields, i, -i)
	}
	must(t, g.HSet(ctx, f, key, fields...))
	all, err := client.HGetAll(ctx, key).Result()
	must(t, err)
	if len(all) != 20_000 || all["19999"] != "-19999" || all["500"] != "-500" {
		t.Errorf("HSet of 20,000 fields wrote %d; field 500 is %q", len(all), all["500"])
	}
	must(t, g.HSet(ctx, f, key, "500", "new"))
	for name, err := range map[string]error{
		"Set":  g.Set(ctx, fence(4, "b"), key, "late", 0),
		"HSet": g.HSet(ctx, fence(4, "b"), key, "500", "late"),
		"Del":  g.Del(ctx, fence(4, "b"), key),
	} {
		if !errors.Is(err, fencing.ErrStale) || client.HGet(ctx, key, "500").Val() != "new" {
			t.Errorf("a stale %s: %v, and field 500 is %q", name, err, client.HGet(ctx, key, "500").Val())
		}
	}
	must(t, g.Del(ctx, f, key))
	if n := client.Exists(ctx, key).Val(); n != 0 {
		t.Error("Del left the key")
	}
	if err := g.Set(ctx, fence(4, "b"), key, "late", 0); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale write after Del: %v; want ErrStale, since the mark stays", err)
	}
	for name, err := range map[string]error{
		"a TTL below 1 ms":  g.Set(ctx, f, key, "v", time.Microsecond),
		"a negative TTL":    g.Set(ctx, f, key, "v", -time.Second),
		"a field alone":     g.HSet(ctx, f, key, "f"),
		"no fields":         g.HSet(ctx, f, key),
		"an empty key":      g.Set(ctx, f, "", "v", 0),
		"a key that is not": g.Del(ctx, f, "\xff"),
	} {
		if !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
}

// TestWrongType: a key of another type is the server's error; the fence has passed all the same.
func TestWrongType(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedRedis(t), redis.Options{})
	g := open(t, client, newPrefix())
	ctx, key := t.Context(), newKey(t)
	must(t, client.RPush(ctx, key, "a").Err())
	if err := g.HSet(ctx, fence(5, "a"), key, "f", "v"); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
		t.Errorf("HSet of a list: %v; want WRONGTYPE", err)
	}
	if err := g.Advance(ctx, key, fence(4, "b")); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a lower fence after it: %v; want ErrStale", err)
	}
}

// TestForeignMarks: what is no mark lets nothing pass, and is left alone.
func TestForeignMarks(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.SharedRedis(t), redis.Options{})
	g := open(t, client, newPrefix())
	ctx := t.Context()
	for name, put := range map[string]func(mark string) error{
		"text":        func(mark string) error { return client.Set(ctx, mark, "text", 0).Err() },
		"half a mark": func(mark string) error { return client.HSet(ctx, mark, "token", "0000000000000000001").Err() },
		"a short token": func(mark string) error {
			return client.HSet(ctx, mark, "domain", "redisguard", "token", "1", "owner", "a").Err()
		},
		"a token beyond the last": func(mark string) error {
			return client.HSet(ctx, mark, "domain", "redisguard", "token", "9999999999999999999", "owner", "a").Err()
		},
		"a token in text": func(mark string) error {
			return client.HSet(ctx, mark, "domain", "redisguard", "token", "000000000000000000x", "owner", "a").Err()
		},
	} {
		key := newKey(t)
		must(t, put(g.mark(key)))
		before := client.Dump(ctx, g.mark(key)).Val()
		for call, err := range map[string]error{
			"Advance": g.Advance(ctx, key, fence(5, "a")),
			"Set":     g.Set(ctx, fence(5, "a"), key, "v", 0),
			"Migrate": g.Migrate(ctx, key, "redisguard", "elsewhere"),
		} {
			if err == nil || errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrDomain) {
				t.Errorf("%s where the mark is %s: %v; want an error that is the server's", call, name, err)
			}
		}
		if client.Exists(ctx, key).Val() != 0 || client.Dump(ctx, g.mark(key)).Val() != before {
			t.Errorf("where the mark was %s, something was written", name)
		}
	}
}

// TestReplica: a replica lets nothing pass, not even the mark's own fence, since it may be behind.
func TestReplica(t *testing.T) {
	t.Parallel()
	primary := servers.Redis(t)
	client := connect(t, primary.Addr, redis.Options{})
	g := open(t, client, newPrefix())
	ctx, key := t.Context(), newKey(t)
	must(t, g.Set(ctx, fence(5, "a"), key, "v", 0))
	replica := connect(t, servers.RedisReplica(t, primary.Addr).Addr, redis.Options{MaxRetries: -1})
	other, err := New(replica, &Options{Prefix: strings.TrimSuffix(g.prefix, ":v1:mark:{")})
	must(t, err)
	for _, f := range []fencing.Fence{fence(5, "a"), fence(6, "b")} {
		if err := other.Advance(ctx, key, f); err == nil || !redis.IsReadOnlyError(err) {
			t.Errorf("Advance(%v) on a replica: %v; want READONLY", f, err)
		}
	}
	if err := other.Advance(ctx, key, fence(4, "b")); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a stale fence on a replica: %v", err)
	}
}

// TestNoMemory: a server that is full lets nothing pass.
func TestNoMemory(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.Redis(t).Addr, redis.Options{MaxRetries: -1})
	g := open(t, client, newPrefix())
	ctx, key := t.Context(), newKey(t)
	must(t, g.Set(ctx, fence(5, "a"), key, "v", 0))
	must(t, client.ConfigSet(ctx, "maxmemory", "1").Err())
	for _, f := range []fencing.Fence{fence(5, "a"), fence(6, "b")} {
		if err := g.Set(ctx, f, key, "w", 0); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("a write with %v to a full server: %v; want OOM", f, err)
		}
	}
	must(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
	if v := client.Get(ctx, key).Val(); v != "v" {
		t.Errorf("the value is %q", v)
	}
	must(t, g.Set(ctx, fence(5, "a"), key, "x", 0)) // no mark has moved either
}

// TestRefusedUsers: who may not do what the guard needs is told by the server, and nothing passes.
func TestRefusedUsers(t *testing.T) {
	t.Parallel()
	addr := servers.Redis(t).Addr
	admin := connect(t, addr, redis.Options{})
	ctx, key, prefix := t.Context(), newKey(t), newPrefix()
	must(t, open(t, admin, prefix).Set(ctx, fence(5, "a"), key, "v", 0))
	for user, rules := range map[string][]any{
		"noscripts": {"~*", "+@all", "-@scripting"},
		"nomarks":   {"~" + key, "+@all"},
		"nodata":    {"~" + prefix + "*", "+@all"},
		"nothing":   {"~*", "+@read", "+evalsha", "+eval"},
	} {
		must(t, admin.Do(ctx, append([]any{"ACL", "SETUSER", user, "on", ">hunter2"}, rules...)...).Err())
		g := open(t, connect(t, addr, redis.Options{Username: user, Password: "hunter2", MaxRetries: -1}), prefix)
		err := g.Set(ctx, fence(6, "b"), key, "w", 0)
		if err == nil || errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrDomain) {
			t.Errorf("a write by %s: %v; want the server's refusal", user, err)
		} else if said := err.Error(); !strings.Contains(said, "NOPERM") && !strings.Contains(said, "can't run this command") || strings.Contains(said, "hunter2") {
			t.Errorf("a write by %s: %q; want the server's refusal, and no password", user, said)
		}
		if got := admin.Get(ctx, key).Val(); got != "v" {
			t.Errorf("%s has written %q", user, got)
		}
	}
}

// TestEviction: marks outlive all that has a TTL when memory runs out under a volatile policy.
func TestEviction(t *testing.T) {
	t.Parallel()
	client := connect(t, servers.Redis(t, "--maxmemory", "4mb", "--maxmemory-policy", "volatile-lru").Addr, redis.Options{})
	g := open(t, client, newPrefix())
	ctx := t.Context()
	const n = 200
	for i := range n {
		must(t, g.Set(ctx, fence(5, "a"), fmt.Sprint("k", i), strings.Repeat("v", 100), time.Hour))
	}
	for i := range 5000 {
		must(t, client.Set(ctx, fmt.Sprint("filling", i), strings.Repeat("v", 1000), time.Hour).Err())
	}
	var evicted int64
	for i := range n {
		evicted += 1 - client.Exists(ctx, fmt.Sprint("k", i)).Val()
		if err := g.Advance(ctx, fmt.Sprint("k", i), fence(4, "b")); !errors.Is(err, fencing.ErrStale) {
			t.Fatalf("a stale fence where the key was evicted: %v", err)
		}
	}
	if evicted == 0 {
		t.Error("no key was evicted: this test is about marks without their keys")
	}
}

// TestMigratingSlot: while a slot is on the move a key that is not there cannot be written, which is the Cluster's error; the mark
// can be moved.
func TestMigratingSlot(t *testing.T) {
	t.Parallel()
	cluster := servers.RedisCluster(t, 0)
	g := open(t, connectCluster(t, cluster), newPrefix())
	ctx := t.Context()
	must(t, g.Set(ctx, fence(5, "a"), "{s}there", "v", 0))
	must(t, g.Advance(ctx, "{s}away", fence(5, "a")))
	finish := cluster.Migrate(t, "{s}")
	must(t, g.Set(ctx, fence(5, "a"), "{s}there", "w", 0))
	for _, key := range []string{"{s}away", "{s}new"} { // with its mark at the old place, and without one
		if err := g.Set(ctx, fence(5, "a"), key, "v", 0); !redis.IsTryAgainError(err) {
			t.Errorf("a write to %s: %v; want TRYAGAIN", key, err)
		}
		must(t, g.Advance(ctx, key, fence(6, "b")))
	}
	finish()
	must(t, g.Set(ctx, fence(6, "b"), "{s}new", "v", 0))
	must(t, g.Set(ctx, fence(6, "b"), "{s}away", "v", 0))
	for _, key := range []string{"{s}there", "{s}away", "{s}new"} {
		if err := g.Set(ctx, fence(4, "c"), key, "late", 0); !errors.Is(err, fencing.ErrStale) {
			t.Errorf("a stale write to %s after the move: %v", key, err)
		}
	}
}

func TestNew(t *testing.T) {
	client := connect(t, "127.0.0.1:1", redis.Options{})
	for name, err := range map[string]error{
		"no client":        second(New(nil, nil)),
		"a nil client":     second(New((*redis.Client)(nil), nil)),
		"a Ring":           second(New(redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}), nil)),
		"braces":           second(New(client, &Options{Prefix: "{a}"})),
		"a long prefix":    second(New(client, &Options{Prefix: strings.Repeat("p", 129)})),
		"a prefix of \xff": second(New(client, &Options{Prefix: "\xff"})),
	} {
		if !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("New with %s: %v; want ErrInvalid", name, err)
		}
	}
	g, err := New(client, nil)
	must(t, err)
	if got := g.mark("a}b"); !strings.HasPrefix(got, "paddock:v1:mark:{") || !strings.HasSuffix(got, "}:a}b") {
		t.Errorf("the mark of a}b is %q", got)
	}
}

func second(_ *Guard, err error) error { return err }

// TestWireCost counts what a call sends.
func TestWireCost(t *testing.T) {
	t.Parallel()
	server := servers.Redis(t)
	client := connect(t, server.Addr, redis.Options{})
	probe := connect(t, server.Addr, redis.Options{})
	g := open(t, client, newPrefix())
	ctx := t.Context()
	must(t, g.Set(ctx, fence(1, "a"), "k", "v", 0)) // the server knows the script
	must(t, probe.ConfigResetStat(ctx).Err())
	const n = 10
	for i := range n {
		must(t, g.Set(ctx, fence(fencing.Token(i+2), "a"), "k", "v", 0))
	}
	stats := strings.Fields(probe.Info(ctx, "commandstats").Val())
	if !slices.ContainsFunc(stats, func(s string) bool { return strings.HasPrefix(s, fmt.Sprintf("cmdstat_evalsha:calls=%d,", n)) }) ||
		slices.ContainsFunc(stats, func(s string) bool { return strings.HasPrefix(s, "cmdstat_eval:") }) {
		t.Errorf("%d calls sent other than %d EVALSHA: %v", n, n, stats)
	}
}
