//go:build linux

package faults

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/paddock-go/paddock/internal/servers"
)

const (
	prefix  = "faults"
	session = 2 * time.Second // ZooKeeper's
)

// service is a lock service under attack.
type service struct {
	title string // in the table
	ttl   time.Duration
	addrs []string // of its nodes, for clients
	url   func(addrs []string) string
	kinds []kind                                      // of faults, beside those of links and workers
	left  func(ctx context.Context) ([]string, error) // what is there beside what the package documents as kept
	must  bool                                        // be seen to break exclusion, or the run proves nothing
}

var services = []struct {
	name  string
	start func(tb testing.TB) *service
}{
	{"redis", single}, {"redis-failover", pair}, {"redlock", quorum}, {"etcd", etcd}, {"zookeeper", zookeeper},
}

// Clients that fail over soon: as the packages advise.
const redisClient = "&dial_timeout=500ms&max_retries=-1&read_timeout=1s"

func redisURL(addrs []string) string {
	return "redis://" + addrs[0] + "?prefix=" + prefix + redisClient
}

// single is one Redis, whose clock can be set.
func single(tb testing.TB) *service {
	server := servers.FaketimeRedis(tb)
	return &service{
		title: "redislock, one server", ttl: 2 * time.Second, addrs: []string{server.Addr}, url: redisURL,
		left: func(ctx context.Context) ([]string, error) { return redisLeft(ctx, server.Addr) },
		kinds: []kind{
			pausing(server.Process), restarting(server.Process), wiping(server.Process), jumping(server),
		},
	}
}

// pair is a primary and a replica, which takes over without having heard of the latest locks.
func pair(tb testing.TB) *service {
	primary := servers.Redis(tb)
	between := servers.NewProxy(tb, primary.Addr)
	replica := servers.RedisReplica(tb, between.Addr)
	lead := newFront(tb, primary.Addr)
	s := &service{
		title: "redislock, primary and replica", ttl: 3 * time.Second, addrs: []string{lead.addr}, url: redisURL,
		left: func(ctx context.Context) ([]string, error) { return redisLeft(ctx, primary.Addr) },
		must: true,
	}
	failover := kind{name: "failover", breaks: true, loses: true, draw: func(d *draw) fault {
		lag := d.between(0.3, 0.9)
		return fault{
			inject: func() {
				between.Hold()
				time.Sleep(lag)
				primary.Kill()
				servers.Promote(tb, replica)
				lead.leadTo(replica.Addr)
				primary = replica
			},
			heal: func() {
				between.Cut()
				between = servers.NewProxy(tb, primary.Addr)
				replica = servers.RedisReplica(tb, between.Addr)
			},
		}
	}}
	lagging := kind{name: "replica cut off", draw: func(*draw) fault {
		return fault{inject: func() { between.Cut() }, heal: func() { between.Pass() }}
	}}
	pause := kind{name: "server paused", draw: func(*draw) fault {
		return fault{inject: func() { primary.Pause() }, heal: func() { primary.Resume() }}
	}}
	s.kinds = []kind{failover, failover, failover, lagging, pause}
	return s
}

// quorum is five Redis for redlock; the clock of one can be set.
func quorum(tb testing.TB) *service {
	nodes := servers.RedisNodes(tb, 4)
	odd := servers.FaketimeRedis(tb)
	nodes = append(nodes, odd.Process)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	return &service{
		title: "redlock, five nodes", ttl: 2 * time.Second, addrs: addrs,
		url: func(addrs []string) string {
			return "redlock://" + strings.Join(addrs, ",") + "?prefix=" + prefix + redisClient
		},
		left: func(ctx context.Context) ([]string, error) {
			var left []string
			for _, addr := range addrs {
				keys, err := redisLeft(ctx, addr)
				if err != nil {
					return nil, err
				}
				left = append(left, keys...)
			}
			return left, nil
		},
		kinds: []kind{
			pausing(nodes...), pausingTwo(nodes), restartingLate(nodes), wiping(nodes...), jumping(odd),
		},
	}
}

// redisLeft returns the keys that are neither fence records nor marks of attempts that were undone.
func redisLeft(ctx context.Context, addr string) ([]string, error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer c.Close()
	var left []string
	keys := c.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		if k := keys.Val(); !strings.HasSuffix(k, ":fence") && !strings.Contains(k, ":undone:") {
			left = append(left, k)
		}
	}
	return left, keys.Err()
}

func etcd(tb testing.TB) *service {
	q := servers.Etcd(tb, 3)
	return &service{
		title: "etcdlock, three members", ttl: 2 * time.Second, addrs: q.Endpoints(), kinds: quorumFaults(tb, q),
		url: func(addrs []string) string {
			return "etcd://" + strings.Join(addrs, ",") + "?prefix=" + prefix
		},
		left: func(ctx context.Context) ([]string, error) {
			c, err := clientv3.New(clientv3.Config{Endpoints: q.Endpoints(), Logger: zap.NewNop()})
			if err != nil {
				return nil, err
			}
			defer c.Close()
			resp, err := c.Get(ctx, prefix+"/v1/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				return nil, err
			}
			var left []string
			for _, kv := range resp.Kvs {
				if !strings.HasPrefix(string(kv.Key), prefix+"/v1/abort/") {
					left = append(left, string(kv.Key))
				}
			}
			return left, nil
		},
	}
}

func zookeeper(tb testing.TB) *service {
	q := servers.ZooKeeper(tb, 3)
	return &service{
		title: "zklock, three servers", ttl: session, addrs: q.Endpoints(), kinds: quorumFaults(tb, q),
		url: func(addrs []string) string {
			return "zk://" + strings.Join(addrs, ",") + "?" + url.Values{
				"prefix": {prefix}, "domain": {"zookeeper/faults"}, "session_timeout": {session.String()}, "tick_time": {"200ms"},
			}.Encode()
		},
		left: func(context.Context) ([]string, error) {
			c, _, err := zk.Connect(q.Endpoints(), 10*time.Second, zk.WithLogger(quiet{}))
			if err != nil {
				return nil, err
			}
			defer c.Close()
			root := "/" + prefix + "/v1"
			keys, _, err := c.Children(root)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", root, err)
			}
			var left []string
			for _, key := range keys {
				nodes, _, err := c.Children(root + "/" + key)
				if err != nil {
					continue // the servers have removed the container meanwhile
				}
				for _, n := range nodes {
					left = append(left, key+"/"+n)
				}
			}
			return left, nil
		},
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
