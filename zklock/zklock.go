// Package zklock is a paddock.Locker on ZooKeeper.
//
//	locker, err := zklock.New([]string{"zk1:2181", "zk2:2181", "zk3:2181"}, nil)
//
// # How it works
//
// A Locker has a ZooKeeper session, which all its leases share. An acquisition puts an ephemeral node with a sequence number
// below the parent of its key; whoever has the lowest number holds the key, and everybody else watches the one before. So waiters
// are served first come, first served, in all processes together. The token is the id of the transaction that made the
// node, which rises over the whole ensemble; it is never the sequence number, which wraps around and starts again.
//
// # The trust window
//
// The servers keep a lease for as long as they keep the session: the negotiated timeout after they last heard the client. That is
// what Lease.TTL says, whatever TTL was asked for, and Guarantees.MinTTL is the timeout asked for. Only the ensemble's leader
// ends sessions, and a client may be connected to another server, which answers reads by itself for a while after it was
// cut off from the leader. So a lease is not trusted because a server answers, but from the last heartbeat of which later
// answers prove that the leader has heard of it, one of them of a leader that had its majority. With a timeout of five ticks
// the window is three quarters of the timeout after a heartbeat that was answered just now; with fewer it is shorter.
//
// A heartbeat comes every quarter of the timeout, or more often when the window is short. It costs two requests by way
// of the leader. One of them is a write while there is a holder or a waiter: it checks, without changing anything, that nodes of
// up to 32 holders are there. While there are none, nothing is written.
//
// The servers cannot end a single lease, so NoRenew and MaxHold are kept by this process, for as long as it runs. A process
// that dies keeps its keys until its session ends.
//
// # What to expect
//
//	What breaks exclusion            a majority that loses its log; clocks whose rates differ by more than a percent; a TickTime
//	                                 below the servers'; an operator who deletes nodes
//	What breaks the token's order    a majority that loses its log, or is set back to an older one. Servers that have forgotten
//	                                 everything are joined again, with a new session and tokens that begin anew: give such an
//	                                 ensemble another Domain
//	What the holder sees, and when   the end of its context when the window closes, before the servers give the key away; at
//	                                 once when they say that the session has ended; at one of the next heartbeats when its node
//	                                 was deleted by hand
//	What a waiter sees               nothing of a connection that breaks or a leader that changes, while its session lasts: it
//	                                 keeps its place. When the session ends it goes to the end of the queue. When nothing
//	                                 was heard for its TTL, at least 5 s: ErrUnavailable
//	Crash of a holder                its key is free one timeout and at most one and a half ticks later; after a change of the
//	                                 leader the servers count once more from the start
//	Wire cost                        Acquire: a transaction and, sent with it, a list of children. Release: 1 delete. A try that
//	                                 is refused: both. A wait: a read for each one it is woken by, and a list if it was not the next.
//	                                 The first use of a key's parent that another process has made: one transaction more
//	What stays behind                nothing for good. Parents are containers, which the servers remove within a minute or so of
//	                                 their last child (znode.container.checkIntervalMs)
//
// # Nodes
//
// The layout has the version v1, and changes only with a major version of the module:
//
//	<chroot>/<prefix>/v1/<key>/lock-<owner>-<sequence>
//
// The prefix and the key are each one element: what is not a letter, a digit or one of "-_:@.+" is %XX, and so is a dot in the first
// place. A node's data is the Note. Other nodes below a key's parent are left alone.
//
// # Servers
//
// Tested with ZooKeeper 3.8. Containers have to be possible within transactions. To see a key's queue:
//
//	zkCli.sh ls /paddock/v1/<key>
//
// # URL
//
// Imported, the package opens zk://user:password@one:2181,two:2181/chroot as a Locker; user and password, if given, are for the
// digest scheme. Parameters: prefix, domain, close_wait, session_timeout, tick_time.
package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// Options of New; nil is the zero Options.
type Options struct {
	// Prefix keeps Lockers on the same servers apart. Defaults to "paddock".
	Prefix string
	// Domain of the tokens. It has to be the same wherever the same ensemble is meant, also when servers are added or
	// renamed. Defaults to "zookeeper/" and the servers, sorted, separated by commas.
	Domain string
	// Observer defaults to none.
	Observer *paddock.Observer
	// CloseWait is how long Close waits for clean-up. Defaults to 5 s.
	CloseWait time.Duration
	// SessionTimeout is how long the servers keep locks of a process that they do not hear: in effect, every lease's TTL. Servers
	// allow 2 to 20 of their ticks unless configured otherwise; they may make it less than what is asked for here, and the
	// Locker refuses to work when they make it more. At least two ticks, better five. Defaults to 10 s.
	SessionTimeout time.Duration
	// TickTime is at least the servers' tickTime. Defaults to 2 s, as theirs does in the configuration that comes with it.
	TickTime time.Duration
	// Auth is how the client introduces itself to the servers. Defaults to not at all.
	Auth []Auth
	// ACL is what created nodes get. Every process that uses a key has to be allowed all but admin. Defaults to everybody being
	// allowed everything, or, with Auth, those who introduce themselves the same way.
	ACL []zk.ACL
	// Chroot is a path that all nodes are kept below, such as "/apps/billing". Defaults to the root.
	Chroot string
	// Dialer makes connections, such as to a TLS port. Its context ends when the connection would come too late.
	// Defaults to TCP, to any of the addresses that a name has.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// Logger is told what go-zookeeper has to say when connections fail. Defaults to none.
	Logger zk.Logger
}

// Auth is an identity: what ZooKeeper's addauth takes.
type Auth struct {
	Scheme      string // such as "digest"
	Credentials []byte // such as "user:password"
}

// Format keeps the credentials to itself, however the Auth or what holds it is printed.
func (a Auth) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "{%s (secret)}", a.Scheme) }

// Locker is a paddock.Locker and paddock.Inspector. All methods may be called concurrently.
type Locker struct {
	*backend.Keeper
	ensemble *ensemble
}

// New returns a Locker on an ensemble. servers are the addresses of some or all of its members, as host or host:port; the
// port defaults to 2181. Nothing is dialled before it is needed.
func New(servers []string, opts *Options) (*Locker, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	e := &ensemble{entering: make(chan struct{}, maxEntering), nodes: map[string]*node{}, parents: map[string]bool{}}
	for _, server := range servers {
		s, err := address(server)
		if err != nil {
			return nil, err
		}
		e.servers = append(e.servers, s)
	}
	if len(servers) == 0 {
		return nil, fmt.Errorf("%w: zklock: no servers", paddock.ErrInvalid)
	}
	if err := o.complete(e.servers); err != nil {
		return nil, err
	}
	e.o = o
	base := strings.TrimSuffix(o.Chroot, "/") + "/" + element(o.Prefix)
	e.root, e.nothing = base+"/"+layout, base+"/beat"
	e.keeper = backend.NewKeeper(paddock.Guarantees{
		Backend:   "zookeeper",
		Exclusion: paddock.Consensus,
		Fencing:   fencing.Durable,
		Fair:      true,
		MinTTL:    o.SessionTimeout,
		TTLStep:   o.TickTime,
		Assumes: "A majority of the ensemble keeps its log; clocks run at the same rate to a percent; TickTime is not less than the " +
			"servers'; nobody deletes nodes by hand.",
	}, e, &backend.KeeperOptions{CloseWait: o.CloseWait, Observer: o.Observer})
	return &Locker{Keeper: e.keeper, ensemble: e}, nil
}

// complete fills in the defaults and checks the rest.
func (o *Options) complete(servers []string) error {
	if o.Prefix == "" {
		o.Prefix = "paddock"
	}
	if o.Domain == "" {
		o.Domain = "zookeeper/" + strings.Join(slices.Sorted(slices.Values(servers)), ",")
	}
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 10 * time.Second
	}
	if o.TickTime == 0 {
		o.TickTime = 2 * time.Second
	}
	if o.ACL == nil {
		o.ACL = zk.WorldACL(zk.PermAll)
		if len(o.Auth) > 0 {
			o.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	if o.Dialer == nil {
		o.Dialer = dialAny
	}
	if o.Logger == nil {
		o.Logger = silent{}
	}
	switch {
	case o.TickTime < time.Millisecond:
		return fmt.Errorf("%w: zklock: a TickTime of %v", paddock.ErrInvalid, o.TickTime)
	case o.SessionTimeout < 2*o.TickTime:
		return fmt.Errorf("%w: zklock: a SessionTimeout of %v; servers with a TickTime of %v make it two ticks at least",
			paddock.ErrInvalid, o.SessionTimeout, o.TickTime)
	case o.SessionTimeout > maxSessionTimeout:
		return fmt.Errorf("%w: zklock: a SessionTimeout of %v", paddock.ErrInvalid, o.SessionTimeout)
	case o.CloseWait < 0:
		return fmt.Errorf("%w: zklock: a CloseWait of %v", paddock.ErrInvalid, o.CloseWait)
	}
	for _, a := range o.Auth {
		if a.Scheme == "" {
			return fmt.Errorf("%w: zklock: an Auth without a scheme", paddock.ErrInvalid)
		}
	}
	for i, part := range strings.Split(o.Chroot, "/") {
		if o.Chroot == "" || o.Chroot == "/" {
			break
		}
		if (i == 0) != (part == "") || part == "." || part == ".." || strings.ContainsFunc(part, unfit) {
			return fmt.Errorf("%w: zklock: Chroot %q is not a path such as /apps/billing", paddock.ErrInvalid, o.Chroot)
		}
	}
	return nil
}

const maxSessionTimeout = 24 * time.Hour

// unfit tells the characters that ZooKeeper does not have in paths.
func unfit(r rune) bool {
	return r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xd800 && r <= 0xf8ff || r >= 0xfff0
}

// address returns a server as host:port.
func address(server string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = strings.Trim(server, "[]"), "2181"
	}
	if host == "" || port == "" || strings.ContainsAny(server, "/, ") {
		return "", fmt.Errorf("%w: zklock: server %q is not host:port", paddock.ErrInvalid, server)
	}
	return net.JoinHostPort(host, port), nil
}

// silent is a zk.Logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// Inspect is that of paddock.Inspector. The holder is whoever stands first in the queue for the key.
func (l *Locker) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	if err := backend.CheckKey(key); err != nil {
		return paddock.Holder{}, err
	}
	s, err := l.ensemble.join(ctx)
	if ctx.Err() != nil {
		return paddock.Holder{}, fmt.Errorf("paddock: inspect %q: %w", key, ctx.Err())
	}
	if errors.Is(err, paddock.ErrClosed) {
		return paddock.Holder{}, fmt.Errorf("%w: inspect %q", paddock.ErrClosed, key)
	}
	if err != nil {
		return paddock.Holder{}, fmt.Errorf("%w: inspect %q: %w", paddock.ErrUnavailable, key, err)
	}
	type answer struct {
		paddock.Holder
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		h, err := s.first(l.ensemble.root + "/" + element(key))
		answers <- answer{h, err}
	}()
	select {
	case a := <-answers:
		switch {
		case errors.Is(a.err, paddock.ErrFree):
			return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
		case a.err != nil:
			return paddock.Holder{}, fmt.Errorf("%w: inspect %q: %w", paddock.ErrUnavailable, key, a.err)
		}
		return a.Holder, nil
	case <-ctx.Done():
		return paddock.Holder{}, fmt.Errorf("paddock: inspect %q: %w", key, ctx.Err())
	}
}

// first describes the first in the queue below parent.
func (s *session) first(parent string) (paddock.Holder, error) {
	if _, err := s.conn.Sync(parent); err != nil {
		return paddock.Holder{}, err
	}
	for {
		children, _, err := s.conn.Children(parent)
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			return paddock.Holder{}, err
		}
		places := queue(children)
		if len(places) == 0 {
			return paddock.Holder{}, paddock.ErrFree
		}
		note, stat, err := s.conn.Get(parent + "/" + places[0].name)
		if err == nil && stat.EphemeralOwner == 0 {
			err = foreign(parent + "/" + places[0].name)
		}
		if err == nil {
			return paddock.Holder{
				Owner: places[0].owner, Note: string(note), Token: fencing.Token(stat.Czxid), Since: time.UnixMilli(stat.Ctime),
			}, nil
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return paddock.Holder{}, err
		}
	}
}

// Close is that of paddock.Locker. The session with the servers ends when the last holder has released or its lease has run
// out: now, if there is none.
func (l *Locker) Close() error {
	err := l.Keeper.Close()
	select {
	case <-l.Done():
		l.ensemble.close()
		l.ensemble.clients.Wait()
	default:
	}
	return err
}
