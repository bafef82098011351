// Package etcdlock is a paddock.Locker on etcd, versions 3.4 to 3.7.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"a:2379", "b:2379", "c:2379"}})
//	locker, err := etcdlock.New(client, nil)
//
// Every acquisition creates a key of its own at the end of the lock's queue; the oldest key has the lock. Keys hang on etcd
// leases, which end when nobody keeps them alive, and take their keys with them. Who waits watches the key before it and its own, and
// reads the queue again, from a member that is up to date, whenever one of them has gone and every few seconds in any case.
// The fencing token is the revision that created the key.
//
// # What is guaranteed
//
//	what breaks exclusion      A majority of members that loses its data; clocks that run at rates 1 % apart; somebody who
//	                           deletes keys or revokes leases; before etcd 3.4.31 and 3.5.13, a former leader that was stalled and
//	                           revokes leases which its successor has renewed.
//	what breaks token order    A cluster that is restored from a backup, or loses its data, keeps its id and counts revisions anew.
//	                           The Locker refuses a revision below one that it has seen, with ErrUnavailable; a process
//	                           that was started later knows of none: restore with --bump-revision, or set another Domain.
//	what the holder sees       Its context ends at Deadline at the latest: counted from before the last keepalive that was answered. It
//	                           ends at once when the etcd lease that it shares is revoked or its session key deleted, and at the next
//	                           renewal (every TTL/3) when the lock's own key is, or the etcd lease that is its own for MaxHold.
//	                           NoRenew: at Deadline, or not before Release.
//	what a waiter sees         The deletion of the key before it, as soon as a member tells; otherwise it finds out within 5 s.
//	                           First come, first served, across processes. A waiter whose own key or lease ends, by a pause
//	                           or a partition longer than its TTL, goes to the end of the queue, within the same Acquire.
//	wire cost                  1 Txn to acquire a free key or to be refused, 1 delete to release. Who has to wait: 1 Txn, 2 watches,
//	                           and a read at the beginning, for each key before it that goes, and every 5 s. NoRenew and MaxHold:
//	                           1 grant and 1 Txn more, and 1 revocation. Every TTL/3, for up to 256 keys: 1 keepalive and 1 look at
//	                           what hangs on the lease. First use of a TTL: 1 grant and 1 put. A Locker has one watch of its own.
//	what stays behind          An etcd lease, with its session key, for a minute after its last key, or until Close. The marker of an
//	                           abandoned attempt whose request may still be on its way: 10 to 20 minutes.
//
// # Leases
//
// Renewed leases of the same TTL, in whole seconds, share an etcd lease, at most 256 of them: they are renewed together and lost
// together. A server makes short TTLs longer, to one and a half of its election timeout (2 s by default): Lease.TTL says so.
//
// NoRenew and MaxHold have the server end the key, so it moves to an etcd lease of its own when it gets the lock. MaxHold is kept
// to the second by the server and exactly by the process. Extend to another TTL moves the key to another etcd lease; its creation and so its
// token stay.
//
// When the leader changes, the next one gives all leases their full TTL again, so after a crash the key may take that much longer.
//
// # Errors
//
// Acquire gives up at once, with ErrUnavailable, when the answer will be the same again: no permission, wrong or missing
// password, a request that the server does not know or is too large, a client that was closed, a cluster that has gone back in
// time. What may pass it repeats: no leader or a new one, timeouts, restarts, too many requests, no space, an expired token, an
// etcd lease that has ended.
//
// A user needs permission to read and write the range of the prefix. With a password the client authenticates anew for each
// stream, so for each keepalive and for watches: that is as slow as the server's bcrypt cost says (--bcrypt-cost).
//
// A client that could not connect to a member waits before it tries again, in the end for two minutes, unless it was made with
// grpc.WithConnectParams; and it finds out that a connection has gone silent only with DialKeepAliveTime and DialKeepAliveTimeout. The
// Locker asks every member when one does not answer, but what is away for longer than a TTL is lost all the same.
//
// The Locker relies on the client not to send a Txn again whose outcome it does not know. It does not, unless an interceptor has been
// added that does.
//
// # Keys, version 1
//
//	<prefix>/v1/lock/<key>/<owner>          the note; the oldest under one <key> has the lock
//	<prefix>/v1/session/<locker>/<lease>    the note of its first user; goes with the lease, in hexadecimal
//	<prefix>/v1/abort/<owner>               the key; its presence refuses the attempt
//
// In <key>, all but letters, digits and -_.~$&+=:@ are percent-encoded. Owners and lockers are UUIDs.
//
// # URL
//
// Imported, the package opens
//
//	etcd://user:password@host:2379,host:2379
//
// and, with TLS, etcds:. Parameters: prefix, domain, close_wait, dial_timeout (for the authentication, if there is a password; defaults
// to 5 s), and with TLS ca_file, cert_file and key_file (PEM); each certificate has to name its own host. Connections that have gone silent are
// closed after 13 s, and made again within 2 s.
package etcdlock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix of all keys. Lockers of one prefix on one cluster share their locks. It must not contain "/v1/". Defaults to
	// "paddock".
	Prefix string
	// Domain of the tokens. Defaults to "etcd/" and the cluster's id in hexadecimal, which the first answer tells.
	Domain string
	// Observer defaults to none.
	Observer *paddock.Observer
	// CloseWait is how long Close waits for clean-up. Defaults to 5 s.
	CloseWait time.Duration
}

// Locker is a paddock.Locker and paddock.Inspector. All methods may be called concurrently.
type Locker struct {
	*backend.Keeper
	server *server
	owned  bool // the client is

	closing  sync.Once
	closeErr error
}

const (
	step      = time.Second // etcd counts TTLs in seconds
	closeWait = time.Second // for the revocation of leases that nothing hangs on
)

// New returns a Locker that uses client, which remains the caller's to close, after the Locker. It sends nothing. Errors are
// ErrInvalid.
func New(client *clientv3.Client, opts *Options) (*Locker, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if client == nil {
		return nil, fmt.Errorf("%w: etcdlock: the client is nil", paddock.ErrInvalid)
	}
	return newLocker(client, o, false)
}

func newLocker(client *clientv3.Client, o Options, owned bool) (*Locker, error) {
	if o.Prefix == "" {
		o.Prefix = "paddock"
	}
	switch {
	case strings.Contains(o.Prefix+"/", version):
		return nil, fmt.Errorf("%w: etcdlock: the prefix %q contains %q, so its keys could be another prefix's",
			paddock.ErrInvalid, o.Prefix, version)
	case !utf8.ValidString(o.Prefix):
		return nil, fmt.Errorf("%w: etcdlock: the prefix %q is not UTF-8", paddock.ErrInvalid, o.Prefix)
	case o.CloseWait < 0:
		return nil, fmt.Errorf("%w: etcdlock: CloseWait is %v", paddock.ErrInvalid, o.CloseWait)
	}
	s := &server{client: client, root: o.Prefix + version, history: history{name: o.Domain, fixed: o.Domain != ""}}
	s.markers = &markers{server: s, turn: make(chan struct{}, 1)}
	s.sessions = newSessions(s, uuid.NewString())
	s.keeper = backend.NewKeeper(paddock.Guarantees{
		Backend:   "etcd",
		Exclusion: paddock.Consensus,
		Fencing:   fencing.Durable,
		Fair:      true,
		MinTTL:    step,
		TTLStep:   step,
		Assumes: "A majority of the members keeps its data, and clocks run at rates that differ by less than a hundredth. Tokens are " +
			"revisions: a cluster restored from a backup has to be given higher ones (--bump-revision).",
	}, s, &backend.KeeperOptions{Inline: true, CloseWait: o.CloseWait, Observer: o.Observer})
	return &Locker{Keeper: s.keeper, server: s, owned: owned}, nil
}

// Close is that of paddock.Locker.
func (l *Locker) Close() error {
	l.closing.Do(func() {
		l.closeErr = l.Keeper.Close()
		select {
		case <-l.Done():
			l.finish(true)
		default: // a holder is inside, and may need the connection for its release
			l.finish(false)
			go func() {
				<-l.Done()
				l.finish(true)
			}()
		}
	})
	return l.closeErr
}

// finish ends the server leases that are not used, all of them when the Keeper is done.
func (l *Locker) finish(done bool) {
	ctx, cancel := within(outgoing(context.Background()), closeWait)
	defer cancel()
	l.server.sessions.end(ctx, done)
	if done && l.owned {
		_ = l.server.client.Close() // its error is that of a context which it has ended itself
	}
}

// Inspect is that of paddock.Inspector. Holder.Since is not known.
func (l *Locker) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	if err := backend.CheckKey(key); err != nil {
		return paddock.Holder{}, err
	}
	s, ctx := l.server, outgoing(ctx)
	resp, err := s.client.Get(ctx, s.dir(key), clientv3.WithFirstCreate()...)
	if err != nil {
		return paddock.Holder{}, s.inspected(ctx, key, err)
	}
	if len(resp.Kvs) == 0 {
		return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
	}
	kv := resp.Kvs[0]
	if err := s.foreign(s.dir(key), kv); err != nil {
		return paddock.Holder{}, s.inspected(ctx, key, err)
	}
	left, err := s.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	if err != nil {
		return paddock.Holder{}, s.inspected(ctx, key, err)
	}
	return paddock.Holder{
		Owner: strings.TrimPrefix(string(kv.Key), s.dir(key)), Note: string(kv.Value), Token: fencing.Token(kv.CreateRevision),
		ExpiresIn: max(0, time.Duration(left.TTL)*time.Second), // less than 0: it has ended since
	}, nil
}

func (s *server) inspected(ctx context.Context, key string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("etcdlock: inspect %q: %w: %w", key, ctx.Err(), context.Cause(ctx))
	}
	return fmt.Errorf("%w: inspect %q: %w", paddock.ErrUnavailable, key, err)
}
