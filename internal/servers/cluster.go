package servers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

const slots = 16384

// Cluster is a Redis Cluster of three primaries, the first three Nodes, and
// their replicas, if any.
type Cluster struct {
	Nodes []*Process
	Addrs []string

	ids     []string
	clients []*redis.Client
}

// RedisCluster starts a Cluster, each primary with as many replicas as said.
// A primary that is gone is replaced by its replica in about four seconds.
// args are directives for every node.
func RedisCluster(tb testing.TB, replicas int, args ...string) *Cluster {
	tb.Helper()
	needRedis(tb)
	c := &Cluster{}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("servers: cluster: %v", err)
		}
	}
	var bus []string
	for range 3 * (1 + replicas) {
		ip, port := split(address())
		bus = append(bus, port)
		p := Redis(tb, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", port, "--cluster-announce-ip", ip,
			"--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000",
		}, args...)...)
		c.Nodes = append(c.Nodes, p)
		c.Addrs = append(c.Addrs, p.Addr)
		client := p.redis()
		tb.Cleanup(func() { client.Close() })
		c.clients = append(c.clients, client)
		id, err := client.ClusterMyID(ctx).Result()
		check(err)
		c.ids = append(c.ids, id)
	}
	for i, client := range c.clients {
		// Epochs that differ from the start leave nothing to be agreed on.
		check(client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
		if i < 3 {
			check(client.ClusterAddSlotsRange(ctx, i*slots/3, (i+1)*slots/3-1).Err())
		}
		if i > 0 {
			ip, port := split(c.Addrs[i])
			check(c.clients[0].Do(ctx, "CLUSTER", "MEET", ip, port, bus[i]).Err())
		}
	}
	c.await(tb, func(ctx context.Context, i int) error {
		return c.infoHas(ctx, i, fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.Nodes)))
	})
	for i := 3; i < len(c.Nodes); i++ {
		check(c.clients[i].ClusterReplicate(ctx, c.ids[i%3]).Err())
	}
	c.await(tb, func(ctx context.Context, i int) error {
		if err := c.infoHas(ctx, i, "cluster_state:ok", "cluster_size:3\r\n"); err != nil || replicas == 0 {
			return err
		}
		if i < 3 {
			return infoHas(ctx, c.clients[i], fmt.Sprintf("connected_slaves:%d", replicas))
		}
		return infoHas(ctx, c.clients[i], "master_link_status:up")
	})
	return c
}

func (c *Cluster) await(tb testing.TB, probe func(ctx context.Context, i int) error) {
	tb.Helper()
	for i, p := range c.Nodes {
		err := p.await("in the cluster", func(ctx context.Context) error { return probe(ctx, i) })
		if err != nil {
			tb.Fatalf("servers: cluster: %v", err)
		}
	}
}

func (c *Cluster) infoHas(ctx context.Context, i int, want ...string) error {
	info, err := c.clients[i].ClusterInfo(ctx).Result()
	for _, w := range want {
		if err == nil && !strings.Contains(info, w) {
			err = fmt.Errorf("no %s in: %s", w, info)
		}
	}
	return err
}

// Owner returns the primary that key is on at present.
func (c *Cluster) Owner(tb testing.TB, key string) *Process {
	tb.Helper()
	owner, err := c.owner(key)
	if err != nil {
		tb.Fatalf("servers: cluster: %v", err)
	}
	return c.Nodes[owner]
}

// owner finds the node that does not refer a question about key to another.
func (c *Cluster) owner(key string) (int, error) {
	var errs []error
	for i, client := range c.clients {
		if !c.Nodes[i].Running() {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
		err := client.Exists(ctx, key).Err()
		cancel()
		if err == nil || strings.HasPrefix(err.Error(), "ASK ") {
			return i, nil
		}
		errs = append(errs, err)
	}
	return 0, fmt.Errorf("nobody owns the slot of %q: %w", key, errors.Join(errs...))
}

// Migrate begins to move the slot of key to another primary: keys that are in
// it stay where they are for now, what is not there is asked for at the new
// place (ASK). finish moves the keys and ends it, after which the old place
// refers everybody to the new one (MOVED).
func (c *Cluster) Migrate(tb testing.TB, key string) (finish func()) {
	tb.Helper()
	check := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatalf("servers: cluster: migrate: %v", err)
		}
	}
	ctx := context.Background()
	from, err := c.owner(key)
	check(err)
	to := (from + 1) % 3
	source, target := c.clients[from], c.clients[to]
	slot, err := source.ClusterKeySlot(ctx, key).Result()
	check(err)
	check(target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from]).Err())
	check(source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to]).Err())
	return func() {
		tb.Helper()
		ip, port := split(c.Addrs[to])
		for {
			keys, err := source.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
			check(err)
			if len(keys) == 0 {
				break
			}
			args := []any{"MIGRATE", ip, port, "", 0, (5 * time.Second).Milliseconds(), "KEYS"}
			for _, k := range keys {
				args = append(args, k)
			}
			check(source.Do(ctx, args...).Err())
		}
		check(target.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]).Err())
		check(source.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]).Err())
	}
}
