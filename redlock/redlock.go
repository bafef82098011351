// Package redlock is a paddock.Locker on a quorum of independent Redis nodes.
package redlock

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix of all keys and the channel: at most 128 bytes of UTF-8 without braces. Defaults to "paddock".
	Prefix string
	// Domain of the tokens. Defaults to "redlock/" and the prefix.
	Domain string
	// Observer defaults to none.
	Observer *paddock.Observer
	// CloseWait is how long Close waits for clean-up. Defaults to 5 s.
	CloseWait time.Duration
	// FenceQuorum is how many nodes have to write a lease's token: at least a majority. With q of n nodes, tokens stay in
	// order although up to 2q-n-1 nodes lose their memory, and n-q nodes may be down. Defaults to the majority.
	FenceQuorum int
	// NoFence saves the second round of an acquisition, and leases have no token. Defaults to a fence.
	NoFence bool
	// NodeTimeout is how long one node may take for an answer when the lock is taken. Defaults to 5 % of the TTL, but at
	// least to a second or a third of the TTL, whichever is less, and at most to 5 s.
	NodeTimeout time.Duration
}

const (
	defaultPrefix    = "paddock"
	defaultCloseWait = 5 * time.Second
	maxPrefix        = 128 // bytes
	minNodes         = 3
)

// Locker is a paddock.Locker and paddock.Inspector. All methods may be called concurrently.
type Locker struct {
	*backend.Keeper
	quorum    *quorum
	hints     *hints
	closeWait time.Duration
	owned     bool // the clients are ours to close

	closing, closed sync.Once
}

// New returns a Locker on the nodes that clients are for: an odd number of them, at least three, each a server by itself. The
// clients stay the caller's to close, after the Locker and its leases. It does not talk to the nodes. Errors are ErrInvalid.
func New(clients []redis.UniversalClient, opts *Options) (*Locker, error) {
	return newLocker(clients, opts, false)
}

func newLocker(clients []redis.UniversalClient, opts *Options, owned bool) (*Locker, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.Domain == "" {
		o.Domain = "redlock/" + o.Prefix
	}
	if o.CloseWait == 0 {
		o.CloseWait = defaultCloseWait
	}
	n := len(clients)
	if o.FenceQuorum == 0 && !o.NoFence {
		o.FenceQuorum = n/2 + 1
	}
	if err := errors.Join(checkClients(clients), o.check(n)); err != nil {
		return nil, fmt.Errorf("%w: redlock: %w", paddock.ErrInvalid, err)
	}
	keys := o.Prefix + ":redlock:v1:"
	q := &quorum{
		majority: n/2 + 1, fences: o.FenceQuorum, timeout: o.NodeTimeout, domain: o.Domain,
		keys: keys, channel: keys + "free", process: uuid.NewString(),
		closing: make(chan struct{}), stopped: make(chan struct{}),
	}
	for i, c := range clients {
		q.nodes = append(q.nodes, newNode(q, i, c))
	}
	l := &Locker{quorum: q, closeWait: o.CloseWait, owned: owned}
	l.hints = &hints{
		quorum: q, wake: func(key string) { l.Wake(key) }, wakeAll: func() { l.WakeAll() },
		waiting: map[string]int{}, heard: map[release]*retelling{},
	}
	g := paddock.Guarantees{
		Backend:   "redlock",
		Exclusion: paddock.Quorum,
		Fencing:   fencing.Volatile,
		MinTTL:    50 * time.Millisecond,
		TTLStep:   time.Millisecond,
		Assumes: fmt.Sprintf("No lock on %d of %d nodes is lost to a restart, an eviction or a clock that is set forward while "+
			"it is held, and clocks run at the same rate within 1 %%.", q.majority, n),
	}
	if o.NoFence {
		g.Fencing = fencing.None
	} else {
		g.Assumes += fmt.Sprintf(" Tokens rise as long as fewer than %d nodes lose their memory, and beyond that as far as the "+
			"nodes' clocks agree.", 2*o.FenceQuorum-n)
	}
	l.Keeper = backend.NewKeeper(g, q, &backend.KeeperOptions{
		Inline: true, CloseWait: o.CloseWait, Observer: o.Observer, Watch: l.hints.watch,
	})
	return l, nil
}

func checkClients(clients []redis.UniversalClient) error {
	if n := len(clients); n < minNodes || n%2 == 0 {
		return fmt.Errorf("%d clients; it has to be an odd number of nodes, at least %d (one more would not make it bear more failures)",
			n, minNodes)
	}
	addrs := map[string]int{}
	for i, c := range clients {
		if v := reflect.ValueOf(c); c == nil || v.Kind() == reflect.Pointer && v.IsNil() {
			return fmt.Errorf("client %d is nil", i)
		}
		for j, other := range clients[:i] {
			if reflect.TypeOf(c).Comparable() && c == other {
				return fmt.Errorf("clients %d and %d are the same: a node that votes twice makes no quorum", j, i)
			}
		}
		switch c := c.(type) {
		case *redis.Ring:
			return fmt.Errorf("client %d is a redis.Ring, which sends the keys of a server that it cannot reach to another", i)
		case *redis.Client:
			addr := c.Options().Addr
			if j, ok := addrs[addr]; ok && addr != failoverAddr {
				return fmt.Errorf("clients %d and %d are both for %s: a node that votes twice makes no quorum", j, i, addr)
			}
			addrs[addr] = i
		}
	}
	return nil
}

// failoverAddr is what a client that asks Sentinels has in place of an address.
const failoverAddr = "FailoverClient"

func (o *Options) check(nodes int) error {
	majority := nodes/2 + 1
	switch {
	case len(o.Prefix) > maxPrefix || !utf8.ValidString(o.Prefix) || strings.ContainsAny(o.Prefix, "{}"):
		return fmt.Errorf("Prefix %q; it has to be at most %d bytes of UTF-8 without braces", o.Prefix, maxPrefix)
	case o.CloseWait < 0:
		return fmt.Errorf("CloseWait %v is negative", o.CloseWait)
	case o.NodeTimeout < 0:
		return fmt.Errorf("NodeTimeout %v is negative", o.NodeTimeout)
	case o.NoFence && o.FenceQuorum != 0:
		return fmt.Errorf("FenceQuorum %d with NoFence", o.FenceQuorum)
	case !o.NoFence && (o.FenceQuorum < majority || o.FenceQuorum > nodes):
		return fmt.Errorf("FenceQuorum %d; of %d nodes it takes %d to %d", o.FenceQuorum, nodes, majority, nodes)
	}
	return nil
}

// Close is that of paddock.Locker. A minority of nodes that do not answer has CloseWait too, once more, to give up what it
// holds; what is left then will expire, and is no error. A Locker opened by URL closes its clients as soon as the last lease has
// been released or has run out.
func (l *Locker) Close() error {
	l.closing.Do(func() { close(l.quorum.closing) })
	err := l.Keeper.Close()
	l.closed.Do(func() {
		l.hints.close()
		l.quorum.wait(l.closeWait)
		go func() {
			<-l.Done()
			l.quorum.wait(l.closeWait)
			close(l.quorum.stopped)
			if l.owned {
				for _, n := range l.quorum.nodes {
					_ = n.client.Close() // nobody is left to be told
				}
			}
		}()
	})
	return err
}
