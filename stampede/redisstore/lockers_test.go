package redisstore_test

import (
	"context"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/redislock"
	"github.com/paddock-go/paddock/redlock"
	"github.com/paddock-go/paddock/zklock"
)

// lockers make a child's Locker on the servers that its parent has started. They count what is sent.
var lockers = map[string]func(sent *atomic.Int64) paddock.Locker{
	"redis": func(sent *atomic.Int64) paddock.Locker {
		l, err := redislock.New(counted(os.Getenv(servers.EnvRedis), sent), nil)
		check(err)
		return l
	},
	"redlock": func(sent *atomic.Int64) paddock.Locker {
		var nodes []redis.UniversalClient
		for addr := range strings.SplitSeq(os.Getenv(servers.EnvRedlock), ",") {
			nodes = append(nodes, counted(addr, sent))
		}
		l, err := redlock.New(nodes, nil)
		check(err)
		return l
	},
	"etcd": func(sent *atomic.Int64) paddock.Locker {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: strings.Split(os.Getenv(servers.EnvEtcd), ","), Logger: zap.NewNop(),
			DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
				conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				sent.Add(1)
				return invoke(ctx, method, req, reply, conn, opts...)
			})},
		})
		check(err)
		l, err := etcdlock.New(client, nil)
		check(err)
		return l
	},
	"zookeeper": func(sent *atomic.Int64) paddock.Locker {
		l, err := zklock.New(strings.Split(os.Getenv(servers.EnvZooKeeper), ","), &zklock.Options{
			SessionTimeout: lockTTL, TickTime: 200 * time.Millisecond,
			Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
				return &countedConn{conn, sent}, err
			},
		})
		check(err)
		return l
	},
}

// lockTTL is a TTL that every Locker can do.
const lockTTL = 2 * time.Second

// serve starts the servers of a Locker, for this process and its children.
func serve(t *testing.T, lock string) {
	t.Helper()
	switch lock {
	case "redis":
		servers.SharedRedis(t)
	case "redlock":
		servers.SharedRedlock(t)
	case "etcd":
		servers.SharedEtcd(t)
	case "zookeeper":
		servers.SharedZooKeeper(t)
	}
}

// counted is a client whose round trips are counted.
func counted(addr string, sent *atomic.Int64) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	client.AddHook(&wire{also: sent})
	return client
}

// countedConn counts requests, of which go-zookeeper writes each in one piece.
type countedConn struct {
	net.Conn
	sent *atomic.Int64
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(b)
}
