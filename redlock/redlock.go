// Package redlock is a paddock.Locker on a quorum of independent Redis nodes: N of them, an odd number, that know nothing of
// each other. Redis 6.2 and later, and Valkey.
//
//	locker, err := redlock.New([]redis.UniversalClient{a, b, c, d, e}, nil)
//
// A lock is held by who has it on a majority of the nodes (Sanfilippo's Redlock). redsync counts the majorities that take a
// lock and give it back; what is asked of each node is this package's. Unlike Redlock, it has fencing tokens.
//
// # What is guaranteed
//
//	what breaks exclusion      A majority that forgets: so many nodes lose the lock while it is held that those which still
//	                           have it are no majority. A node forgets by a restart without its data, FLUSHALL, eviction
//	                           (use maxmemory-policy noeviction), a failover to a replica without the lock, a clock that is set
//	                           forward. One node that restarts empty is enough when the lock is on a bare majority; with N =
//	                           5 that is when two others are down. Keep a restarted node away for the longest TTL. Clocks
//	                           that run at rates 1 % apart; somebody who deletes keys.
//	what breaks token order    As many nodes that have lost their fence records as two fence quorums share (2q - N; one, by
//	                           default), and clocks of nodes that disagree by more than the time between two acquisitions. So
//	                           does a record that was not used for 7 days. Locks that end early break nothing.
//	what the holder sees       Its context ends at Deadline at the latest, or when a renewal (every TTL/3) finds that a
//	                           majority does not have the lock any more. After a majority forgot, that may be after the next
//	                           holder has begun: use a guard.
//	what a waiter sees         A message from a majority of the nodes when the lock is released or undone, in any process; from
//	                           fewer, 10 ms later; otherwise its timer: when the TTL that was left is over, and every 5 s. No
//	                           order among processes; first come, first served within one.
//	wire cost                  For each node: 1 EVALSHA to acquire and 1 for the token (none with NoFence), 1 for a contended
//	                           try, 1 to release, 1 to renew, up to 256 in a pipeline. A vote that nobody has won costs more.
//	                           A process with waiters has one subscription to each node, until 30 s after the last has gone.
//	what stays behind          On each node the fence record: 7 days after the last grant (5 minutes with NoFence). The mark of
//	                           an owner whose requests may still be on their way: 5 minutes. On a node that does not answer when
//	                           the lock is given up, the lock: until the node can be told, the TTL is over, or the Locker
//	                           has been closed for CloseWait. It keeps nobody from the lock while a majority is without it.
//
// # Nodes that do not answer
//
// Every call to a node has a time limit of its own, Options.NodeTimeout or less, and the majority decides: the rest is finished behind
// it. A node that has not answered anything for 100 ms is not waited for where the others can decide. What a node could not
// be told to give up it owes: it is told again, on a new connection when the old ones are silent, each node for itself, at
// first soon and then every second or so, until it confirms or the TTL is over; and it is told to refuse what may still be
// on its way. A node that restarts without its data has forgotten that too, so a request which has been under way since before may
// leave a lock there, for its TTL. So may one that arrives more than 5 minutes late.
//
// An Acquire without a majority of answers ends, with ErrUnavailable and what each node said, after one TTL (at least 5 s); at once
// if so many nodes refuse for good that the rest is no majority: no permission, wrong password, a value under our keys that
// paddock did not write. A few of those are like nodes that are down. A Release without a majority of answers returns
// ErrUnavailable, and goes on in the background.
//
// go-redis repeats commands, and connects again and again, for seconds by default, and goes on when their contexts have ended. The Locker
// does not wait for that, which costs it a goroutine for each call. Clients with MaxRetries: -1, DialerRetries: 1 and
// ContextTimeoutEnabled: true say at once what they think of a node. A client that has failed to connect PoolSize times tries
// only once a second until it succeeds. What such a client has sent twice is told apart from what it has not.
//
// Contenders that ask at the same time may split the nodes, so that nobody has a majority. The one that has the first of the
// nodes which answer asks again, and the others give way.
//
// # Renewal
//
// A renewal counts when a majority confirms it. Nodes that have lost a lock, or never had it, get it back then, and only then;
// with it, the token. A renewal that fails releases nothing. Renewals are numbered, so that one which arrives late does nothing.
// It goes without redsync, which extends one key at a time, by a TTL that is fixed: here it is one pipeline to each node.
//
// # Tokens
//
// Each node keeps, for each key, the lock (owner, expiry) and a fence record (token, writer). An acquisition by owner o:
//
//	grant at node i, if its lock is free or o's:   lock := (o, TTL); answer r(i) = the record's token, c(i) = the clock in us
//	G := the nodes that have granted, when they are a majority and at least q.   T := max(1 + max r(i), max c(i)) over G
//	write at i in G, if the lock is o's and the record is unchanged (its token is r(i), or it is (T, o)):   record := (T, o)
//
// and a lease with the token T if q nodes have written, before Deadline; else all of it is undone. q is Options.FenceQuorum, a
// majority by default. A node that grants when T has been drawn is sent it too, if its r(i) is below T.
//
// Claim: of two leases on a key, A and B, neither has the other's token; and if A was returned before the acquisition of B began,
// then A's token is the smaller one.
//
// Proof. The token in a node's record never falls while the node keeps its memory: a write puts T in the place of r(i) < T or of
// T itself, and a restored lock only raises the token. A and B have each been written by q nodes, of which at least 2q - N are the
// same. If fewer nodes than that have lost their memory, one of the same, s, has not. One of the two wrote there first; say A, with
// T(A). When B wrote there for the first time the token was at least T(A), and since the write was accepted it was the one that
// s had read out to B: r(s) >= T(A). So T(B) >= 1 + r(s) > T(A): the tokens differ. If A was returned before B began, A's write at s
// came before all of B's, so it was A who wrote first, and T(A) < T(B). Repeated and late requests change nothing: a write of A
// that arrives after B's finds another token, and is refused. QED.
//
// Nowhere does this use that the lock excludes anybody: tokens are in order even where locks end early, clocks jump, holders
// are paused, and the network is cut, delays and repeats. What it does use is memory. With more nodes wiped than the claim allows, the
// clocks c(i) carry on: T is not below the clock of any node in G, so it is above an older token as long as the clocks agree to
// within the time between. No protocol can do more without memory or clocks; Guarantees say Volatile. The tests search random
// schedules for what the claim excludes, and find it where rules are weaker.
//
// # Keys, version 1
//
//	<prefix>:redlock:v1:{<key>}                  string: <owner>, or <owner>#<number of the last renewal>
//	<prefix>:redlock:v1:{<key>}:fence            hash: token (19 digits) and writer; owner, since (us) and note of the last grant
//	<prefix>:redlock:v1:{<key>}:undone:<owner>   string: requests of that owner are refused
//	<prefix>:redlock:v1:free                     channel: <process>:<owner>:<key> when a lock was given back
//
// In <key>, % and } are written %25 and %7D. A user needs the commands evalsha, eval, set, get, del, exists, pttl, pexpire, hset,
// hget, hmget, time; for prompt waiting also publish, subscribe and the channel.
//
// # URL
//
// Imported, the package opens redlock://user:password@host:6379,host:6379,host:6379/0 and, with TLS, redlocks:. User, password and
// database are the same on all nodes. Parameters: prefix, domain, close_wait, fence_quorum, no_fence, node_timeout, and of go-redis'
// ParseURL those about connections and pools.
package redlock

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/rediswire"
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
	// NodeTimeout is how long one node may take for an answer to a request for the lock or its token; an attempt that has to
	// wait for it is over after twice that. Defaults to 5 % of the TTL, but at least to a second or a third of the TTL,
	// whichever is less, and at most to 5 s.
	NodeTimeout time.Duration
}

const (
	defaultCloseWait = 5 * time.Second
	minNodes         = 3
)

// Locker is a paddock.Locker and paddock.Inspector. All methods may be called concurrently.
type Locker struct {
	*backend.Keeper
	quorum    *quorum
	hints     *hints
	closeWait time.Duration
	owned     bool // the clients are ours to close

	until           time.Time // of CloseWait
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
	rediswire.Defaults("redlock", &o.Prefix, &o.Domain)
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
	case o.NodeTimeout < 0:
		return fmt.Errorf("NodeTimeout %v is negative", o.NodeTimeout)
	case o.NoFence && o.FenceQuorum != 0:
		return fmt.Errorf("FenceQuorum %d with NoFence", o.FenceQuorum)
	case !o.NoFence && (o.FenceQuorum < majority || o.FenceQuorum > nodes):
		return fmt.Errorf("FenceQuorum %d; of %d nodes it takes %d to %d", o.FenceQuorum, nodes, majority, nodes)
	}
	return rediswire.CheckOptions(o.Prefix, o.CloseWait)
}

// Close is that of paddock.Locker. Nodes beyond a majority that have not confirmed by the end of CloseWait are no error: what they
// have will expire, and keeps nobody from the lock. A Locker opened by URL closes its clients as soon as the last lease has been
// released or has run out.
func (l *Locker) Close() error {
	l.closing.Do(func() {
		l.until = time.Now().Add(l.closeWait)
		close(l.quorum.closing)
	})
	err := l.Keeper.Close()
	l.closed.Do(func() {
		l.hints.close()
		l.quorum.wait(time.Until(l.until))
		select {
		case <-l.Done():
			l.stop()
		default: // there are holders
			go func() {
				<-l.Done()
				l.quorum.wait(l.closeWait) // for what the last of them has given up
				l.stop()
			}()
		}
	})
	return err
}

// stop ends what goes on in the background.
func (l *Locker) stop() {
	close(l.quorum.stopped)
	if l.owned {
		for _, n := range l.quorum.nodes {
			_ = n.client.Close() // nobody is left to be told
		}
	}
}
