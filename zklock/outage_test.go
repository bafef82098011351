package zklock

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// TestMajorityDown asks an ensemble that cannot decide anything.
func TestMajorityDown(t *testing.T) {
	q := servers.ZooKeeper(t, 3)
	ctx := limited(t)
	o := *options("paddock")
	holder, l := locker(t, q.Endpoints(), o), locker(t, q.Endpoints(), o)
	held, ttl := acquire(t, holder, "held"), &paddock.Options{TTL: o.SessionTimeout}
	waiter := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "held", ttl)
		waiter <- err
	}()
	conn := client(t, q.Endpoints())
	eventually(t, "a waiter", func() bool {
		children, _, err := conn.Children(below(holder.ensemble.o, "held"))
		return err == nil && len(children) == 2
	})
	conn.Close()
	down := []*servers.Process{q.Nodes[0], q.Nodes[1]}
	for _, node := range down {
		node.Kill()
	}
	begun := time.Now()
	_, err := l.TryAcquire(ctx, "key", ttl)
	is(t, err, paddock.ErrUnavailable)
	if took := time.Since(begun); took > 2*o.SessionTimeout {
		t.Errorf("TryAcquire took %v", took)
	}
	begun = time.Now()
	_, err = l.Acquire(ctx, "key", ttl)
	is(t, err, paddock.ErrUnavailable)
	if took := time.Since(begun); took < minSilence*9/10 || took > 3*minSilence {
		t.Errorf("Acquire gave up after %v; the servers may be silent for %v", took, minSilence)
	}
	t.Logf("Acquire says: %v", err)
	select {
	case err := <-waiter:
		is(t, err, paddock.ErrUnavailable)
	case <-time.After(maxPoll + minSilence + soon):
		t.Error("a waiter has not given up")
	}
	is(t, held.Err(), paddock.ErrLost)

	for _, node := range down {
		node.Restart()
	}
	q.AwaitReady(t)
	for _, l := range []*Locker{l, holder} {
		release(t, acquire(t, l, "key"))
		release(t, acquire(t, l, "held"))
	}
}

// TestLeaderKilled has leases and queues live through the loss of a leader, and of the server that they are on.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	q := servers.ZooKeeper(t, 3)
	ctx := limited(t)
	o := Options{SessionTimeout: 15 * time.Second, TickTime: 200 * time.Millisecond}
	holder, first, second := locker(t, q.Endpoints(), o), locker(t, q.Endpoints(), o), locker(t, q.Endpoints(), o)
	conn := client(t, q.Endpoints())
	parent := below(holder.ensemble.o, "key")
	lease := acquire(t, holder, "key")
	got := make(chan *Locker, 2)
	for i, l := range []*Locker{first, second} {
		go func() {
			lease, err := l.Acquire(ctx, "key", nil)
			if err != nil {
				t.Error(err)
			}
			got <- l
			_ = lease.Release(ctx)
		}()
		eventually(t, "a waiter", func() bool {
			children, _, err := conn.Children(parent)
			return err == nil && len(children) == 2+i
		})
	}
	killed := q.Nodes[q.Leader(t)]
	killed.Kill()
	q.Leader(t)
	for _, l := range []*Locker{holder, first, second} { // so that each is connected again
		release(t, acquire(t, l, "another"))
	}
	if err := lease.Err(); err != nil {
		t.Errorf("the lease of %v did not live through the change of leader: %v", lease.TTL(), err)
	}
	killed.Restart()
	q.AwaitReady(t)
	release(t, lease)
	if l := <-got; l != first {
		t.Error("the second waiter was served before the first")
	}
	<-got
}

// TestPlaceIsKept cuts a waiter off for less than its session lasts, and for longer than it may trust it.
func TestPlaceIsKept(t *testing.T) {
	t.Parallel()
	addrs := servers.SharedZooKeeper(t)
	for name, c := range map[string]struct {
		spoil func(*servers.Proxy)
		long  bool
	}{
		"Cut": {(*servers.Proxy).Cut, false}, "Silent": {(*servers.Proxy).Hold, false}, "WindowClosed": {(*servers.Proxy).Hold, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 5 { // until the session has lived through it, which a slow machine may not let it
				if placeIsKept(t, addrs, c.spoil, c.long) {
					return
				}
			}
			t.Error("the session has never lived through the outage")
		})
	}
}

func placeIsKept(t *testing.T, addrs []string, spoil func(*servers.Proxy), long bool) bool {
	ctx, o := limited(t), Options{Prefix: fresh(), SessionTimeout: 4 * time.Second, TickTime: 200 * time.Millisecond}
	p := servers.NewProxy(t, addrs[0])
	first := locker(t, []string{p.Addr}, o)
	o.SessionTimeout = 20 * time.Second
	holder, second := locker(t, addrs, o), locker(t, addrs, o)
	conn, parent := client(t, addrs), below(o, "key")
	lease := acquire(t, holder, "key")
	got := make(chan *Locker, 2)
	var waiters sync.WaitGroup
	defer waiters.Wait()
	for i, l := range []*Locker{first, second} {
		waiters.Go(func() {
			lease, err := l.Acquire(ctx, "key", nil)
			if err != nil {
				t.Error(err)
				return
			}
			got <- l
			if err := lease.Release(ctx); err != nil && !errors.Is(err, paddock.ErrLost) { // nothing keeps it longer than its session
				t.Error(err)
			}
		})
		eventually(t, "a waiter", func() bool {
			children, _, err := conn.Children(parent)
			return err == nil && len(children) == 2+i
		})
	}
	session := first.ensemble.session
	spoil(p)
	for until := time.Now().Add(time.Second); time.Now().Before(until) || long && time.Now().Before(session.keeper.Deadline()); {
		time.Sleep(time.Millisecond)
	}
	release(t, lease) // which the first waiter does not hear of now
	p.Pass()
	winner := <-got
	<-got
	first.ensemble.mu.Lock()
	lived := first.ensemble.session == session
	first.ensemble.mu.Unlock()
	if lived && winner != first {
		t.Error("the second waiter was served before the first, whose session was there all the time")
	}
	return lived
}

// TestExpiredSession lets the servers end a session with a holder and a waiter.
func TestExpiredSession(t *testing.T) {
	t.Parallel()
	addrs, ctx, o := servers.SharedZooKeeper(t), limited(t), *options(fresh())
	p := servers.NewProxy(t, addrs[0])
	l := locker(t, []string{p.Addr}, o)
	o.SessionTimeout = 20 * time.Second
	other := locker(t, addrs, o)
	lease, blocker := acquire(t, l, "held"), acquire(t, other, "waited for")
	waiter := make(chan *paddock.Lease, 1)
	go func() {
		lease, err := l.Acquire(ctx, "waited for", &paddock.Options{TTL: time.Minute})
		if err != nil {
			t.Error(err)
		}
		waiter <- lease
	}()
	conn := client(t, addrs)
	nodes := func() int {
		children, _, _ := conn.Children(below(o, "waited for"))
		return len(children)
	}
	eventually(t, "a waiter", func() bool { return nodes() == 2 })
	l.ensemble.mu.Lock()
	session := l.ensemble.session
	l.ensemble.mu.Unlock()
	p.Cut()
	next := acquire(t, other, "held") // when the session is over
	is(t, lease.Err(), paddock.ErrLost)
	eventually(t, "the end of the waiter's node", func() bool { return nodes() == 1 })
	p.Pass()
	eventually(t, "the waiter in the queue again", func() bool { return nodes() == 2 })
	if !session.isOver() {
		t.Error("the old session is not known to be over")
	}
	refused(t, l, "held")
	release(t, blocker)
	release(t, <-waiter)
	release(t, next)
	release(t, acquire(t, l, "held"))
	is(t, lease.Release(ctx), paddock.ErrLost)
}

// TestNobodyThere has servers that refuse connections, or do not answer on them.
func TestNobodyThere(t *testing.T) {
	t.Parallel()
	refusing := servers.NewProxy(t, servers.SharedZooKeeper(t)[0])
	refusing.Cut()
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	for what, addr := range map[string]string{"refuses": refusing.Addr, "does not answer": quiet.Addr().String()} {
		l := locker(t, []string{addr}, *options(fresh()))
		begun := time.Now()
		_, err := l.TryAcquire(context.Background(), "key", nil)
		is(t, err, paddock.ErrUnavailable)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("TryAcquire on a server that %s: %v", what, err)
		}
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("TryAcquire on a server that %s took %v", what, took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		_, err = paddock.Inspect(ctx, l, "key")
		is(t, err, context.DeadlineExceeded)
		cancel()
	}
	// The reason is told.
	l := locker(t, []string{refusing.Addr}, *options(fresh()))
	_, err = l.Acquire(context.Background(), "key", &paddock.Options{TTL: 2 * time.Second})
	is(t, err, paddock.ErrUnavailable)
	is(t, err, syscall.ECONNREFUSED)
	if !strings.Contains(err.Error(), refusing.Addr) {
		t.Errorf("the error does not name the server: %v", err)
	}
}

// TestOneServerOfThree has two that do not answer, of which the third should not suffer.
func TestOneServerOfThree(t *testing.T) {
	t.Parallel()
	good := servers.SharedZooKeeper(t)[0]
	silentOne, cutOne := servers.NewProxy(t, good), servers.NewProxy(t, good)
	p := servers.NewProxy(t, good)
	o := Options{Prefix: fresh(), SessionTimeout: 6 * time.Second, TickTime: 200 * time.Millisecond}
	l := locker(t, []string{silentOne.Addr, p.Addr, cutOne.Addr}, o)
	lease := acquire(t, l, "key")
	for range 3 {
		silentOne.Hold()
		cutOne.Cut()
		p.Pass()
		time.Sleep(o.SessionTimeout)
		if err := lease.Err(); err != nil {
			t.Fatalf("lost while one of three servers was there all the time: %v", err)
		}
		silentOne.Pass()
		cutOne.Pass()
		silentOne, p, cutOne = p, cutOne, silentOne
	}
	release(t, lease)
}

// TestWaiterLeavesInAnOutage has a waiter give up while no server is there: nothing of it goes on.
func TestWaiterLeavesInAnOutage(t *testing.T) {
	t.Parallel()
	q := servers.ZooKeeper(t, 1)
	o := Options{Prefix: fresh(), SessionTimeout: 20 * time.Second, TickTime: 200 * time.Millisecond, CloseWait: 200 * time.Millisecond}
	l, err := New(q.Endpoints(), &o)
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(q.Endpoints(), &o)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	acquire(t, other, "key")
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, "key", &paddock.Options{TTL: time.Hour})
		got <- err
	}()
	conn := client(t, q.Endpoints())
	eventually(t, "two in the queue", func() bool {
		nodes, _, _ := conn.Children(below(o, "key"))
		return len(nodes) == 2
	})
	q.Nodes[0].Kill()
	s := l.ensemble.session
	eventually(t, "no connection", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.failure != nil
	})
	cancel()
	is(t, <-got, context.Canceled)
	_ = l.Close() // says that a key is left to expire
	select {
	case <-l.Done():
	case <-time.After(soon):
		t.Error("the Locker does not come to its end: the waiter goes on")
	}
}

// TestTrustEndsTheWait has a session that nobody proves any more: who has got to the head of a queue does not stand there for ever.
func TestTrustEndsTheWait(t *testing.T) {
	t.Parallel()
	addrs := servers.SharedZooKeeper(t)
	p := servers.NewProxy(t, addrs[0])
	l := locker(t, []string{p.Addr}, Options{Prefix: fresh(), SessionTimeout: 2 * time.Second, TickTime: 200 * time.Millisecond})
	release(t, acquire(t, l, "key"))
	s := l.ensemble.session
	p.Hold()
	eventually(t, "an outage longer than the window", func() bool { return time.Now().After(s.keeper.Deadline()) })
	if err := s.trusted(t.Context(), 50*time.Millisecond); !errors.Is(err, errUnproven) {
		t.Errorf("trusted = %v; want errUnproven", err)
	}
	p.Pass()
	eventually(t, "trust, or another session", func() bool { return s.trusted(t.Context(), soon) == nil || s.isOver() })
}
