package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

const (
	maxPoll     = 5 * time.Second // a waiter looks at the queue at least this often: an event is a hint
	minSilence  = 5 * time.Second // the shortest silence of the servers that ends a wait
	requestWait = 5 * time.Second // for the answer to a request
	patience    = time.Second     // before all members are asked
	retryWait   = 100 * time.Millisecond
	maxLost     = 3 // server leases that one call finds to have ended
)

// Try is that of backend.Backend. Every attempt queues on a shared lease, which the Keeper keeps alive; the key of a winner
// that the server has to end moves to a lease of its own.
func (s *server) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	if s.closed() { // the client would try for seconds
		return backend.Grant{}, backend.Permanent(errClient)
	}
	ctx = outgoing(ctx)
	e := &entry{a: a, dir: s.dir(a.Key)}
	e.name = e.dir + a.Owner
	a.State = e

	place, err := s.enter(ctx, e)
	if err == nil && place.ahead != "" {
		err = s.wait(ctx, e, place)
	}
	sent, on := time.Time{}, e.certain()
	if err == nil && (a.NoRenew || a.MaxHold > 0) {
		sent, on, err = s.part(ctx, e)
	}
	switch {
	case err != nil:
		return backend.Grant{}, s.failed(ctx, e, err)
	case on == nil:
		return backend.Grant{}, errLeaseLost
	}
	create, _ := e.revisions()
	return backend.Grant{
		Token: fencing.Token(create), Domain: s.history.domain(), Sent: sent, TTL: on.granted, Session: on.life,
	}, nil
}

// failed makes what Try returns of err. Unless the attempt was refused, and nothing of it is left, the Keeper undoes it.
func (s *server) failed(ctx context.Context, e *entry, err error) error {
	if held := (*paddock.HeldError)(nil); errors.As(err, &held) {
		if s.Undo(ctx, e.a) == nil {
			return err
		}
		err = errCopies
	}
	if s.closed() || s.final(err) && s.Undo(ctx, e.a) == nil {
		return backend.Permanent(err)
	}
	return failure("acquire", e.a, err)
}

var (
	errLeaseLost = errors.New("the etcd lease that the key hung on has ended")
	errClient    = errors.New("the etcd client was closed")
	errKeyLost   = errors.New("the key was deleted")
	errUndone    = errors.New("the attempt was undone before it arrived")
	errCopies    = errors.New("refused, but a copy of the request may be under way")
	errRestored  = errors.New("the cluster's revision is lower than one seen before, so its tokens would go back: " +
		"was it restored from a backup without --bump-revision?")
)

// place is a key's place in the queue, as of a revision.
type place struct {
	ahead string // the key before it; "": it is the first, and has the lock
	rev   int64
}

// enter creates the attempt's key, which has the lock if it is the first of the queue. One that may not queue is created only
// if there is no other.
func (s *server) enter(ctx context.Context, e *entry) (place, error) {
	ifs := []clientv3.Cmp{absent(s.marker(e.a)), absent(e.name)}
	then := make([]clientv3.Op, 1, 2)
	var otherwise []clientv3.Op
	if e.a.Waits {
		then = append(then, clientv3.OpGet(e.dir, clientv3.WithPrefix(), clientv3.WithCountOnly()))
	} else {
		ifs[1] = absent(e.dir).WithPrefix()
		otherwise = []clientv3.Op{clientv3.OpGet(e.name, clientv3.WithKeysOnly()), clientv3.OpGet(e.dir, clientv3.WithFirstCreate()...)}
	}
	for range maxLost {
		l, err := s.sessions.join(ctx, seconds(e.a.TTL), e)
		if err != nil {
			return place{}, err
		}
		before := s.history.now()
		e.mu.Lock()
		e.on, e.sent, e.gone = l, true, false
		e.mu.Unlock()
		then[0] = clientv3.OpPut(e.name, e.a.Note, clientv3.WithLease(l.id))
		resp, again, err := s.txn(ctx, max(e.a.TTL/3, min(e.a.TTL, requestWait)), ifs, then, otherwise)
		e.mu.Lock()
		e.copies = e.copies || again
		e.sent = err == nil || e.copies || !refuses(err)
		e.mu.Unlock()
		if err != nil {
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				s.sessions.lose(l, err)
				continue
			}
			return place{}, err
		}
		return s.entered(ctx, e, resp, before)
	}
	return place{}, errLeaseLost
}

// absent compares that there is no such key.
func absent(key string) clientv3.Cmp { return clientv3.Compare(clientv3.CreateRevision(key), "=", 0) }

// entered reads the answer to enter's Txn.
func (s *server) entered(ctx context.Context, e *entry, resp *clientv3.TxnResponse, before moment) (place, error) {
	s.history.observe(resp.Header)
	created := resp.Header.Revision
	if !resp.Succeeded {
		var err error
		if created, err = s.duplicate(ctx, e, resp); err != nil {
			return place{}, err
		}
	}
	e.mu.Lock()
	e.create, e.mod = created, created
	e.mu.Unlock()
	switch {
	case before.cluster == resp.Header.ClusterId && created <= before.rev:
		return place{}, errRestored
	case !e.a.Waits, resp.Succeeded && resp.Responses[1].GetResponseRange().Count == 1:
		return place{}, nil
	}
	return s.look(ctx, e)
}

// duplicate finds out why the attempt's key could not be created. If that is because a copy of the request, which an interceptor
// of the client may have sent, has done it, it returns the revision.
func (s *server) duplicate(ctx context.Context, e *entry, resp *clientv3.TxnResponse) (int64, error) {
	var kvs []*mvccpb.KeyValue
	if e.a.Waits {
		own, _, err := ask(ctx, s, patience, requestWait, func(ctx context.Context) (*clientv3.GetResponse, error) {
			return s.client.Get(ctx, e.name, clientv3.WithKeysOnly())
		})
		if err != nil {
			return 0, err
		}
		kvs = own.Kvs
	} else {
		kvs = resp.Responses[0].GetResponseRange().Kvs
	}
	if len(kvs) > 0 {
		return kvs[0].CreateRevision, nil
	}
	e.mu.Lock()
	e.sent = e.copies
	e.mu.Unlock()
	if e.a.Waits {
		return 0, errUndone
	}
	if first := resp.Responses[1].GetResponseRange().Kvs; len(first) > 0 {
		if err := s.foreign(e.dir, first[0]); err != nil {
			return 0, err
		}
	}
	return 0, &paddock.HeldError{Key: e.a.Key}
}

var errForeign = errors.New("paddock did not write it")

// foreign is the error for a key in the queue below dir that is none of ours, which are owners' and hang on leases: nobody can say
// whether it will ever go.
func (s *server) foreign(dir string, kv *mvccpb.KeyValue) error {
	if kv.Lease != 0 && uuid.Validate(strings.TrimPrefix(string(kv.Key), dir)) == nil {
		return nil
	}
	return fmt.Errorf("etcdlock: the key %q is in the lock's way: %w", kv.Key, errForeign)
}

// look reads the key's place in the queue, from a member that has seen all that was answered before.
func (s *server) look(ctx context.Context, e *entry) (place, error) {
	create, _ := e.revisions()
	resp, _, err := ask(ctx, s, patience, requestWait, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, e.dir, clientv3.WithPrefix(), clientv3.WithMaxCreateRev(create), clientv3.WithLimit(2),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)) // not keys only: etcd 3.7 says no lease then
	})
	if err != nil {
		return place{}, err
	}
	s.history.observe(resp.Header)
	at := place{rev: resp.Header.Revision}
	if len(resp.Kvs) == 0 || string(resp.Kvs[0].Key) != e.name {
		return at, errKeyLost
	}
	if len(resp.Kvs) > 1 {
		if err := s.foreign(e.dir, resp.Kvs[1]); err != nil {
			return at, err
		}
		at.ahead = string(resp.Kvs[1].Key)
	}
	return at, nil
}

// wait returns when the key is the first of the queue.
func (s *server) wait(ctx context.Context, e *entry, at place) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	on := e.certain()
	if on == nil {
		return errLeaseLost
	}
	events := make(chan struct{}, 1)
	var own, ahead *watch
	for answered := time.Now(); ; {
		e.a.Contended(0)
		if own.ended() {
			own = s.watch(ctx, e.name, at.rev+1, events)
		}
		if ahead.ended() || ahead.key != at.ahead {
			if ahead != nil {
				ahead.stop()
			}
			ahead = s.watch(ctx, at.ahead, at.rev+1, events)
		}
		if err := s.pause(ctx, on, events); err != nil {
			return err
		}
		for {
			next, err := s.look(ctx, e)
			if err == nil {
				answered, at = time.Now(), next
				break
			}
			switch silent := time.Since(answered); {
			case errors.Is(err, errKeyLost), ctx.Err() != nil, s.final(err):
				return err
			case silent >= max(e.a.TTL, minSilence), !time.Now().Before(on.life.Deadline()): // the key may be gone
				return err
			}
			if !sleep(ctx, retryWait) {
				return ctx.Err()
			}
		}
		if at.ahead == "" {
			return nil
		}
	}
}

// pause returns when it is time to look again.
func (s *server) pause(ctx context.Context, on *lease, events <-chan struct{}) error {
	timer := time.NewTimer(maxPoll - rand.N(maxPoll/5))
	defer timer.Stop()
	select {
	case <-events:
	case <-timer.C:
	case <-on.lost:
		return errLeaseLost
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// watch waits for the deletion of a key, which it says on events, as it does when it cannot tell any more.
type watch struct {
	key  string
	stop context.CancelFunc
	over chan struct{} // closed when it cannot tell any more
}

func (s *server) watch(ctx context.Context, key string, from int64, events chan<- struct{}) *watch {
	ctx, stop := context.WithCancel(ctx)
	w := &watch{key: key, stop: stop, over: make(chan struct{})}
	say := func() {
		select {
		case events <- struct{}{}:
		default:
		}
	}
	go func() {
		for resp := range s.client.Watch(ctx, key, clientv3.WithRev(from), clientv3.WithFilterPut()) {
			if len(resp.Events) > 0 {
				say()
			}
		}
		// Compacted, or refused: whoever waits has to look again, and no faster than this.
		if sleep(ctx, retryWait) {
			close(w.over)
			say()
		}
	}()
	return w
}

// ended reports whether there is no watch that could tell.
func (w *watch) ended() bool {
	if w == nil {
		return true
	}
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// part moves the key of a winner onto a lease of its own, whose TTL begins now.
func (s *server) part(ctx context.Context, e *entry) (time.Time, *lease, error) {
	sent := time.Now()
	l, err := s.grant(ctx, seconds(e.a.TTL))
	if err != nil {
		return sent, nil, err
	}
	if err = s.move(ctx, e, l); errors.Is(err, paddock.ErrLost) {
		err = errLeaseLost // nothing was granted yet that could be lost
	}
	return sent, l, err
}
