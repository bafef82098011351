package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

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
	ctx, cancel := context.WithTimeout(outgoing(context.Background()), closeWait)
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
	left, err := s.client.TimeToLive(ctx, clientv3.LeaseID(kv.Lease))
	switch {
	case err != nil:
		return paddock.Holder{}, s.inspected(ctx, key, err)
	case left.TTL < 0: // between the two answers
		return paddock.Holder{}, fmt.Errorf("%w: %q", paddock.ErrFree, key)
	}
	return paddock.Holder{
		Owner: strings.TrimPrefix(string(kv.Key), s.dir(key)), Note: string(kv.Value), Token: fencing.Token(kv.CreateRevision),
		ExpiresIn: max(time.Millisecond, time.Duration(left.TTL)*time.Second),
	}, nil
}

func (s *server) inspected(ctx context.Context, key string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("etcdlock: inspect %q: %w: %w", key, ctx.Err(), context.Cause(ctx))
	}
	return fmt.Errorf("%w: inspect %q: %w", paddock.ErrUnavailable, key, err)
}

// server is the backend: a cluster, and what this Locker has on it.
type server struct {
	client   *clientv3.Client
	root     string // of all keys
	keeper   *backend.Keeper
	sessions *sessions
	markers  *markers
	history  history
}

// version of the layout of keys.
const version = "/v1/"

// dir is what the keys of a lock's queue begin with. Escaped keys have no slash, so no dir begins with another.
func (s *server) dir(key string) string { return s.root + "lock/" + url.PathEscape(key) + "/" }

// marker is the key whose presence refuses an attempt.
func (s *server) marker(a *backend.Attempt) string { return s.root + "abort/" + a.Owner }

func seconds(ttl time.Duration) int64 { return int64(ttl / time.Second) }

var requireLeader = metadata.Pairs(rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)

// outgoing has members without a leader refuse a request at once. Whatever metadata ctx carries is not meant for etcd.
func outgoing(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, requireLeader)
}

// txn commits a transaction, at another member when one has no leader.
func (s *server) txn(ctx context.Context, ifs []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	for tries := len(s.client.Endpoints()); ; tries-- {
		resp, err := s.client.Txn(ctx).If(ifs...).Then(then...).Else(otherwise...).Commit()
		if err == nil || tries <= 1 || !errors.Is(err, rpctypes.ErrNoLeader) {
			return resp, err
		}
	}
}

func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

var errSilent = errors.New("no answer in time")

// failure is the error of a call on a's behalf. That a call's context ends is not the end of the caller's.
func failure(what string, a *backend.Attempt, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = errSilent
	}
	return fmt.Errorf("etcdlock: %s %q: %w", what, a.Key, err)
}

// refuses reports whether err says that a Txn was not carried out and will not be.
func refuses(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition,
		codes.ResourceExhausted, codes.Unimplemented:
		return true
	}
	return errors.Is(err, rpctypes.ErrNoLeader)
}

// final reports whether err will be the answer again, as long as nobody changes the cluster or the client.
func (s *server) final(ctx context.Context, err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.Unimplemented:
		return true
	case codes.InvalidArgument:
		return !errors.Is(err, rpctypes.ErrAuthOldRevision)
	case codes.Unauthenticated:
		return s.client.Token != "" // the client gets a new one only for a password
	case codes.Canceled:
		return ctx.Err() == nil // the client was closed
	}
	return errors.Is(err, errRestored)
}

// history is what the answers have said about the cluster.
type history struct {
	mu    sync.Mutex
	last  moment
	name  string // the domain
	fixed bool   // by Options.Domain
}

// moment is a point in a cluster's history.
type moment struct {
	cluster uint64
	rev     int64
}

func (h *history) now() moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

func (h *history) domain() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.name
}

func (h *history) observe(header *pb.ResponseHeader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if header.ClusterId != h.last.cluster {
		h.last = moment{cluster: header.ClusterId}
		if !h.fixed {
			h.name = fmt.Sprintf("etcd/%x", header.ClusterId)
		}
	}
	h.last.rev = max(h.last.rev, header.Revision)
}

const (
	markerTTL = 20 * time.Minute // a request that is later than half of this is not to be expected
	perMarker = 1000
)

// markers are the leases that abort markers hang on: for as long as a late request may still arrive.
type markers struct {
	*server
	turn chan struct{} // has room for one: who needs a new lease

	mu    sync.Mutex
	now   *lease
	count int
}

// lease returns a lease for one more marker.
func (m *markers) lease(ctx context.Context) (*lease, error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	m.mu.Lock()
	l := m.now
	if l != nil && m.count < perMarker && time.Until(l.until) >= markerTTL/2 {
		m.count++
		m.mu.Unlock()
		return l, nil
	}
	m.mu.Unlock()
	l, err := m.grant(ctx, seconds(markerTTL))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now, m.count = l, 1
	return l, nil
}

// lost takes in that l has ended before its time.
func (m *markers) lost(l *lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == l {
		m.now = nil
	}
}
