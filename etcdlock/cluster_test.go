package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/etcdlock"
	"github.com/paddock-go/paddock/internal/servers"
)

// long is a TTL that a machine with too much to do renews in time, also while the cluster elects a leader.
const long = 15 * time.Second

// A holder and a waiter go on when another member leads.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	q := servers.Etcd(t, 3, patient...)
	b := benchOn(t, q.Endpoints())
	l := b.open()
	other, stands := b.openTelling()
	held := b.acquire(l, "k", ttl(long))
	single := b.acquire(l, "single", &paddock.Options{TTL: long, MaxHold: time.Hour})
	got := b.acquiring(other, "k", ttl(long))
	<-stands
	place := b.queued("k", 2)[1]
	leader := q.Leader(t)
	q.Nodes[leader].Kill()
	q.Leader(t)
	time.Sleep(long + time.Second) // what was not renewed is lost by then
	for _, lease := range []*paddock.Lease{held, single} {
		if err := lease.Err(); err != nil {
			t.Errorf("a lease after the leader's death: %v", err)
		}
	}
	if now := b.queued("k", 2)[1]; now.name != place.name {
		t.Errorf("the waiter has lost its place: %s was %s", now.name, place.name)
	}
	q.Nodes[leader].Restart()
	q.AwaitReady(t)
	b.release(held)
	next := b.granted(got, soon)
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
	b.release(next)
	b.release(single)
}

// Without a majority: errors in time, a holder that knows, and all as before when the majority is back.
func TestMajorityDown(t *testing.T) {
	t.Parallel()
	q := servers.Etcd(t, 3, patient...)
	b := benchOn(t, q.Endpoints())
	l, other := b.open(), b.open()
	held := b.acquire(l, "k", ttl(3*time.Second))
	waiter := make(chan error, 1)
	go func() {
		_, err := other.Acquire(b.ctx, "k", ttl(3*time.Second))
		waiter <- err
	}()
	b.queued("k", 2)
	for _, node := range q.Nodes[:2] {
		node.Kill()
	}
	begun := time.Now()
	b.lost(held, held.TTL()+soon)
	if took := time.Since(begun); took > held.TTL()+time.Second {
		t.Errorf("the holder learnt of it after %v; its TTL is %v", took, held.TTL())
	}
	begun = time.Now()
	if _, err := l.TryAcquire(b.ctx, "other", ttl(3*time.Second)); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("TryAcquire without a majority: %v; want ErrUnavailable", err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("TryAcquire without a majority took %v", took)
	}
	begun = time.Now()
	if _, err := l.Acquire(b.ctx, "other", ttl(3*time.Second)); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("Acquire without a majority: %v; want ErrUnavailable", err)
	}
	if took := time.Since(begun); took < 4*time.Second || took > 5*time.Second+soon {
		t.Errorf("Acquire without a majority took %v; want 5 s and some", took)
	}
	select {
	case err := <-waiter:
		if !errors.Is(err, paddock.ErrUnavailable) {
			t.Errorf("the waiter's error: %v; want ErrUnavailable", err)
		}
	case <-time.After(soon):
		t.Error("the waiter has not given up")
	}
	for _, node := range q.Nodes[:2] {
		node.Restart()
	}
	q.AwaitReady(t)
	for _, key := range []string{"k", "other"} {
		for _, locker := range []paddock.Locker{l, other} {
			b.release(b.acquire(locker, key, ttl(3*time.Second)))
		}
	}
	b.queued("k", 0)
}

// A holder whose only member is cut off from the others knows before the next holder enters, each time.
func TestIsolatedLeader(t *testing.T) {
	t.Parallel()
	q := servers.Etcd(t, 3, patient...)
	b := benchOn(t, q.Endpoints())
	least := time.Hour
	for round := range 5 {
		leader := q.Leader(t)
		near := b.open(q.Nodes[leader].Addr)
		far := b.open(q.Nodes[(leader+1)%3].Addr, q.Nodes[(leader+2)%3].Addr)
		key := fmt.Sprint("k", round)
		held := b.acquire(near, key, ttl(2*time.Second))
		ended := make(chan time.Time, 1)
		context.AfterFunc(held.Context(), func() { ended <- time.Now() })
		got := b.acquiring(far, key, ttl(time.Minute))
		b.queued(key, 2)
		q.Isolate(leader)
		next := b.granted(got, 30*time.Second)
		entered := time.Now()
		select {
		case at := <-ended:
			least = min(least, entered.Sub(at))
		default:
			t.Fatalf("round %d: the next holder entered, and the last one's context has not ended", round)
		}
		if next.Token() <= held.Token() {
			t.Errorf("token %d after %d", next.Token(), held.Token())
		}
		if err := held.Release(b.ctx); !errors.Is(err, paddock.ErrLost) {
			t.Errorf("Release of a lost lease: %v", err)
		}
		q.Heal()
		q.AwaitReady(t)
		if err := next.Err(); err != nil {
			t.Errorf("the next holder after the healing: %v", err)
		}
		b.release(next)
	}
	t.Logf("the smallest gap between the end of one holder's context and the entry of the next: %v", least)
}

// Two of three members are silent to the client: every request may take the time that one may take, and no lease is lost.
func TestSilentMembers(t *testing.T) {
	t.Parallel()
	q := servers.Etcd(t, 3, patient...)
	b := benchOn(t, q.Endpoints())
	proxies := q.Proxies(t)
	l := b.open(proxies[0].Addr, proxies[1].Addr, proxies[2].Addr)
	var leases []*paddock.Lease
	for i := range 6 {
		opts := ttl(long - time.Duration(i)*time.Second)
		if i%3 == 2 {
			opts.MaxHold = time.Hour
		}
		leases = append(leases, b.acquire(l, fmt.Sprint(i), opts))
	}
	got := b.acquiring(l, "0", ttl(long))
	b.queued("0", 2)
	proxies[0].Hold()
	proxies[2].Hold()
	time.Sleep(long + time.Second) // what was not renewed is lost by then
	lost := 0
	for _, lease := range leases {
		if err := lease.Err(); err != nil {
			lost++
			t.Logf("a lease of %v: %v", lease.TTL(), err)
		}
	}
	if lost > 1 { // a beat may be unlucky in its connections four times in a row
		t.Errorf("%d of %d leases were lost, with a member that answers", lost, len(leases))
	}
	fresh := b.acquire(l, "fresh", ttl(long))
	for _, lease := range append(leases, fresh) {
		err := lease.Release(b.ctx)
		if err != nil && !errors.Is(err, paddock.ErrUnavailable) && !errors.Is(err, paddock.ErrLost) { // it goes on in the background
			t.Errorf("Release: %v", err)
		}
	}
	next := b.granted(got, 2*soon)
	if err := next.Release(b.ctx); err != nil && !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("Release: %v", err)
	}
	b.eventually("no key left", func() bool { return len(b.under("/v1/lock/")) == 0 })
	for _, p := range proxies {
		p.Pass()
	}
}

// A rolling restart of the cluster costs holders and waiters nothing.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	q := servers.Etcd(t, 3, patient...)
	b := benchOn(t, q.Endpoints())
	l, err := etcdlock.New(connect(t, q.Endpoints()), &etcdlock.Options{Prefix: b.prefix})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	held := b.acquire(l, "held", ttl(2*long))
	stop, done := make(chan struct{}), make(chan int, 4)
	for range cap(done) {
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					done <- n
					return
				default:
				}
				lease, err := l.Acquire(b.ctx, "k", ttl(long))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					done <- n
					return
				}
				n++
				if err := lease.Release(b.ctx); err != nil && !errors.Is(err, paddock.ErrUnavailable) {
					t.Errorf("Release: %v", err)
				}
			}
		}()
	}
	for _, node := range q.Nodes {
		node.Kill()
		node.Restart()
		q.AwaitReady(t)
	}
	close(stop)
	total := 0
	for range cap(done) {
		total += <-done
	}
	if total == 0 {
		t.Error("nobody was granted anything meanwhile")
	}
	t.Logf("%d acquisitions during the restart", total)
	if err := held.Err(); err != nil {
		t.Errorf("a lease held through it: %v", err)
	}
	b.release(held)
	b.eventually("no key left", func() bool { return len(b.under("/v1/lock/")) == 0 })
}
