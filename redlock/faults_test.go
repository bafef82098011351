package redlock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// behindProxies returns a Locker that reaches the nodes in spoiled through proxies.
func (c *cluster) behindProxies(tb testing.TB, spoiled []int, o redis.Options, opts Options) (*Locker, links) {
	tb.Helper()
	addrs, links := c.behind(tb, spoiled)
	l := openAt(tb, addrs, o, &opts)
	closing(tb, l)
	return l, links
}

// kinds of clients: those that end commands with their contexts, and those of go-redis' defaults.
var kinds = map[string]redis.Options{"impatient": impatient, "default": {}}

// TestRequestPastItsCleanUp has a node get the request for a lock after it was told to give it up: the lock was taken on the other
// nodes, and released; or it was refused there.
func TestRequestPastItsCleanUp(t *testing.T) {
	t.Parallel()
	const late = 1500 * time.Millisecond
	c := newCluster(t)
	for kind, o := range kinds {
		for _, key := range []string{"free", "held"} {
			t.Run(key+", "+kind, func(t *testing.T) {
				opts := Options{Prefix: newPrefix(), NodeTimeout: 500 * time.Millisecond}
				l, links := c.behindProxies(t, []int{1}, o, opts)
				other := c.open(t, o, Options{Prefix: opts.Prefix})
				must(t, take(t, l, "warm").Release(t.Context())) // which leaves a connection
				l.quorum.wait(time.Minute)
				held := take(t, other, "held")
				other.quorum.wait(time.Minute)
				must(t, c.probes[1].Del(t.Context(), l.quorum.names("held").lock).Err()) // so that it is free there
				before := servers.Sent(t, c.probes[1])

				links[0].DelayRequests(late)
				var lease *paddock.Lease
				if key == "free" {
					lease = take(t, l, key)
				} else {
					refusedTry(t, l, key)
				}
				links[0].DelayRequests(0)
				if lease != nil {
					must(t, lease.Release(t.Context()))
				}
				l.quorum.wait(time.Minute)
				until(t, "told and asked", func() bool { return servers.Sent(t, c.probes[1]) >= before+2 })
				must(t, held.Release(t.Context()))
				c.empty(t, opts.Prefix)
			})
		}
	}
}

// TestRepliesOfAMinorityLost takes and releases locks while two nodes do what they are told and say nothing.
func TestRepliesOfAMinorityLost(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			opts := Options{Prefix: newPrefix()}
			l, links := c.behindProxies(t, []int{0, 4}, o, opts)
			must(t, take(t, l, "warm").Release(t.Context()))
			l.quorum.wait(time.Minute)
			links.each((*servers.Proxy).LoseReplies)
			for _, key := range []string{"a", "b", "c"} {
				lease := take(t, l, key)
				refusedTry(t, l, key)
				must(t, lease.Extend(t.Context(), 2*time.Minute))
				must(t, lease.Release(t.Context()))
			}
			links.each((*servers.Proxy).Pass)
			c.empty(t, opts.Prefix)
		})
	}
}

// oldConns dials connections that can be made to go silent, all that there are: what is written is lost, and the other side does not say so.
// New ones are well.
type oldConns struct {
	mu   sync.Mutex
	dead *atomic.Bool
}

type mutedConn struct {
	net.Conn
	dead *atomic.Bool
}

func (c mutedConn) Write(b []byte) (int, error) {
	if c.dead.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (d *oldConns) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	return mutedConn{conn, d.dead}, err
}

func (d *oldConns) silence() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead.Store(true)
	d.dead = new(atomic.Bool)
}

// TestHalfOpenConnections has all connections to two nodes go silent while the nodes are well, as after a firewall has lost its memory.
// There are so many that to try one after the other would take minutes.
func TestHalfOpenConnections(t *testing.T) {
	t.Parallel()
	const many = 100
	c := newCluster(t)
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			opts := Options{Prefix: newPrefix(), CloseWait: 20 * time.Second}
			conns := &oldConns{dead: new(atomic.Bool)}
			clients := clientsFor(c.addrs, o)
			for _, i := range []int{2, 3} {
				o := o
				o.Addr, o.Dialer, o.PoolSize = c.addrs[i], conns.dial, many
				client := redis.NewClient(&o)
				var busy []*redis.Conn
				for range many { // all in use at once, so that there are as many
					conn := client.Conn()
					must(t, conn.Ping(t.Context()).Err())
					busy = append(busy, conn)
				}
				for _, conn := range busy {
					must(t, conn.Close())
				}
				clients[i].Close()
				clients[i] = client
			}
			defer func() {
				for _, client := range clients {
					client.Close()
				}
			}()
			l, err := New(clients, &opts)
			must(t, err)
			lease := take(t, l, "k")
			l.quorum.wait(time.Minute)
			conns.silence()
			must(t, lease.Release(t.Context()))
			c.empty(t, opts.Prefix)
			must(t, l.Close())
		})
	}
}

// TestStoppedMinority works on while two nodes are stopped, with their connections open, and has them tidy up when they go on.
func TestStoppedMinority(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, o := range kinds {
		t.Run(name, func(t *testing.T) {
			opts := Options{Prefix: newPrefix(), CloseWait: time.Minute}
			l := openAt(t, c.addrs, o, &opts)
			before := take(t, l, "before")
			l.quorum.wait(time.Minute)
			c.nodes[1].Pause()
			c.nodes[3].Pause()
			must(t, before.Release(t.Context()))
			for range 5 {
				lease := take(t, l, "k")
				refusedTry(t, l, "k")
				must(t, lease.Release(t.Context()))
			}
			closed := make(chan error, 1)
			go func() { closed <- l.Close() }()
			select {
			case err := <-closed:
				t.Errorf("Close returned %v while two nodes had not given up what they hold", err)
			case <-time.After(500 * time.Millisecond):
			}
			c.nodes[1].Resume()
			c.nodes[3].Resume()
			select {
			case err := <-closed:
				must(t, err)
			case <-time.After(20 * time.Second):
				t.Fatal("Close waits on, although all nodes are well")
			}
			left, err := c.left(t.Context(), opts.Prefix)
			if must(t, err); len(left) > 0 {
				t.Errorf("Close has left %q", left)
			}
		})
	}
}

// TestCloseGivesUp has a node that never answers.
func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix(), CloseWait: 300 * time.Millisecond}
	l := openAt(t, c.addrs, impatient, &opts)
	lease := take(t, l, "k")
	l.quorum.wait(time.Minute)
	c.nodes[1].Pause()
	must(t, lease.Release(t.Context()))
	begun := time.Now()
	must(t, l.Close()) // a minority is no error
	if took := time.Since(begun); took < opts.CloseWait {
		t.Errorf("Close took %v; it should have waited for the node for %v", took, opts.CloseWait)
	}
	until(t, "at rest", func() bool {
		w := &l.quorum.work
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.n == 0
	})
}

// TestNodeRestartedEmpty has a node lose its memory under a lease that lives. It gets the lock back, and the token.
func TestNodeRestartedEmpty(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	l := c.open(t, impatient, opts)
	lease, err := l.Acquire(t.Context(), "k", &paddock.Options{TTL: 6 * time.Second}) // renewed every 2 s
	must(t, err)
	l.quorum.wait(time.Minute)
	c.nodes[2].Restart()
	if owner := c.holder(l, "k", 2); owner != "" {
		t.Fatalf("the node remembers %q", owner)
	}
	until(t, "restored", func() bool { return c.holder(l, "k", 2) == lease.Owner() })
	record := c.probes[2].HMGet(t.Context(), l.quorum.names("k").fence, "token", "writer").Val()
	if record[0] != any(digits(lease.Token())) || record[1] != any(lease.Owner()) {
		t.Errorf("the record is %v; want the token %d", record, lease.Token())
	}
	must(t, lease.Err())
	must(t, lease.Release(t.Context()))
	c.empty(t, opts.Prefix)
}

// TestMajorityForgets has three nodes lose a lock, so that it is lost. What the others have is given up, also by one that is silent
// when that is found out.
func TestMajorityForgets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	l, links := c.behindProxies(t, []int{4}, impatient, opts)
	lease := take(t, l, "k")
	l.quorum.wait(time.Minute)
	for _, i := range []int{0, 1, 2} {
		must(t, c.probes[i].FlushAll(t.Context()).Err())
	}
	links[0].Hold()
	if err := lease.Extend(t.Context(), 2*time.Minute); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("Extend = %v; want ErrLost", err)
	}
	if err := context.Cause(lease.Context()); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("the lease's context ended with %v; want ErrLost", err)
	}
	until(t, "given up where it was not lost", func() bool { return c.holder(l, "k", 3) == "" })
	links[0].Pass()
	c.empty(t, opts.Prefix)
	if err := lease.Release(t.Context()); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("Release = %v; want ErrLost", err)
	}
}

// TestMinorityForgets has two nodes lose a lock: not before a majority has confirmed it do they get it back.
func TestMinorityForgets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	l, links := c.behindProxies(t, []int{2, 3}, impatient, opts)
	lease := take(t, l, "k")
	l.quorum.wait(time.Minute)
	for _, i := range []int{0, 1} {
		must(t, c.probes[i].FlushAll(t.Context()).Err())
	}
	links.each((*servers.Proxy).Cut)
	if err := lease.Extend(t.Context(), 2*time.Minute); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("Extend with one node that confirms = %v; want ErrUnavailable", err)
	}
	l.quorum.wait(time.Minute)
	for _, i := range []int{0, 1} {
		if owner := c.holder(l, "k", i); owner != "" {
			t.Errorf("node %d got the lock back although no majority has it", i)
		}
	}
	links.each((*servers.Proxy).Pass)
	until(t, "extended", func() bool { return lease.Extend(context.Background(), 2*time.Minute) == nil })
	until(t, "restored", func() bool { return c.holder(l, "k", 0) == lease.Owner() && c.holder(l, "k", 1) == lease.Owner() })
	must(t, lease.Release(t.Context()))
	c.empty(t, opts.Prefix)
}

// TestBareMajorityForgets is what no Redlock can help: a lock is on three of five nodes, one of them loses it, and that one and
// the other two are enough for the next. Their tokens are in order, and the first holder is told by its next renewal.
func TestBareMajorityForgets(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	a, links := c.behindProxies(t, []int{3, 4}, impatient, opts)
	links.each((*servers.Proxy).Cut)
	b := c.open(t, impatient, opts)
	first := take(t, a, "k")
	a.quorum.wait(time.Minute)
	refusedTry(t, b, "k")
	b.quorum.wait(time.Minute)
	must(t, c.probes[2].FlushAll(t.Context()).Err())
	second := take(t, b, "k")
	if first.Err() != nil || first.Token() >= second.Token() {
		t.Errorf("the first holder's token is %d, the second's %d; the first lease: %v", first.Token(), second.Token(), first.Err())
	}
	links.each((*servers.Proxy).Pass)
	until(t, "told", func() bool { return errors.Is(first.Extend(context.Background(), time.Minute), paddock.ErrLost) })
	must(t, second.Extend(t.Context(), time.Minute))
	must(t, second.Release(t.Context()))
	c.empty(t, opts.Prefix)
}
