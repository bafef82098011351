package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/paddock-go/paddock/backend"
)

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

// outgoing is the context of a request. A member without a leader refuses it at once; whatever metadata ctx carries is not meant for
// etcd, and neither is the deadline, which a server may see pass a little earlier and answers to with an error of its own.
func outgoing(ctx context.Context) context.Context {
	return undated{metadata.NewOutgoingContext(ctx, requireLeader)}
}

// within bounds a request.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	return undated{ctx}, cancel
}

type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// ask makes a request. When it has run out of patience without an answer it makes it again, once for each endpoint and all at the same time, so that
// the client, which takes them in turns, asks every member: all but one may be silent. It returns whether a request was left without an
// answer: it may still be under way.
func ask[T any](ctx context.Context, s *server, patience, limit time.Duration, request func(context.Context) (T, error)) (
	answer T, again bool, err error,
) {
	first, cancel := within(ctx, min(patience, limit))
	answer, err = request(first)
	silent := first.Err() != nil
	cancel()
	if err == nil || !silent || ctx.Err() != nil || patience >= limit {
		return answer, false, err
	}

	type result struct {
		answer T
		err    error
	}
	rest, cancel := within(ctx, limit-patience)
	members := len(s.client.Endpoints())
	results := make(chan result, members)
	for range members {
		go func() {
			answer, err := request(rest)
			results <- result{answer, err}
		}()
	}
	defer cancel()
	for range members {
		r := <-results
		answer, err = r.answer, r.err
		if err == nil || refuses(err) && !errors.Is(err, rpctypes.ErrNoLeader) {
			break
		}
	}
	return answer, true, err
}

// txn commits a transaction, at another member when one has no leader or is silent.
func (s *server) txn(ctx context.Context, limit time.Duration, ifs []clientv3.Cmp, then, otherwise []clientv3.Op) (
	resp *clientv3.TxnResponse, again bool, err error,
) {
	return ask(ctx, s, patience, limit, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		for tries := len(s.client.Endpoints()); ; tries-- {
			resp, err := s.client.Txn(ctx).If(ifs...).Then(then...).Else(otherwise...).Commit()
			if err == nil || tries <= 1 || !errors.Is(err, rpctypes.ErrNoLeader) {
				return resp, err
			}
		}
	})
}

// remove deletes a key, and returns whether it was there.
func (s *server) remove(ctx context.Context, key string) (bool, error) {
	resp, again, err := ask(ctx, s, patience, requestWait, func(ctx context.Context) (*clientv3.DeleteResponse, error) {
		return s.client.Delete(ctx, key)
	})
	return err == nil && (resp.Deleted > 0 || again), err
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
func (s *server) final(err error) bool {
	switch code(err) {
	case codes.PermissionDenied, codes.Unimplemented:
		return true
	case codes.InvalidArgument:
		return !errors.Is(err, rpctypes.ErrAuthOldRevision)
	case codes.Unauthenticated:
		return s.client.Token != "" // the client gets a new one only for a password
	}
	return errors.Is(err, errRestored) || errors.Is(err, errForeign) || s.closed()
}

// closed reports whether the client was closed, by its owner.
func (s *server) closed() bool { return s.client.Ctx().Err() != nil }

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
