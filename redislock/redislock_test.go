package redislock

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/servers"
)

const (
	envAddr    = "PADDOCK_REDISLOCK_ADDR"    // of the server that a child process is to use
	envCluster = "PADDOCK_REDISLOCK_CLUSTER" // of the nodes, if it is a Cluster
	envPrefix  = "PADDOCK_REDISLOCK_PREFIX"  // and the prefix
)

func TestMain(m *testing.M) {
	conformance.Child(func() paddock.Locker {
		var client redis.UniversalClient = redis.NewClient(&redis.Options{Addr: os.Getenv(envAddr)})
		if nodes := os.Getenv(envCluster); nodes != "" {
			client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(nodes, ",")})
		}
		l, err := New(client, &Options{Prefix: os.Getenv(envPrefix)})
		if err != nil {
			panic(err)
		}
		return l
	})
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) { conform(t, redis.Options{}) }

// TestConformanceOldProtocol is the suite for a client that speaks RESP2 and ends commands with their contexts.
func TestConformanceOldProtocol(t *testing.T) {
	conform(t, redis.Options{Protocol: 2, ContextTimeoutEnabled: true})
}

func conform(t *testing.T, o redis.Options) {
	server := servers.Redis(t)
	t.Setenv(envAddr, server.Addr)
	suite(t, []*servers.Process{server}, func(proxies map[string]*servers.Proxy) redis.UniversalClient {
		o := o
		o.Addr = server.Addr
		o.Dialer, o.PoolSize = through(proxies), manyDials
		return redis.NewClient(&o)
	}, nil)
}

// TestConformanceCluster is the suite for a Cluster.
func TestConformanceCluster(t *testing.T) {
	cluster := servers.RedisCluster(t, 0)
	t.Setenv(envCluster, strings.Join(cluster.Addrs, ","))
	suite(t, cluster.Nodes, func(proxies map[string]*servers.Proxy) redis.UniversalClient {
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: cluster.Addrs, Dialer: through(proxies), PoolSize: manyDials, ClusterStateReloadInterval: 200 * time.Millisecond,
		})
		// The suite warms a Locker up with one key. The next may be on another node.
		must(t, client.ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
			var errs []error
			for _, text := range []string{acquireLua, releaseLua, undoLua, renewLua} {
				errs = append(errs, node.ScriptLoad(ctx, text).Err())
			}
			return errors.Join(errs...)
		}))
		return client
	}, func(tb testing.TB, probe *redis.Client) {
		until(tb, "a Cluster again", func() bool {
			return strings.Contains(probe.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
		})
	})
}

// manyDials is a PoolSize. After so many dials in a row that failed go-redis pauses for a second, which is its own affair.
const manyDials = 1000

// through dials the proxy of an address if it has one.
func through(proxies map[string]*servers.Proxy) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p := proxies[addr]; p != nil {
			addr = p.Addr
		}
		return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	}
}

// suite runs the conformance suite on a service of these nodes.
func suite(t *testing.T, nodes []*servers.Process, connect func(map[string]*servers.Proxy) redis.UniversalClient, ready func(testing.TB, *redis.Client)) {
	const prefix = "conformance"
	t.Setenv(envPrefix, prefix)
	var probes []*redis.Client
	for _, n := range nodes {
		probe := redis.NewClient(&redis.Options{Addr: n.Addr})
		t.Cleanup(func() { probe.Close() })
		probes = append(probes, probe)
	}
	open := func(tb testing.TB, proxies map[string]*servers.Proxy) paddock.Locker {
		client := connect(proxies)
		l, err := New(client, &Options{Prefix: prefix})
		must(tb, err)
		closeAfter(tb, l, client)
		return l
	}
	conformance.Run(t, conformance.Backend{
		Open:  func(tb testing.TB) paddock.Locker { return open(tb, nil) },
		Child: true,
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				proxies := map[string]*servers.Proxy{}
				for _, n := range nodes {
					proxies[n.Addr] = servers.NewProxy(tb, n.Addr)
				}
				all := func(do func(*servers.Proxy)) func() {
					return func() {
						for _, p := range proxies {
							do(p)
						}
					}
				}
				return open(tb, proxies), conformance.Link{
					DelayRequests: func(d time.Duration) { all(func(p *servers.Proxy) { p.DelayRequests(d) })() },
					DelayReplies:  func(d time.Duration) { all(func(p *servers.Proxy) { p.DelayReplies(d) })() },
					LoseReplies:   all((*servers.Proxy).LoseReplies),
					Silence:       all((*servers.Proxy).Hold),
					Cut:           all((*servers.Proxy).Cut),
					Pass:          all((*servers.Proxy).Pass),
				}
			},
			Restart: func(tb testing.TB) {
				for _, n := range nodes {
					n.Restart()
				}
				for _, probe := range probes {
					if ready != nil {
						ready(tb, probe)
					}
				}
			},
			Forget: func(tb testing.TB) {
				for _, probe := range probes {
					if err := probe.FlushAll(context.Background()).Err(); err != nil {
						tb.Error(err)
					}
				}
			},
		},
		Commands: func() (n int64) {
			for _, probe := range probes {
				n += servers.Sent(t, probe)
			}
			return n
		},
		Left: func(ctx context.Context) (keys []string, err error) {
			for _, probe := range probes {
				more, e := servers.LocksLeft(ctx, probe, prefix)
				keys, err = append(keys, more...), errors.Join(err, e)
			}
			return keys, err
		},
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
	must(tb, err)
	closeAfter(tb, l, client)
	return l
}

// closeAfter closes client when the test and the Locker are over. The suite closes that later than the test's own clean-up.
func closeAfter(tb testing.TB, l *Locker, client redis.UniversalClient) {
	tb.Cleanup(func() {
		go func() {
			<-l.Done()
			client.Close()
		}()
	})
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
