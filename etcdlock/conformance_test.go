package etcdlock_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
)

// endpointsEnv tells a child process of the suite where the cluster is.
const endpointsEnv = "ETCDLOCK_TEST_ENDPOINTS"

func TestMain(m *testing.M) {
	conformance.Child(func() paddock.Locker {
		client, err := clientv3.New(config(strings.Split(os.Getenv(endpointsEnv), ",")))
		if err != nil {
			panic(err)
		}
		l, err := etcdlock.New(client, nil)
		if err != nil {
			panic(err)
		}
		return l
	})
	os.Exit(m.Run())
}

// config is that of a client which connects again as soon as it can: gRPC's own would wait for longer and longer.
func config(endpoints []string, opts ...grpc.DialOption) clientv3.Config {
	opts = append(opts, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
		MinConnectTimeout: 3 * time.Second,
	}))
	return clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop(), DialOptions: opts}
}

func connect(tb testing.TB, endpoints []string, opts ...grpc.DialOption) *clientv3.Client {
	tb.Helper()
	client, err := clientv3.New(config(endpoints, opts...))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { client.Close() })
	return client
}

func open(tb testing.TB, client *clientv3.Client, opts *etcdlock.Options) *etcdlock.Locker {
	tb.Helper()
	l, err := etcdlock.New(client, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// wire counts what clients send: requests, and messages on streams.
type wire struct{ sent atomic.Int64 }

func (w *wire) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			w.sent.Add(1)
			return invoke(ctx, method, req, reply, conn, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
			stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := stream(ctx, desc, conn, method, opts...)
			return countedStream{s, w}, err
		}),
	}
}

type countedStream struct {
	grpc.ClientStream
	wire *wire
}

func (s countedStream) SendMsg(m any) error {
	s.wire.sent.Add(1)
	return s.ClientStream.SendMsg(m)
}

// left lists the keys that are not documented as kept.
func left(ctx context.Context, client *clientv3.Client, prefix string) ([]string, error) {
	resp, err := client.Get(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		if !strings.HasPrefix(key, prefix+"/v1/session/") && !strings.HasPrefix(key, prefix+"/v1/abort/") {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// suite runs the conformance suite on a cluster.
func suite(t *testing.T, q *servers.Quorum) {
	t.Setenv(endpointsEnv, strings.Join(q.Endpoints(), ","))
	var sent wire
	admin := connect(t, q.Endpoints())
	conformance.Run(t, conformance.Backend{
		Open: func(tb testing.TB) paddock.Locker {
			return open(tb, connect(tb, q.Endpoints(), sent.options()...), nil)
		},
		Child:    true,
		Commands: sent.sent.Load,
		Left:     func(ctx context.Context) ([]string, error) { return left(ctx, admin, "paddock") },
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				proxies := q.Proxies(tb)
				var endpoints []string
				for _, p := range proxies {
					endpoints = append(endpoints, p.Addr)
				}
				return open(tb, connect(tb, endpoints), nil), link(proxies)
			},
			Restart: func(tb testing.TB) {
				var nodes []*servers.Process
				for _, node := range q.Nodes {
					if node.Running() {
						nodes = append(nodes, node)
					}
				}
				for _, node := range nodes {
					node.Kill()
				}
				for _, node := range nodes {
					node.Restart()
				}
				q.AwaitReady(tb)
			},
			Forget: func(tb testing.TB) {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if _, err := admin.Delete(ctx, "paddock/", clientv3.WithPrefix()); err != nil {
					tb.Fatal(err)
				}
			},
		},
	})
}

// link spoils all proxies alike.
func link(proxies []*servers.Proxy) conformance.Link {
	each := func(do func(*servers.Proxy)) func() {
		return func() {
			for _, p := range proxies {
				do(p)
			}
		}
	}
	return conformance.Link{
		DelayRequests: func(d time.Duration) { each(func(p *servers.Proxy) { p.DelayRequests(d) })() },
		DelayReplies:  func(d time.Duration) { each(func(p *servers.Proxy) { p.DelayReplies(d) })() },
		LoseReplies:   each((*servers.Proxy).LoseReplies),
		Silence:       each((*servers.Proxy).Hold),
		Cut:           each((*servers.Proxy).Cut),
		Pass:          each((*servers.Proxy).Pass),
	}
}

// patient has members elect a leader as late as they do by default: quicker ones do so whenever the machine has too much to do.
// It also has them raise a TTL of a second to two.
var patient = []string{"--heartbeat-interval", "100", "--election-timeout", "1000"}

func TestConformance(t *testing.T) {
	t.Run("Nodes1", func(t *testing.T) { suite(t, servers.Etcd(t, 1)) })
	t.Run("Nodes3", func(t *testing.T) { servers.Full(t); suite(t, servers.Etcd(t, 3, patient...)) })
	t.Run("LeaderKilled", func(t *testing.T) { // and not replaced: a minority is down
		q := servers.Etcd(t, 3, patient...)
		q.Nodes[q.Leader(t)].Kill()
		q.Leader(t)
		suite(t, q)
	})
}
