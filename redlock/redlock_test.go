package redlock

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/servers"
)

const (
	envAddrs  = "PADDOCK_REDLOCK_ADDRS"  // of the nodes that a child process is to use
	envPrefix = "PADDOCK_REDLOCK_PREFIX" // and the prefix
)

func TestMain(m *testing.M) {
	conformance.Child(func() paddock.Locker {
		l, err := New(clientsFor(strings.Split(os.Getenv(envAddrs), ","), impatient), &Options{Prefix: os.Getenv(envPrefix)})
		if err != nil {
			panic(err)
		}
		return l
	})
	os.Exit(m.Run())
}

// impatient is what the package doc advises: errors of one node come at once. A client that has failed to connect as often as
// it has connections in its pool tries only once a second from then on, which is longer than the suite allows for.
var impatient = redis.Options{MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true, PoolSize: 500}

func clientsFor(addrs []string, o redis.Options) []redis.UniversalClient {
	clients := make([]redis.UniversalClient, len(addrs))
	for i, addr := range addrs {
		o := o
		o.Addr = addr
		clients[i] = redis.NewClient(&o)
	}
	return clients
}

// openAt returns a Locker with clients of its own, which outlive it.
func openAt(tb testing.TB, addrs []string, o redis.Options, opts *Options) *Locker {
	tb.Helper()
	clients := clientsFor(addrs, o)
	l, err := New(clients, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		go func() { // the suite closes the Locker, perhaps after this
			<-l.Done()
			l.quorum.wait(time.Minute)
			for _, c := range clients {
				c.Close()
			}
		}()
	})
	return l
}

// open returns a Locker that must have nothing left to say when it is closed with the test.
func (c *cluster) open(tb testing.TB, o redis.Options, opts Options) *Locker {
	tb.Helper()
	l := openAt(tb, c.addrs, o, &opts)
	closing(tb, l)
	return l
}

func closing(tb testing.TB, l *Locker) {
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
}

// minute is a TTL that no test waits for.
var minute = &paddock.Options{TTL: time.Minute}

// take acquires key, which has to be free.
func take(tb testing.TB, l paddock.Locker, key string) *paddock.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(context.Background(), key, minute)
	if err != nil {
		tb.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return lease
}

// refusedTry tries for a key that is held.
func refusedTry(tb testing.TB, l paddock.Locker, key string) {
	tb.Helper()
	if _, err := l.TryAcquire(context.Background(), key, minute); !errors.Is(err, paddock.ErrHeld) {
		tb.Fatalf("TryAcquire(%q): %v; want ErrHeld", key, err)
	}
}

// until polls until ok, for a generous time, which is less than a minute's TTL.
func until(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("not %s after 20 s", what)
		}
	}
}

// empty waits until no node has a lock of the prefix any more.
func (c *cluster) empty(tb testing.TB, prefix string) {
	tb.Helper()
	var left []string
	defer func() {
		if tb.Failed() {
			tb.Logf("left behind: %q", left)
		}
	}()
	until(tb, "rid of all locks", func() bool {
		var err error
		left, err = c.left(context.Background(), prefix)
		return err == nil && len(left) == 0
	})
}

// holder is who has the lock on node i.
func (c *cluster) holder(l *Locker, key string, i int) string {
	value, _ := c.probes[i].Get(context.Background(), l.quorum.names(key).lock).Result()
	owner, _, _ := strings.Cut(value, "#")
	return owner
}

// newPrefix is one that nobody else has.
func newPrefix() string { return "test-" + strings.ToLower(rand.Text()[:10]) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// cluster is five nodes of a test's own.
type cluster struct {
	nodes  []*servers.Process
	addrs  []string
	probes []redis.UniversalClient
	up     []int // the nodes that are to be looked at
}

func newCluster(tb testing.TB) *cluster {
	tb.Helper()
	c := &cluster{nodes: servers.RedisNodes(tb, 5)}
	for i, n := range c.nodes {
		c.addrs = append(c.addrs, n.Addr)
		c.up = append(c.up, i)
	}
	c.probes = clientsFor(c.addrs, redis.Options{})
	tb.Cleanup(func() {
		for _, p := range c.probes {
			p.Close()
		}
	})
	return c
}

// each calls f for the nodes that are up.
func (c *cluster) each(f func(i int)) {
	for _, i := range c.up {
		f(i)
	}
}

func (c *cluster) left(ctx context.Context, prefix string) ([]string, error) {
	var all []string
	for _, i := range c.up {
		keys, err := servers.LocksLeft(ctx, c.probes[i], prefix)
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			all = append(all, strconv.Itoa(i)+": "+key)
		}
	}
	return all, nil
}

// conform runs the suite. The links that it spoils are those to the nodes in spoiled; with opts.
func (c *cluster) conform(t *testing.T, o redis.Options, opts Options, spoiled []int) {
	opts.Prefix = "conformance"
	t.Setenv(envAddrs, strings.Join(c.addrs, ","))
	t.Setenv(envPrefix, opts.Prefix)
	fences := int64(len(c.up))
	if opts.NoFence {
		fences = 0
	}
	conformance.Run(t, conformance.Backend{
		Open:  func(tb testing.TB) paddock.Locker { return openAt(tb, c.addrs, o, &opts) },
		Child: true,
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				addrs, links := c.behind(tb, spoiled)
				l := openAt(tb, addrs, o, &opts)
				return l, links.link(l)
			},
			Restart: func(testing.TB) { c.each(func(i int) { c.nodes[i].Restart() }) },
			Forget: func(tb testing.TB) {
				c.each(func(i int) { must(tb, c.probes[i].FlushAll(context.Background()).Err()) })
			},
		},
		Commands: func() int64 {
			var n int64
			c.each(func(i int) { n += servers.Sent(t, c.probes[i]) })
			return n
		},
		Costs: conformance.Costs{Acquire: int64(len(c.up)) + fences, Contended: int64(len(c.up)), Release: int64(len(c.up))},
		Left:  func(ctx context.Context) ([]string, error) { return c.left(ctx, opts.Prefix) },
	})
}

// links to several nodes, spoiled together.
type links []*servers.Proxy

// behind returns the nodes' addresses, with proxies before those in spoiled.
func (c *cluster) behind(tb testing.TB, spoiled []int) ([]string, links) {
	addrs := append([]string(nil), c.addrs...)
	var all links
	for _, i := range spoiled {
		p := servers.NewProxy(tb, addrs[i])
		addrs[i] = p.Addr
		all = append(all, p)
	}
	return addrs, all
}

func (l links) each(f func(*servers.Proxy)) {
	for _, p := range l {
		f(p)
	}
}

// link waits, before it spoils anything, for what locker has left to be finished behind the majority: that was asked for on
// links which are well.
func (l links) link(locker *Locker) conformance.Link {
	spoil := func(f func(*servers.Proxy)) {
		locker.quorum.wait(time.Second)
		l.each(f)
	}
	return conformance.Link{
		DelayRequests: func(d time.Duration) { spoil(func(p *servers.Proxy) { p.DelayRequests(d) }) },
		DelayReplies:  func(d time.Duration) { spoil(func(p *servers.Proxy) { p.DelayReplies(d) }) },
		LoseReplies:   func() { spoil((*servers.Proxy).LoseReplies) },
		Silence:       func() { spoil((*servers.Proxy).Hold) },
		Cut:           func() { spoil((*servers.Proxy).Cut) },
		Pass:          func() { l.each((*servers.Proxy).Pass) },
	}
}

var all = []int{0, 1, 2, 3, 4}

func TestConformance(t *testing.T) {
	newCluster(t).conform(t, impatient, Options{}, all)
}

func TestConformanceMinorityDown(t *testing.T) {
	c := newCluster(t)
	c.up = []int{1, 2, 4}
	c.nodes[0].Kill()
	c.nodes[3].Kill()
	c.conform(t, impatient, Options{}, c.up)
}

// TestConformanceDefaultClients is the suite for clients as go-redis makes them, whose commands do not end with their contexts,
// and with faults on the ways to a majority only.
func TestConformanceDefaultClients(t *testing.T) {
	servers.Full(t)
	newCluster(t).conform(t, redis.Options{}, Options{}, []int{0, 2, 4})
}

// TestConformanceMinorityDownDefaultClients has them wait for nodes that are down.
func TestConformanceMinorityDownDefaultClients(t *testing.T) {
	servers.Full(t)
	c := newCluster(t)
	c.up = []int{1, 2, 4}
	c.nodes[0].Kill()
	c.nodes[3].Kill()
	c.conform(t, redis.Options{PoolSize: impatient.PoolSize}, Options{}, c.up)
}

func TestConformanceNoFence(t *testing.T) {
	servers.Full(t)
	newCluster(t).conform(t, impatient, Options{NoFence: true}, all)
}

// TestConformanceMinorityStopped takes minutes: each Close waits for what the stopped nodes may have.
func TestConformanceMinorityStopped(t *testing.T) {
	servers.Full(t)
	c := newCluster(t)
	c.up = []int{0, 2, 3}
	c.nodes[1].Pause()
	c.nodes[4].Pause()
	c.conform(t, impatient, Options{CloseWait: 3 * time.Second}, c.up)
}
