package redislock

import (
	"context"
	"crypto/rand"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/servers"
)

const (
	envAddr   = "PADDOCK_REDISLOCK_ADDR"   // of the server that a child process is to use
	envPrefix = "PADDOCK_REDISLOCK_PREFIX" // and the prefix
)

func TestMain(m *testing.M) {
	conformance.Child(func() paddock.Locker {
		l, err := New(redis.NewClient(&redis.Options{Addr: os.Getenv(envAddr)}), &Options{Prefix: os.Getenv(envPrefix)})
		if err != nil {
			panic(err)
		}
		return l
	})
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	conform(t, redis.Options{})
}

// TestConformanceOldProtocol is the suite for a client that speaks RESP2 and ends commands with their contexts.
func TestConformanceOldProtocol(t *testing.T) {
	conform(t, redis.Options{Protocol: 2, ContextTimeoutEnabled: true})
}

func conform(t *testing.T, o redis.Options) {
	server, prefix := servers.Redis(t), "conformance"
	t.Setenv(envAddr, server.Addr)
	t.Setenv(envPrefix, prefix)
	probe := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { probe.Close() })
	conformance.Run(t, conformance.Backend{
		Open:  func(tb testing.TB) paddock.Locker { return openAt(tb, server.Addr, prefix, o) },
		Child: true,
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				p := servers.NewProxy(tb, server.Addr)
				// After so many dials in a row that failed, go-redis does not try for up to a second.
				o := o
				o.PoolSize = 1000
				return openAt(tb, p.Addr, prefix, o), conformance.Link{
					DelayRequests: p.DelayRequests, DelayReplies: p.DelayReplies, LoseReplies: p.LoseReplies,
					Silence: p.Hold, Cut: p.Cut, Pass: p.Pass,
				}
			},
			Restart: func(testing.TB) { server.Restart() },
			Forget: func(tb testing.TB) {
				if err := probe.FlushAll(context.Background()).Err(); err != nil {
					tb.Error(err)
				}
			},
		},
		Commands: func() int64 { return sent(t, probe) },
		Left:     func(ctx context.Context) ([]string, error) { return left(ctx, probe, prefix) },
	})
}

func BenchmarkConformance(b *testing.B) {
	addr, prefix := servers.SharedRedis(b), newPrefix()
	conformance.Benchmark(b, conformance.Backend{
		Open: func(tb testing.TB) paddock.Locker { return openAt(tb, addr, prefix, redis.Options{}) },
	})
}

// openAt returns a Locker with a client of its own, which outlives it.
func openAt(tb testing.TB, addr, prefix string, o redis.Options) *Locker {
	tb.Helper()
	o.Addr = addr
	client := redis.NewClient(&o)
	l, err := New(client, &Options{Prefix: prefix})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		go func() { // the suite closes the Locker, perhaps after this
			<-l.Done()
			client.Close()
		}()
	})
	return l
}

// sent counts what Lockers send, which is not what scripts call.
func sent(tb testing.TB, probe *redis.Client) int64 {
	tb.Helper()
	stats, err := probe.Info(context.Background(), "commandstats").Result()
	if err != nil {
		tb.Error(err)
	}
	var n int64
	for line := range strings.Lines(stats) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		switch name {
		case "evalsha", "eval", "script|load", "subscribe", "wait":
			calls, _, _ := strings.Cut(rest, ",")
			i, err := strconv.ParseInt(calls, 10, 64)
			if err != nil {
				tb.Errorf("INFO commandstats says %q", line)
			}
			n += i
		}
	}
	return n
}

// left lists the keys of a prefix that are not documented to stay.
func left(ctx context.Context, probe redis.UniversalClient, prefix string) ([]string, error) {
	var left []string
	keys := probe.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if key := keys.Val(); !strings.HasSuffix(key, "}:fence") {
			left = append(left, key)
		}
	}
	return left, keys.Err()
}

// newPrefix is unused so far.
func newPrefix() string { return "test-" + strings.ToLower(rand.Text()[:10]) }

// fixture is a Locker on the shared server, and a client to look over its shoulder.
type fixture struct {
	*Locker
	probe  *redis.Client
	prefix string
}

// shared returns a fixture whose Locker uses a client with the options o.
func shared(tb testing.TB, o redis.Options) fixture {
	tb.Helper()
	return at(tb, servers.SharedRedis(tb), o)
}

func at(tb testing.TB, addr string, o redis.Options) fixture {
	tb.Helper()
	f := fixture{prefix: newPrefix(), probe: redis.NewClient(&redis.Options{Addr: addr})}
	tb.Cleanup(func() { f.probe.Close() })
	f.Locker = openAt(tb, addr, f.prefix, o)
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return f
}

// patient is a TTL that no test waits for.
var patient = &paddock.Options{TTL: time.Minute}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// take acquires key, which has to be free.
func take(tb testing.TB, l paddock.Locker, key string, opts *paddock.Options) *paddock.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(tb.Context(), key, opts)
	if err != nil {
		tb.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return lease
}

// until polls until ok, for a generous time.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not %s after 20 s", what)
		}
	}
}
