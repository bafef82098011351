// Package redislock is a paddock.Locker on one Redis: a server, a primary with replicas under Sentinel, or a Cluster. Redis
// 6.2 and later, and Valkey.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	locker, err := redislock.New(client, nil)
//
// A lock is a key that SET NX PX has put there, with the owner as its value; release deletes it only if the owner is still
// in it. Both are scripts. The one that takes the lock draws the fencing token as well: max(last + 1, the server's clock in
// microseconds), the last one being kept in a fence record beside the lock.
//
// # What is guaranteed
//
//	what breaks exclusion      A failover to a replica that has not got the lock; a server that loses its memory (restart,
//	                           FLUSHALL, eviction: use maxmemory-policy noeviction); a server clock that is set forward, since
//	                           Redis counts TTLs on its wall clock; clocks that run at rates 1 % apart; somebody who deletes keys.
//	what breaks token order    The fence record lost in one of these ways, or unused for 7 days, and the server's clock
//	                           then behind the last token. A record that is there keeps tokens rising, whatever the clock does.
//	what the holder sees       Its context ends at Deadline at the latest, or when a renewal (every TTL/3) finds the key
//	                           gone. In the failovers above that is after the next holder may have begun: use a guard.
//	what a waiter sees         A message when the lock is released or undone, in any process; otherwise its timer: when the
//	                           TTL that was left is over, and every 5 s. No order among processes; first come, first served
//	                           within one. Only the first waiter of a process and key talks to the server.
//	wire cost                  1 EVALSHA to acquire, contended or not; 1 to release; 1 to renew, up to 256 in a pipeline. A
//	                           process with waiters has one subscription, until 30 s after the last has gone.
//	what stays behind          The fence record: 7 days after the last grant. It has the marks of abandoned attempts too (at
//	                           most 512), so an attempt that never got a lock leaves one for an hour.
//
// # Replicas
//
// Replication is asynchronous: a primary that dies may take locks with it that its successor never heard of, and the
// successor grants them again. Options.MinReplicas makes every grant and renewal wait until so many replicas have it,
// and be none otherwise. That narrows the window, and does not close it: a replica that has not got the lock may be
// promoted all the same, and a replica cut off by the network is no obstacle to a primary that others still reach. When
// two holders at once do damage, use a guard (package fencing) or a Locker with more to offer.
//
// # Errors
//
// Acquire gives up at once, with ErrUnavailable, when the server refuses for good: no permission, wrong or missing
// password, no scripting, a key of another type or with a value that is not paddock's. What may pass it repeats, as rule 17
// of the contract says: connections, timeouts, READONLY, LOADING, MASTERDOWN, CLUSTERDOWN, OOM, MISCONF, NOREPLICAS, BUSY.
//
// go-redis does not by default end a command when its context does. The Locker does not wait for it then, and cleans up
// after it, which takes a goroutine for each call; the client's ReadTimeout says when its connection is free again. With the client's
// ContextTimeoutEnabled set, calls on a context that cannot be cancelled need none, and cost less. After PoolSize dials in a row that failed go-redis
// pauses for a second, so short TTLs do not survive short failures of the network. A Cluster client learns of a failover at the
// latest after its ClusterStateReloadInterval, a minute by default: set it to a few seconds. A redis.Ring is refused: when it
// loses sight of a server it sends that server's keys to another one, which knows of no locks.
//
// A user needs the keys and the channels <prefix>:* and the commands evalsha, eval, set, get, del, pttl, pexpire, hmget, hset, hlen,
// hgetall, hdel and time; for waiters to be told also publish, subscribe and ping; with MinReplicas also wait; and what a Cluster or
// Sentinel client needs for itself.
//
// # A Cluster's slots on the move
//
// A lock and its fence record are in one slot. While that slot migrates the two may be on two nodes for a moment, and then
// no script can see both: the lock is taken alone and its token is drawn by a second script. Exclusion and the order of
// tokens hold. But a request that go-redis has repeated, or one that was abandoned, may then arrive after the clean-up and
// leave a lock without a holder, until its TTL is over.
//
// # Keys, version 1
//
//	<prefix>:v1:{<key>}         string: <owner>, or <owner>#<number> after a shorter Extend; expires with the lease
//	<prefix>:v1:{<key>}:fence   hash: token (19 digits), owner, since (microseconds) and note of the last grant;
//	                            undone:<owner> (microseconds) of attempts that were abandoned; expires as said above
//	<prefix>:v1:free            channel: <process>:<key> when a lock was released
//
// In <key>, % and } are written %25 and %7D.
//
// # URL
//
// Imported, the package opens
//
//	redis://user:password@host:6379/0
//	redis+sentinel://user:password@host:26379,host:26379/0?master_name=main
//	redis+cluster://user:password@host:6379,host:6379
//
// and, with TLS, rediss:, rediss+sentinel: and rediss+cluster:. The password is that of the data servers; the Sentinels' is
// in sentinel_username and sentinel_password. Parameters: prefix, domain, close_wait, min_replicas, replica_wait, and those
// of go-redis' ParseURL, ParseFailoverURL and ParseClusterURL that do not ask for replicas or further addresses. With several
// hosts each certificate has to name its own server.
package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
	// Domain of the tokens. Defaults to "redis/" and the prefix.
	Domain string
	// Observer defaults to none.
	Observer *paddock.Observer
	// CloseWait is how long Close waits for clean-up. Defaults to 5 s.
	CloseWait time.Duration
	// MinReplicas is how many replicas must have a grant or renewal before it counts. Defaults to none.
	MinReplicas int
	// ReplicaWait is how long to wait for them; it has to be shorter than the client's ReadTimeout. Defaults to 200 ms.
	ReplicaWait time.Duration
}

const defaultReplicaWait = 200 * time.Millisecond

// Locker is a paddock.Locker and paddock.Inspector. All methods may be called concurrently.
type Locker struct {
	*backend.Keeper
	server  *server
	waiting *subscription
	owned   bool // the client is ours to close

	closed  atomic.Bool
	closing sync.Once
}

// New returns a Locker on client, which stays the caller's to close, after the Locker and its leases. It does not talk to
// the server. Errors are ErrInvalid.
func New(client redis.UniversalClient, opts *Options) (*Locker, error) {
	return newLocker(client, opts, false)
}

func newLocker(client redis.UniversalClient, opts *Options, owned bool) (*Locker, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	rediswire.Defaults("redis", &o.Prefix, &o.Domain)
	if o.ReplicaWait == 0 {
		o.ReplicaWait = defaultReplicaWait
	}
	if err := o.check(client); err != nil {
		return nil, fmt.Errorf("%w: redislock: %w", paddock.ErrInvalid, err)
	}
	keys := o.Prefix + ":v1:"
	s := &server{
		client: client, domain: o.Domain,
		keys: keys + "{", channel: keys + "free", process: uuid.NewString(),
		replicas: o.MinReplicas, wait: o.ReplicaWait,
	}
	l := &Locker{server: s, owned: owned}
	l.waiting = &subscription{
		server: s, keep: keepSubscribed,
		wake: func(key string) { l.Wake(key) }, wakeAll: func() { l.WakeAll() },
	}
	assumes := "The one server keeps its memory, is not failed over to a replica that lacks the lock, and its clock is not set " +
		"forward. Tokens rise unless the fence record is lost and the server's clock is then behind the last token."
	if o.MinReplicas > 0 {
		assumes += fmt.Sprintf(" %d replicas have every grant, so that a failover to one of them is safe.", o.MinReplicas)
	}
	l.Keeper = backend.NewKeeper(paddock.Guarantees{
		Backend:   "redis",
		Exclusion: paddock.SingleServer,
		Fencing:   fencing.Volatile,
		MinTTL:    10 * time.Millisecond,
		TTLStep:   time.Millisecond,
		Assumes:   assumes,
	}, s, &backend.KeeperOptions{
		CloseWait: o.CloseWait, Observer: o.Observer, Watch: l.waiting.watch, Deadlines: heedsDeadlines(client),
	})
	return l, nil
}

// heedsDeadlines reports whether a command of client ends with its context's deadline.
func heedsDeadlines(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

func (o *Options) check(client redis.UniversalClient) error {
	var readTimeout time.Duration
	switch c := client.(type) {
	case nil:
		return errors.New("the client is nil")
	case *redis.Client:
		readTimeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		readTimeout = c.Options().ReadTimeout
	case *redis.Ring:
		return errors.New("a redis.Ring sends the keys of a server that it cannot reach to another, where no lock is held; " +
			"use package redlock for independent servers")
	default:
		if o.MinReplicas > 0 {
			return fmt.Errorf("MinReplicas needs a *redis.Client or *redis.ClusterClient, not a %T", client)
		}
	}
	switch {
	case o.MinReplicas < 0:
		return fmt.Errorf("MinReplicas %d is negative", o.MinReplicas)
	case o.ReplicaWait < time.Millisecond:
		return fmt.Errorf("ReplicaWait %v; it has to be at least 1 ms", o.ReplicaWait)
	case o.MinReplicas > 0 && readTimeout > 0 && o.ReplicaWait >= readTimeout:
		return fmt.Errorf("ReplicaWait %v is not shorter than the client's ReadTimeout %v", o.ReplicaWait, readTimeout)
	}
	return rediswire.CheckOptions(o.Prefix, o.CloseWait)
}

// Close is that of paddock.Locker. A Locker opened by URL closes its client as soon as the last lease has been released or
// has run out.
func (l *Locker) Close() error {
	l.closed.Store(true)
	err := l.Keeper.Close()
	l.closing.Do(func() {
		l.waiting.close()
		if l.owned {
			go func() {
				<-l.Done()
				_ = l.server.client.Close() // nobody is left to be told
			}()
		}
	})
	return err
}

// Inspect is that of paddock.Inspector.
func (l *Locker) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	if err := backend.CheckKey(key); err != nil {
		return paddock.Holder{}, err
	}
	if l.closed.Load() {
		return paddock.Holder{}, fmt.Errorf("%w: inspect %q", paddock.ErrClosed, key)
	}
	type answer struct {
		paddock.Holder
		err error
	}
	answered := make(chan answer, 1)
	go func() { // go-redis may not return at ctx's end
		h, err := l.server.inspect(ctx, key)
		answered <- answer{h, err}
	}()
	select {
	case a := <-answered:
		if a.err == nil || errors.Is(a.err, paddock.ErrFree) {
			return a.Holder, a.err
		}
		if ctx.Err() == nil {
			return paddock.Holder{}, fmt.Errorf("%w: inspect %q: %w", paddock.ErrUnavailable, key, a.err)
		}
	case <-ctx.Done():
	}
	return paddock.Holder{}, fmt.Errorf("redislock: inspect %q: %w", key, errors.Join(ctx.Err(), context.Cause(ctx)))
}
