package redisstore_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/storetest"
)

func TestCluster(t *testing.T) {
	// No node is to be given up because the machine is busy for two seconds: without replicas the slots of one that is make all commands
	// fail for several more.
	cluster := servers.RedisCluster(t, 0, "--cluster-node-timeout", "20000")
	dial := func(tb testing.TB) redis.UniversalClient {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs, ContextTimeoutEnabled: true})
		tb.Cleanup(func() { c.Close() })
		return c
	}
	direct := dial(t)
	linked(t, cluster)
	// The suite in a group of its own, so that it is over before slots move.
	t.Run("suite", func(t *testing.T) { storetest.Run(t, under(direct, dial)) })
	t.Run("migration", func(t *testing.T) { migrating(t, cluster, dial(t)) })
}

// linked waits until every node has a link to every other: until then a message does not reach all of them.
func linked(t *testing.T, cluster *servers.Cluster) {
	t.Helper()
	end := time.Now().Add(time.Minute)
	for _, addr := range cluster.Addrs {
		client := connect(t, addr)
		for {
			nodes, err := client.ClusterNodes(t.Context()).Result()
			if err == nil && strings.Count(nodes, " connected") == len(cluster.Addrs) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("node %s is not linked to all others: %v\n%s", addr, err, nodes)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// migrating: while the slot of a key moves, hits go on, and a load comes to an end; afterwards all is as before.
func migrating(t *testing.T, cluster *servers.Cluster, client redis.UniversalClient) {
	s, key := open(t, client), uuid.NewString()
	cache, err := stampede.New(s, stampede.Policies{{Pattern: "*", TTL: time.Hour}}, &stampede.Options[string]{
		StoreTimeout: 20 * time.Second, // a busy machine is no store that is down
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	load := func(context.Context) (string, error) { return "loaded", nil }
	if _, err := cache.Get(ctx, key, load); err != nil {
		t.Fatal(err)
	}
	finish := cluster.Migrate(t, base("default/"+key))
	r, err := cache.Lookup(ctx, key, load)
	if err != nil || r.Status != stampede.Fresh {
		t.Errorf("a hit while the slot moves: %+v, %v", r, err)
	}
	if _, err := cache.Refresh(ctx, key, load); err != nil {
		t.Errorf("a load while the slot moves: %v", err)
	}
	finish()
	if r, err := cache.Lookup(ctx, key, load); err != nil || r.Value != "loaded" {
		t.Errorf("a hit after the slot has moved: %+v, %v", r, err)
	}
	if err := cache.Invalidate(ctx, key); err != nil {
		t.Errorf("Invalidate after the slot has moved: %v", err)
	}
	if r, err := cache.Lookup(ctx, key, load); err != nil || r.Status != stampede.Loaded {
		t.Errorf("a load after the slot has moved: %+v, %v", r, err)
	}
}
