package redislock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// pair is a primary and a replica with a network between them that can fail.
type pair struct {
	primary, replica *servers.Process
	between          *servers.Proxy
	prefix           string
}

func newPair(t *testing.T) pair {
	primary := servers.Redis(t)
	between := servers.NewProxy(t, primary.Addr)
	p := pair{primary, servers.RedisReplica(t, between.Addr), between, newPrefix()}
	// A replica counts from its first acknowledgement, up to a second after it is in step.
	comes(t, waitFor(t.Context(), p.locker(t, primary, 1), "first"), "the first lock that the replica acknowledges")
	return p
}

// locker returns one that talks to p and asks for replicas.
func (p pair) locker(t *testing.T, at *servers.Process, replicas int) *Locker {
	client := redis.NewClient(&redis.Options{Addr: at.Addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { client.Close() })
	l, err := New(client, &Options{
		Prefix: p.prefix, MinReplicas: replicas, ReplicaWait: time.Second, CloseWait: 50 * time.Millisecond,
	})
	must(t, err)
	t.Cleanup(func() { l.Close() }) // whose server may be dead
	return l
}

// failOver kills the primary and promotes the replica.
func (p pair) failOver(t *testing.T) {
	t.Helper()
	p.primary.Kill()
	servers.Promote(t, p.replica)
}

// TestFailoverWithoutReplicas shows what an acknowledged lock is worth when the replica that is promoted has never heard of it.
func TestFailoverWithoutReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	first := p.locker(t, p.primary, 0)
	p.between.Hold()
	lease := take(t, first, "k", patient)
	p.failOver(t)

	second := take(t, p.locker(t, p.replica, 0), "k", patient)
	if left := time.Until(lease.Deadline()); lease.Err() != nil || left <= 0 {
		t.Fatalf("the first holder knows (%v, window %v); this test is to show that it does not", lease.Err(), left)
	}
	if second.Token() <= lease.Token() {
		t.Errorf("the second holder's token is %d, the first's %d; the server's clock should carry the order", second.Token(), lease.Token())
	}
	must(t, second.Release(t.Context()))
}

// TestFailoverWithReplicas is the same with MinReplicas: the lock that no replica has is not granted, the one that a replica has
// survives.
func TestFailoverWithReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	first := p.locker(t, p.primary, 1)
	lease := take(t, first, "replicated", patient)

	p.between.Hold()
	_, err := first.TryAcquire(t.Context(), "k", patient)
	if !errors.Is(err, paddock.ErrUnavailable) || !errors.Is(err, errReplicas) {
		t.Fatalf("a try while the replica is cut off: %v; want ErrUnavailable for want of replicas", err)
	}
	probe := redis.NewClient(&redis.Options{Addr: p.primary.Addr})
	defer probe.Close()
	lock, _ := first.server.names("k")
	until(t, "undone", func() bool { return probe.Exists(t.Context(), lock).Val() == 0 })
	p.failOver(t)

	successor := p.locker(t, p.replica, 0)
	if _, err := successor.TryAcquire(t.Context(), "replicated", patient); !errors.Is(err, paddock.ErrHeld) {
		t.Errorf("after the failover, the lock that the replica had: %v; want ErrHeld", err)
	}
	if h, err := successor.Inspect(t.Context(), "replicated"); err != nil || h.Owner != lease.Owner() || h.Token != lease.Token() {
		t.Errorf("after the failover, Inspect says %+v, %v; want the lease %v", h, err, lease.Fence())
	}
}

// TestAcquireWaitsForReplicas repeats until the replica is back.
func TestAcquireWaitsForReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	l := p.locker(t, p.primary, 1)
	must(t, take(t, l, "warm", patient).Release(t.Context()))
	probe := redis.NewClient(&redis.Options{Addr: p.primary.Addr})
	defer probe.Close()
	p.between.Hold()
	before := servers.Sent(t, probe)
	waiter := waitFor(t.Context(), l, "k")
	until(t, "repeated", func() bool { return servers.Sent(t, probe) > before+2 })
	p.between.Pass()
	comes(t, waiter, "an Acquire whose replica came back")
}

// TestRenewalNeedsReplicas cuts the replica off under a holder, who must not trust what only the primary has.
func TestRenewalNeedsReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	l := p.locker(t, p.primary, 1)
	const ttl = 6 * time.Second // of which a sixth is what one call has, WAIT and all
	lease := take(t, l, "k", &paddock.Options{TTL: ttl})
	must(t, lease.Extend(t.Context(), ttl))
	p.between.Hold()
	if err := lease.Extend(t.Context(), time.Minute); !errors.Is(err, errReplicas) {
		t.Errorf("Extend while the replica is cut off: %v; want an error for want of replicas", err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the lease goes on without replicas")
	}
	if err := lease.Err(); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("the lease ended with %v; want ErrLost", err)
	}
}

// TestWireCostWithReplicas counts the commands of an acquisition with replicas.
func TestWireCostWithReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	l := p.locker(t, p.primary, 1)
	probe := redis.NewClient(&redis.Options{Addr: p.primary.Addr})
	defer probe.Close()
	must(t, take(t, l, "warm", patient).Release(t.Context()))
	must(t, probe.ScriptFlush(t.Context()).Err())
	must(t, take(t, l, "warm", patient).Release(t.Context()))
	before := servers.Sent(t, probe)
	lease := take(t, l, "k", patient)
	if n := servers.Sent(t, probe) - before; n != 2 {
		t.Errorf("an acquisition with replicas costs %d commands; want the script and WAIT", n)
	}
	before = servers.Sent(t, probe)
	must(t, lease.Release(t.Context()))
	if n := servers.Sent(t, probe) - before; n != 1 {
		t.Errorf("a release with replicas costs %d commands; want 1", n)
	}
}

// TestSentinelFailover opens by URL, loses the primary, and goes on with the next.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := servers.RedisSentinel(t)
	url := "redis+sentinel://" + strings.Join(s.Addrs, ",") + "/0?master_name=" + s.Name + "&prefix=" + newPrefix() + "&min_replicas=1&close_wait=100ms"
	l := opened(t, url)
	other := opened(t, url)
	before := take(t, l, "k", patient)
	must(t, before.Release(t.Context()))
	held := take(t, l, "held", patient)
	lock, _ := l.server.names("held")
	for _, replica := range s.Replicas { // one is sure to have it; either may be promoted
		probe := redis.NewClient(&redis.Options{Addr: replica.Addr})
		until(t, "replicated", func() bool { return probe.Get(t.Context(), lock).Val() == held.Owner() })
		must(t, probe.Close())
	}

	s.Primary.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	after, err := other.Acquire(ctx, "k", patient)
	if err != nil {
		t.Fatalf("Acquire during a failover: %v", err)
	}
	if after.Token() <= before.Token() {
		t.Errorf("token %d after a failover, %d before it", after.Token(), before.Token())
	}
	if _, err := other.TryAcquire(t.Context(), "held", patient); !errors.Is(err, paddock.ErrHeld) {
		t.Errorf("a lock that replicas had, after the failover: %v; want ErrHeld", err)
	}
	must(t, held.Extend(ctx, patient.TTL))
	must(t, held.Release(t.Context()))
	must(t, after.Release(t.Context()))
}
