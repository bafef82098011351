package servers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// asked returns a client that asks the sentinels for the primary.
func asked(t *testing.T, s *Sentinel) *redis.Client {
	t.Helper()
	client := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: s.Name, SentinelAddrs: s.Addrs, MaxRetries: -1, DialerRetries: 1,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := RedisSentinel(t)
	client := asked(t, s)
	must(t, client.Set(ctx, "k", 1, 0).Err())
	if n := client.Wait(ctx, 2, 5*time.Second).Val(); n != 2 {
		t.Fatalf("%d replicas have the write, want 2", n)
	}
	s.Primary.Kill()
	until(t, "failed over", func() error { return client.Incr(ctx, "k").Err() })
	if n := client.Get(ctx, "k").Val(); n != "2" {
		t.Fatalf("k is %s on the new primary, want 2", n)
	}
	until(t, "known to all sentinels", func() error { // the others hear of it from the one that led
		if now := s.Current(t); now != s.Replicas[0].Addr && now != s.Replicas[1].Addr {
			return fmt.Errorf("the primary is said to be at %s, which is no replica", now)
		}
		return nil
	})
}

// The old primary and the new one both grant the same lock.
func TestSentinelSplitBrain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := RedisSentinel(t)
	direct, client := connect(t, s.Primary.Addr), asked(t, s)
	must(t, client.Ping(ctx).Err())

	s.Link.Hold()
	if ok, err := direct.SetNX(ctx, "lock", "A", time.Minute).Result(); !ok || err != nil {
		t.Fatalf("A's lock on the old primary: %v, %v", ok, err)
	}
	until(t, "failed over", func() error {
		ok, err := client.SetNX(ctx, "lock", "B", time.Minute).Result()
		if err == nil && !ok {
			t.Fatal("B was refused: it still speaks to the old primary")
		}
		return err
	})
	if got := direct.Get(ctx, "lock").Val(); got != "A" {
		t.Fatalf("the old primary says that %q holds the lock, want A", got)
	}

	s.Link.Pass()
	until(t, "healed", func() error {
		if got := direct.Get(ctx, "lock").Val(); got != "B" {
			return fmt.Errorf("the old primary says that %q holds the lock", got)
		}
		return nil
	})
}

func clusterClient(t *testing.T, c *Cluster) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs, DialerRetries: 1, DialTimeout: time.Second, ClusterStateReloadInterval: 200 * time.Millisecond,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

func TestClusterMigration(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := RedisCluster(t, 0)
	client := clusterClient(t, c)
	for i := range 100 { // over all primaries
		must(t, client.Set(ctx, fmt.Sprint("k", i), i, 0).Err())
	}

	must(t, client.Set(ctx, "{slot}here", 1, 0).Err())
	before := c.Owner(t, "{slot}")
	source := connect(t, before.Addr)
	finish := c.Migrate(t, "{slot}")
	must(t, source.Get(ctx, "{slot}here").Err())
	if err := source.Get(ctx, "{slot}absent").Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
		t.Fatalf("a key that is not there, while the slot moves: %v, want ASK", err)
	}
	must(t, client.Set(ctx, "{slot}absent", 1, 0).Err())

	finish()
	if err := source.Get(ctx, "{slot}here").Err(); err == nil || !strings.HasPrefix(err.Error(), "MOVED ") {
		t.Fatalf("a key that has moved: %v, want MOVED", err)
	}
	if after := c.Owner(t, "{slot}"); after == before {
		t.Fatal("the slot has not moved")
	}
	for _, key := range []string{"{slot}here", "{slot}absent"} {
		if got := client.Get(ctx, key).Val(); got != "1" {
			t.Fatalf("%s is %q after the slot moved", key, got)
		}
	}
}

func TestClusterFailover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := RedisCluster(t, 1)
	client := clusterClient(t, c)
	must(t, client.Set(ctx, "k", 1, 0).Err())
	owner := c.Owner(t, "k")
	if n := connect(t, owner.Addr).Wait(ctx, 1, 5*time.Second).Val(); n != 1 {
		t.Fatal("the replica does not have the write")
	}
	owner.Kill()
	until(t, "failed over", func() error { return client.Incr(ctx, "k").Err() })
	if now := c.Owner(t, "k"); now == owner {
		t.Fatal("the slot still belongs to a dead node")
	}
}

func TestFaketimeRedis(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := FaketimeRedis(t)
	client := connect(t, s.Addr)
	off := func() time.Duration { return time.Until(client.Time(ctx).Val()).Round(time.Second) }
	if d := off(); d != 0 {
		t.Fatalf("the clock is off by %v before any jump", d)
	}
	must(t, client.Set(ctx, "k", 1, 10*time.Second).Err())
	s.Jump(-time.Minute)
	if d := off(); d != -time.Minute {
		t.Fatalf("the clock is off by %v, want -1m", d)
	}
	if ttl := client.PTTL(ctx, "k").Val(); ttl < time.Minute {
		t.Fatalf("after a jump back by a minute the key lives for %v, want more than that", ttl)
	}
	s.Jump(2 * time.Minute)
	if d := off(); d != time.Minute {
		t.Fatalf("the clock is off by %v, want 1m: jumps add up", d)
	}
	if err := client.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
		t.Fatalf("after a jump past its end the key gives %v, want nothing", err)
	}
}
