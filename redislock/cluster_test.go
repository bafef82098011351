package redislock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// clusterFixture is a Locker on a Cluster, and a client to look over its shoulder.
type clusterFixture struct {
	*Locker
	cluster *servers.Cluster
	probe   *redis.ClusterClient
	prefix  string
}

func onCluster(t *testing.T, c *servers.Cluster, replicas int) clusterFixture {
	t.Helper()
	f := clusterFixture{cluster: c, prefix: newPrefix(), probe: clusterClient(t, c)}
	f.Locker = f.another(t, replicas)
	return f
}

func clusterClient(tb testing.TB, c *servers.Cluster) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs, ClusterStateReloadInterval: 200 * time.Millisecond, DialerRetries: 1,
	})
	tb.Cleanup(func() { client.Close() })
	return client
}

// another Locker for the same keys.
func (f clusterFixture) another(t *testing.T, replicas int) *Locker {
	t.Helper()
	l, err := New(clusterClient(t, f.cluster), &Options{Prefix: f.prefix, MinReplicas: replicas, ReplicaWait: time.Second})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// TestClusterSlots has keys with braces of their own, whose lock and record have to share a slot all the same.
func TestClusterSlots(t *testing.T) {
	t.Parallel()
	f := onCluster(t, servers.RedisCluster(t, 0), 0)
	for _, key := range []string{"plain", "{a}b", "a{b}", "{}", "{", "}", "}{", "a}b{c}d", "%7D", "{user:1}:{cart}", strings.Repeat("{}", 500)} {
		lock, fence := f.server.names(key)
		a, err := f.probe.ClusterKeySlot(t.Context(), lock).Result()
		must(t, err)
		b, err := f.probe.ClusterKeySlot(t.Context(), fence).Result()
		must(t, err)
		if a != b {
			t.Errorf("%q is in slot %d, %q in %d", lock, a, fence, b)
		}
		lease := take(t, f, key, patient)
		if _, err := f.TryAcquire(t.Context(), key, patient); !errors.Is(err, paddock.ErrHeld) {
			t.Errorf("a second try of %q: %v; want ErrHeld", key, err)
		}
		must(t, lease.Extend(t.Context(), 2*time.Minute))
		must(t, lease.Release(t.Context()))
	}
}

// TestClusterWaiters has a waiter hear of a release on whatever node it is subscribed.
func TestClusterWaiters(t *testing.T) {
	t.Parallel()
	f := onCluster(t, servers.RedisCluster(t, 0), 0)
	other := f.another(t, 0)
	for _, key := range []string{"a", "b", "c", "d"} { // over all nodes
		lease := take(t, f, key, patient)
		waiter := waitFor(t.Context(), other, key)
		until(t, "subscribed", func() bool {
			var n int64
			for _, addr := range f.cluster.Addrs {
				probe := redis.NewClient(&redis.Options{Addr: addr})
				n += probe.PubSubNumSub(t.Context(), f.server.channel).Val()[f.server.channel]
				must(t, probe.Close())
			}
			return n > 0
		})
		must(t, lease.Release(t.Context()))
		comes(t, waiter, "a waiter for "+key)
	}
}

// TestClusterMigration takes and gives up locks of a slot that is on the move, and checks that tokens rise throughout.
func TestClusterMigration(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1} {
		f := onCluster(t, servers.RedisCluster(t, replicas), replicas)
		other := f.another(t, replicas)
		lock, fence := f.server.names("k")
		before := take(t, f, "k", patient)
		must(t, before.Release(t.Context()))
		last := before.Token()
		acquire := func(l *Locker, when string) *paddock.Lease {
			t.Helper()
			lease, err := l.Acquire(t.Context(), "k", patient)
			if err != nil {
				t.Fatalf("Acquire %s (%d replicas): %v", when, replicas, err)
			}
			if lease.Token() <= last {
				t.Errorf("token %d %s, %d before", lease.Token(), when, last)
			}
			last = lease.Token()
			if _, err := other.TryAcquire(t.Context(), "k", patient); !errors.Is(err, paddock.ErrHeld) {
				t.Errorf("a second try %s: %v; want ErrHeld", when, err)
			}
			return lease
		}

		finish := f.cluster.Migrate(t, lock)
		// The record is at the old place, a new lock goes to the new one.
		source := redis.NewClient(&redis.Options{Addr: f.cluster.Owner(t, lock).Addr})
		defer source.Close()
		lease := acquire(f.Locker, "while the lock is at the new place and its record at the old")
		if source.Exists(t.Context(), fence).Val() != 1 {
			t.Error("the record has moved; this test is about a lock and a record on two nodes")
		}
		if err := source.Get(t.Context(), lock).Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK ") {
			t.Errorf("the lock at the old place: %v; want ASK", err)
		}
		must(t, lease.Extend(t.Context(), 2*time.Minute))
		if h, err := f.Inspect(t.Context(), "k"); err != nil || h.Owner != lease.Owner() {
			t.Errorf("Inspect during the move: %+v, %v; want the owner %s", h, err, lease.Owner())
		}
		must(t, lease.Release(t.Context()))

		waited := acquire(f.Locker, "again")
		waiter := waitFor(t.Context(), other, "k")
		undone := attempt("k", time.Minute)
		must(t, f.server.Undo(t.Context(), undone))
		must(t, waited.Release(t.Context()))
		comes(t, waiter, "a waiter during the move")
		if _, err := f.server.Try(t.Context(), undone); err == nil {
			t.Error("an undone attempt got the lock during the move")
		}
		must(t, f.server.Undo(t.Context(), undone)) // as the Keeper does after an error

		across := acquire(f.Locker, "before the end of the move")
		finish()
		must(t, across.Extend(t.Context(), 2*time.Minute))
		must(t, across.Release(t.Context()))
		must(t, acquire(f.Locker, "after the move").Release(t.Context()))
	}
}

// TestClusterFailover loses a node whose replica has the lock.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	f := onCluster(t, servers.RedisCluster(t, 1), 0)
	safe := f.another(t, 1)
	before := take(t, safe, "k", patient)
	must(t, before.Release(t.Context()))
	held := take(t, safe, "k", patient)
	lock, _ := f.server.names("k")
	f.cluster.Owner(t, lock).Kill()

	var err error
	until(t, "failed over", func() bool {
		_, err = f.TryAcquire(t.Context(), "k", patient)
		return !errors.Is(err, paddock.ErrUnavailable)
	})
	if !errors.Is(err, paddock.ErrHeld) {
		t.Errorf("a lock that a replica had, after the failover: %v; want ErrHeld", err)
	}
	if h, err := f.Inspect(t.Context(), "k"); err != nil || h.Owner != held.Owner() || h.Token != held.Token() {
		t.Errorf("Inspect after the failover: %+v, %v; want the lease %v", h, err, held.Fence())
	}
	must(t, held.Release(t.Context()))
	after := take(t, f, "k", patient)
	if after.Token() <= held.Token() {
		t.Errorf("token %d after the failover, %d before", after.Token(), held.Token())
	}
	must(t, after.Release(t.Context()))
}
