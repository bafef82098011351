package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/servers"
)

// requests records what a Locker sends, less its heartbeats.
type requests struct {
	mu   sync.Mutex
	sent []int32
}

func (r *requests) see(opcode int32, packet []byte) {
	if !heartbeatPacket(opcode, packet) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sent = append(r.sent, opcode)
	}
}

// during returns what was sent while f ran.
func (r *requests) during(f func()) []int32 {
	r.mu.Lock()
	r.sent = nil
	r.mu.Unlock()
	f()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}

func TestWire(t *testing.T) {
	addrs, o := servers.ZooKeeper(t, 1).Endpoints(), Options{}
	var r requests
	o.Dialer = spying(r.see)
	l := locker(t, addrs, o)
	o.Dialer = nil
	other := locker(t, addrs, o)
	release(t, acquire(t, l, "warm")) // and with it the root
	var lease *paddock.Lease
	for _, c := range []struct {
		what string
		do   func()
		want []int32
	}{
		{"Acquire of a key that was used before", func() { lease = acquire(t, l, "warm") }, []int32{opMulti, opChildren2}},
		{"Release", func() { release(t, lease) }, []int32{opDelete}},
		{"Acquire of a key that nobody has used", func() { lease = acquire(t, l, "fresh") }, []int32{opMulti, opChildren2}},
		{"TryAcquire of a held key", func() { refused(t, l, "fresh") }, []int32{opMulti, opChildren2, opDelete}},
		{"Release", func() { release(t, lease) }, []int32{opDelete}},
		{"a wait for one other, and the lock", func() {
			held := acquire(t, other, "warm")
			waiter := make(chan *paddock.Lease)
			go func() { waiter <- acquire(t, l, "warm") }()
			eventually(t, "a waiter that watches", func() bool { return measured(t, addrs[0], "zk_watch_count") == 1 })
			release(t, held)
			lease = <-waiter
		}, []int32{opMulti, opChildren2, opGetData}},
		{"Release", func() { release(t, lease) }, []int32{opDelete}},
	} {
		if got := r.during(c.do); !slices.Equal(got, c.want) {
			t.Errorf("%s sent the opcodes %v; want %v", c.what, got, c.want)
		}
	}
}

func (r *requests) now() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}

// TestCancelledWaits has 10,000 waiters give up, each when another has begun to wait.
func TestCancelledWaits(t *testing.T) {
	const waits, atOnce = 10_000, 16
	q := servers.ZooKeeper(t, 1)
	addr := q.Nodes[0].Addr
	begun := make(chan struct{}, waits)
	holder := locker(t, q.Endpoints(), Options{})
	waiter := locker(t, q.Endpoints(), Options{Observer: &paddock.Observer{
		Contended: func(string, time.Duration) { begun <- struct{}{} },
	}})
	held := acquire(t, holder, "key")
	release(t, acquire(t, waiter, "another")) // warm
	goroutines := runtime.NumGoroutine()
	var running sync.WaitGroup
	for range atOnce {
		running.Go(func() {
			for range waits / atOnce {
				ctx, cancel := context.WithCancel(context.Background())
				go func() {
					select {
					case <-begun:
					case <-time.After(100 * time.Millisecond): // one that was cancelled before tells nothing
					}
					cancel()
				}()
				if _, err := waiter.Acquire(ctx, "key", nil); !errors.Is(err, context.Canceled) {
					t.Errorf("Acquire: %v", err)
				}
			}
		})
	}
	running.Wait()
	conn := client(t, q.Endpoints())
	eventually(t, "the removal of all nodes but the holder's", func() bool {
		children, _, err := conn.Children(below(holder.ensemble.o, "key"))
		return err == nil && len(children) == 1
	})
	if n := measured(t, addr, "zk_watch_count"); n != 1 {
		t.Errorf("%d cancelled waits have left %d watches; want 1", waits, n)
	}
	s := waiter.ensemble.session
	s.mu.Lock()
	watches := len(s.watches)
	s.mu.Unlock()
	if watches != 1 {
		t.Errorf("the client remembers %d watches; want 1", watches)
	}
	eventually(t, "the end of the waits' goroutines", func() bool { return runtime.NumGoroutine() < goroutines+20 })
	// One that stays is woken by the same watch.
	next := make(chan *paddock.Lease)
	go func() { next <- acquire(t, waiter, "key") }()
	eventually(t, "a waiter", func() bool {
		children, _, err := conn.Children(below(holder.ensemble.o, "key"))
		return err == nil && len(children) == 2
	})
	if n := measured(t, addr, "zk_watch_count"); n != 1 {
		t.Errorf("%d watches while one waits after all those; want 1", n)
	}
	release(t, held)
	release(t, <-next)
	if n := measured(t, addr, "zk_watch_count"); n != 0 {
		t.Errorf("%d watches when nobody waits; want none", n)
	}
}

// TestManyKeys uses 10,000 keys once.
func TestManyKeys(t *testing.T) {
	const keys, atOnce = 10_000, 32
	q := tidying(t, 1)
	addr := q.Nodes[0].Addr
	before := measured(t, addr, "zk_znode_count")
	l := locker(t, q.Endpoints(), Options{})
	var running sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		running.Go(func() {
			for i := next.Add(1); i <= keys; i = next.Add(1) {
				lease, err := l.TryAcquire(context.Background(), fmt.Sprintf("once/%d", i), nil)
				if err != nil {
					t.Errorf("TryAcquire: %v", err)
					return
				}
				if err := lease.Release(context.Background()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	running.Wait()
	eventually(t, fmt.Sprintf("the removal of all that %d keys needed", keys), func() bool {
		return measured(t, addr, "zk_znode_count") == before
	})
	e := l.ensemble
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.nodes) != 0 || len(e.parents) > maxParents || len(e.session.multis) != 0 || e.session.busy != 0 {
		t.Errorf("the process remembers %d nodes, %d parents, %d requests and %d attempts and leases",
			len(e.nodes), len(e.parents), len(e.session.multis), e.session.busy)
	}
}

// TestForeignNodes has nodes of others below a key's parent.
func TestForeignNodes(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), Options{Prefix: fresh()}
	a, b := locker(t, addrs, o), locker(t, addrs, o)
	release(t, acquire(t, a, "key"))
	conn, parent := client(t, addrs), below(o, "key")
	var foreign []string
	for _, name := range []string{
		"0000000000", "lock-", "lock-0000000000", "lock-" + uuid.NewString(), "lock-" + uuid.NewString() + "-", "write-0000000000",
		"lock-" + uuid.NewString() + "-x", "lock-" + uuid.NewString() + "-99999999999", "_c_" + uuid.NewString() + "-lock-0000000000",
	} {
		if _, err := conn.Create(parent+"/"+name, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, name)
	}
	lease := acquire(t, a, "key")
	refused(t, b, "key")
	next := make(chan *paddock.Lease)
	go func() { next <- acquire(t, b, "key") }()
	release(t, lease)
	release(t, <-next)
	children, _, err := conn.Children(parent)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(children)
	slices.Sort(foreign)
	if !slices.Equal(children, foreign) {
		t.Errorf("left are %q; want %q", children, foreign)
	}
}

// TestLastingNode has a node with a name like ours that belongs to no session.
func TestLastingNode(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), Options{Prefix: fresh()}
	l := locker(t, addrs, o)
	release(t, acquire(t, l, "key"))
	conn, name := client(t, addrs), below(o, "key")+"/"+nodePrefix+uuid.NewString()+"--000000003"
	if _, err := conn.Create(name, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	_, acquired := l.Acquire(ctx, "key", nil)
	_, inspected := l.Inspect(ctx, "key")
	for what, err := range map[string]error{"Acquire": acquired, "Inspect": inspected} {
		if !errors.Is(err, paddock.ErrUnavailable) || !errors.Is(err, errForeign) {
			t.Errorf("%s behind it: %v; want ErrUnavailable that says so", what, err)
		}
	}
	if children, _, err := conn.Children(below(o, "key")); err != nil || len(children) != 1 {
		t.Errorf("left are %q, %v", children, err)
	}
	if err := conn.Delete(name, -1); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, "key"))
}

func TestOrder(t *testing.T) {
	owner := func(i int) string { return fmt.Sprintf("%036d", i) }
	names := []string{"other", nodePrefix + "x-0000000000"}
	sequence := []string{"2147483646", "2147483647", "-2147483648", "-2147483647"} // as the server prints them
	for i, seq := range slices.Backward(sequence) {
		names = append(names, nodePrefix+owner(i)+"-"+seq)
	}
	for i, p := range queue(names) {
		if p.owner != owner(i) {
			t.Errorf("place %d is %s with the number %d", i, p.owner, p.seq)
		}
	}
	if places, ok := ahead(names, owner(2)); !ok || len(places) != 2 || places[1].seq != math.MaxInt32 {
		t.Errorf("ahead of the first with a negative number: %v, %v", places, ok)
	}
	if _, ok := ahead(names, owner(9)); ok {
		t.Error("an owner who is not there has a place")
	}
	if p, ok := parsePlace(nodePrefix + owner(1) + "--000000005"); !ok || p.seq != -5 {
		t.Errorf("a small negative number is read as %d, %v", p.seq, ok)
	}
}

// TestWrappedOrder has a holder whose number is the last before the wrap, which the server's next number follows.
func TestWrappedOrder(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), Options{Prefix: fresh()}
	l := locker(t, addrs, o)
	release(t, acquire(t, l, "key"))
	conn := client(t, addrs)
	before := below(o, "key") + "/" + nodePrefix + uuid.NewString() + "--000000003"
	if _, err := conn.Create(before, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	refused(t, l, "key")
	next := make(chan *paddock.Lease)
	go func() { next <- acquire(t, l, "key") }()
	if err := conn.Delete(before, -1); err != nil {
		t.Fatal(err)
	}
	release(t, <-next)
}

// TestAdoption loses the answer to the creation, and the connection with it, but not the session.
func TestAdoption(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), Options{Prefix: fresh()}
	p := servers.NewProxy(t, addrs[0])
	l, other := locker(t, []string{p.Addr}, o), locker(t, addrs, o)
	conn := client(t, addrs)
	for _, key := range []string{"used before", "fresh"} {
		release(t, acquire(t, l, "used before"))
		p.LoseReplies()
		granted := make(chan *paddock.Lease)
		go func() { granted <- acquire(t, l, key) }()
		var created []string
		eventually(t, "a node whose creation is not answered", func() bool {
			created, _, _ = conn.Children(below(o, key))
			return len(created) == 1
		})
		eventually(t, "the lost answer", p.Lost)
		p.Pass()
		lease := <-granted
		children, _, err := conn.Children(below(o, key))
		if err != nil || !slices.Equal(children, created) || !strings.Contains(children[0], lease.Owner()) {
			t.Errorf("key %q: there are %q, %v; the node created was %q", key, children, err, created)
		}
		_, stat, err := conn.Get(below(o, key) + "/" + children[0])
		if err != nil || fencing.Token(stat.Czxid) != lease.Token() {
			t.Errorf("key %q: the token is %d; the node was created by %v, %v", key, lease.Token(), stat, err)
		}
		refused(t, other, key)
		release(t, lease)
	}
}

// TestTryWithoutItsAnswer loses the answer to a try for a key that is held: the next connection shows that it is, and the try does
// not stay to wait for it.
func TestTryWithoutItsAnswer(t *testing.T) {
	addrs, o := servers.SharedZooKeeper(t), Options{Prefix: fresh()}
	p := servers.NewProxy(t, addrs[0])
	l, other := locker(t, []string{p.Addr}, o), locker(t, addrs, o)
	conn := client(t, addrs)
	release(t, acquire(t, l, "key"))
	held := acquire(t, other, "key")
	p.LoseReplies()
	tried := make(chan error, 1)
	go func() {
		_, err := l.TryAcquire(context.Background(), "key", &paddock.Options{TTL: time.Hour})
		tried <- err
	}()
	eventually(t, "a node whose creation is not answered", func() bool {
		created, _, _ := conn.Children(below(o, "key"))
		return len(created) == 2
	})
	eventually(t, "the lost answer", p.Lost)
	p.Pass()
	select {
	case err := <-tried:
		is(t, err, paddock.ErrHeld)
	case <-time.After(soon):
		t.Fatal("the try waits for the key")
	}
	if left, _, err := conn.Children(below(o, "key")); len(left) != 1 || !strings.Contains(left[0], held.Owner()) {
		t.Errorf("left in the queue: %q, %v; want the holder's node alone", left, err)
	}
	release(t, held)
}

// TestRequestOnTheOldConnection delivers a creation on a connection that the session has left, after everything that was
// done about it on the next.
func TestRequestOnTheOldConnection(t *testing.T) {
	for name, nodes := range map[string]int{"SameServer": 1, "OtherServer": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := servers.ZooKeeper(t, nodes)
			first, second := servers.NewProxy(t, q.Nodes[0].Addr), servers.NewProxy(t, q.Nodes[nodes-1].Addr)
			var way atomic.Pointer[servers.Proxy]
			way.Store(first)
			var r requests
			spy := spying(r.see)
			l := locker(t, []string{"way"}, Options{
				Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return spy(ctx, network, way.Load().Addr)
				},
			})
			conn := client(t, q.Endpoints())
			release(t, acquire(t, l, "key"))
			parent := below(l.ensemble.o, "key")
			_, was, err := conn.Children(parent)
			if err != nil {
				t.Fatal(err)
			}
			alive := measured(t, q.Nodes[0].Addr, "zk_num_alive_connections")

			first.Hold()
			ctx, cancel := context.WithCancel(context.Background())
			attempt := make(chan error)
			sent := r.during(func() {
				go func() {
					_, err := l.TryAcquire(ctx, "key", nil)
					attempt <- err
				}()
				eventually(t, "the request for a node", func() bool { return slices.Contains(r.now(), opMulti) })
			})
			cancel()
			is(t, <-attempt, context.Canceled)
			way.Store(second)
			s := l.ensemble.session
			s.mu.Lock()
			s.link.Conn.Close()
			s.mu.Unlock()
			eventually(t, "the end of the clean-up", func() bool {
				l.ensemble.mu.Lock()
				defer l.ensemble.mu.Unlock()
				return len(l.ensemble.nodes) == 0
			})
			if l.ensemble.session != s {
				t.Fatal("the session did not live through the change of its connection")
			}

			first.Pass()
			least := 1 // the bare client's, or none
			if nodes > 1 {
				least = 0
			}
			eventually(t, "the end of the old connection", func() bool {
				n := measured(t, q.Nodes[0].Addr, "zk_num_alive_connections")
				return n < alive || n <= least || name == "SameServer"
			})
			if _, err := conn.Sync(parent); err != nil {
				t.Fatal(err)
			}
			children, is, err := conn.Children(parent)
			if err != nil || len(children) > 0 || is.Cversion != was.Cversion {
				t.Errorf("after the late request %v: children %q, %v; the parent has changed %d times, it was %d",
					sent, children, err, is.Cversion, was.Cversion)
			}
			lease := acquire(t, l, "key")
			refused(t, l, "key")
			release(t, lease)
		})
	}
}
