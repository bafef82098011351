package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

// entry is an attempt's key on the server: its place in the queue for the lock, of which the first has the lock.
type entry struct {
	a    *backend.Attempt
	dir  string // of the lock
	name string // of the key

	mu     sync.Mutex
	sent   bool     // a Txn that may have created the key
	copies bool     // it was sent more than once, and may be under way
	create int64    // the revision that created it; 0: not known to be there
	mod    int64    // the last revision of it that is known
	on     *lease   // that it hangs on, as far as is known
	maybe  []*lease // that it may hang on instead: a Put of unknown outcome would move it there
	gone   bool     // nothing of it is on the server any more
}

func (e *entry) revisions() (create, mod int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.create, e.mod
}

// restsOn reports whether the key was created and hangs on l without a doubt.
func (e *entry) restsOn(l *lease) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.create != 0 && e.on == l && len(e.maybe) == 0 && !e.gone
}

func (e *entry) isGone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.gone
}

// certain is the lease that the key hangs on, or nil if that is not certain.
func (e *entry) certain() *lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.maybe) > 0 || e.gone {
		return nil
	}
	return e.on
}

// settle records that the key hangs on l alone, and gives up its places on other leases. Own ones are revoked. It is ErrLost when
// the key does not hang on l: it was released meanwhile, or the lease that it was to leave has ended, which its holder then sees.
func (s *server) settle(ctx context.Context, e *entry, l *lease) error {
	e.mu.Lock()
	left := append(e.maybe, e.on)
	if l == nil || e.gone {
		left = append(left, l)
		e.gone, l = true, nil
	}
	e.on, e.maybe = l, nil
	gone := e.gone
	e.mu.Unlock()
	var shared, own []*lease
	for _, old := range left {
		switch {
		case old == nil || old == l:
		case old.life == nil:
			own = append(own, old)
		default:
			shared = append(shared, old)
		}
	}
	s.sessions.leave(e, gone, shared...)
	for _, old := range own {
		s.revoke(ctx, old)
	}
	if gone {
		return fmt.Errorf("%w: %w", paddock.ErrLost, errLeaseLost)
	}
	return nil
}

// forget is settle for a key that is gone.
func (s *server) forget(ctx context.Context, e *entry) { _ = s.settle(ctx, e, nil) }

// consider records that the key may come to hang on l.
func (e *entry) consider(l *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.on != l && !slices.Contains(e.maybe, l) {
		e.maybe = append(e.maybe, l)
	}
}

// Undo is that of backend.Backend.
func (s *server) Undo(ctx context.Context, a *backend.Attempt) error {
	e, _ := a.State.(*entry)
	if e == nil {
		return nil
	}
	ctx = outgoing(ctx)
	e.mu.Lock()
	nothing := !e.sent || e.gone
	alone := e.create != 0 && !e.copies // no Txn is under way that could create it, and one that would move it is refused without it
	e.mu.Unlock()
	var err error
	switch {
	case nothing:
	case alone:
		_, err = s.remove(ctx, e.name)
	default:
		_, err = s.mark(ctx, e)
	}
	if err != nil {
		return failure("undo", a, err)
	}
	s.forget(ctx, e)
	return nil
}

// mark deletes the key, makes sure in the same Txn that it cannot be created any more, and returns whether it was there.
func (s *server) mark(ctx context.Context, e *entry) (bool, error) {
	for {
		l, err := s.markers.lease(ctx)
		if err != nil {
			return false, err
		}
		ifs := []clientv3.Cmp{absent(e.name)}
		put := []clientv3.Op{clientv3.OpPut(s.marker(e.a), e.a.Key, clientv3.WithLease(l.id))}
		del := []clientv3.Op{clientv3.OpDelete(e.name)}
		if e.copies {
			del = append(del, put...)
		}
		resp, again, err := s.txn(ctx, requestWait, ifs, put, del)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			s.markers.lost(l)
			continue
		}
		return err == nil && (!resp.Succeeded || again), err
	}
}

// Release is that of backend.Backend. The key is this acquisition's alone. What is Slow needs no marker, only what was sent again: the
// client itself sends a Txn again only when the first has not left it or was refused.
func (s *server) Release(ctx context.Context, a *backend.Attempt) error {
	e := a.State.(*entry)
	ctx = outgoing(ctx)
	e.mu.Lock()
	copies := e.copies
	e.mu.Unlock()
	var there bool
	var err error
	if copies {
		there, err = s.mark(ctx, e)
	} else {
		there, err = s.remove(ctx, e.name)
	}
	if err != nil {
		return failure("release", a, err)
	}
	s.forget(ctx, e)
	if !there {
		return fmt.Errorf("%w: %s is gone", paddock.ErrLost, e.name)
	}
	return nil
}

// Renew is that of backend.Backend. It is for leases with a server lease of their own, and for Extends: the shared ones have
// their sessions.
func (s *server) Renew(ctx context.Context, batch []backend.Renewal) {
	end, _ := ctx.Deadline()
	ctx = outgoing(ctx)
	var alive []*backend.Renewal // a keepalive is all that they need
	var ids []clientv3.LeaseID
	var moves sync.WaitGroup
	places := make(chan struct{}, 16)
	for i := range batch {
		r := &batch[i]
		e := r.State.(*entry)
		if l := e.certain(); l != nil && l.life == nil && l.seconds == seconds(r.TTL) {
			alive, ids = append(alive, r), append(ids, l.id)
			continue
		}
		places <- struct{}{}
		moves.Go(func() {
			if r.NoRenew || r.MaxHold > 0 {
				s.renewOwn(ctx, e, r)
			} else {
				s.renewShared(ctx, e, r)
			}
			if e.isGone() { // released meanwhile: what was taken for it is not needed
				s.forget(ctx, e)
			}
			<-places
		})
	}
	if len(ids) > 0 {
		s.renewAlive(ctx, end, alive, ids)
	}
	moves.Wait()
	for i := range batch {
		if r := &batch[i]; r.Err != nil {
			r.Err = failure("renew", r.Attempt, r.Err)
		}
	}
}

// renewAlive renews leases of single keys by keeping them alive. A key may have been deleted though its lease lives.
func (s *server) renewAlive(ctx context.Context, end time.Time, alive []*backend.Renewal, ids []clientv3.LeaseID) {
	sent := time.Now()
	entries := make([]*entry, len(alive))
	for i, r := range alive {
		entries[i] = r.State.(*entry)
	}
	ttls, err := s.keepAlive(ctx, time.Until(end), ids...)
	var gone []bool
	if err == nil {
		gone, err = s.missing(ctx, entries)
	}
	for i, r := range alive {
		e := entries[i]
		switch {
		case err != nil:
			r.Err = err
		case ttls[i] <= 0 || gone[i]:
			s.forget(ctx, e)
			r.Err = fmt.Errorf("%w: %s is gone", paddock.ErrLost, e.name)
		default:
			r.Granted, r.Ordered = ttls[i], true
			if l := e.certain(); l != nil {
				l.until = sent.Add(ttls[i])
			}
		}
	}
}

// perTxn is how many operations servers take in one transaction by default, and some to spare.
const perTxn = 100

// missing finds out which of the keys are not there, from a member that has seen all that was answered before.
func (s *server) missing(ctx context.Context, entries []*entry) ([]bool, error) {
	var gone []bool
	for some := range slices.Chunk(entries, perTxn) {
		gets := make([]clientv3.Op, len(some))
		for i, e := range some {
			gets[i] = clientv3.OpGet(e.name, clientv3.WithCountOnly())
		}
		resp, _, err := s.txn(ctx, requestWait, nil, gets, nil)
		if err != nil {
			return nil, err
		}
		for _, r := range resp.Responses {
			gone = append(gone, r.GetResponseRange().Count == 0)
		}
	}
	return gone, nil
}

// renewOwn moves the key of a NoRenew or MaxHold acquisition onto a server lease of another TTL.
func (s *server) renewOwn(ctx context.Context, e *entry, r *backend.Renewal) {
	now := time.Now()
	l := e.certain()
	if l != nil && !r.Shorten && seconds(r.TTL) < l.seconds && !l.until.Add(step).Before(now.Add(r.TTL)) {
		// It lasts until MaxHold is over; a keepalive would have it last longer.
		switch gone, err := s.missing(ctx, []*entry{e}); {
		case err != nil:
			r.Err = err
		case gone[0]:
			s.forget(ctx, e)
			r.Err = fmt.Errorf("%w: %s is gone", paddock.ErrLost, e.name)
		default:
			r.Granted, r.Ordered = l.until.Sub(now), true
		}
		return
	}
	l, err := s.grant(ctx, seconds(r.TTL))
	if err != nil {
		r.Err = err
		return
	}
	if r.Err = s.move(ctx, e, l); r.Err == nil {
		r.Granted, r.Ordered = l.granted, true
	}
}

// renewShared moves the key onto the shared lease for its TTL, or finds that it is there.
func (s *server) renewShared(ctx context.Context, e *entry, r *backend.Renewal) {
	for range maxLost {
		l, err := s.sessions.join(ctx, seconds(r.TTL), e)
		if err != nil {
			r.Err = err
			return
		}
		err = s.move(ctx, e, l)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			s.sessions.lose(l, err)
			continue
		}
		if r.Err = err; err == nil {
			r.Granted, r.Ordered = l.granted, true
		}
		if !errors.Is(err, paddock.ErrLost) {
			r.Session = l.life
		}
		return
	}
	r.Err = rpctypes.ErrLeaseNotFound
}

// move hangs the key on l, by a Put that is refused if another has changed the key in between: so whatever Put of ours may still
// be under way is refused when this one has been answered.
func (s *server) move(ctx context.Context, e *entry, l *lease) error {
	e.consider(l)
	for {
		create, mod := e.revisions()
		resp, _, err := s.txn(ctx, requestWait,
			[]clientv3.Cmp{
				clientv3.Compare(clientv3.CreateRevision(e.name), "=", create),
				clientv3.Compare(clientv3.ModRevision(e.name), "=", mod),
			},
			[]clientv3.Op{clientv3.OpPut(e.name, e.a.Note, clientv3.WithLease(l.id))},
			[]clientv3.Op{clientv3.OpGet(e.name)}) // not keys only: etcd 3.7 says no lease then
		if err != nil {
			return err
		}
		if resp.Succeeded {
			e.mu.Lock()
			e.mod = resp.Header.Revision
			e.mu.Unlock()
			return s.settle(ctx, e, l)
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		if len(kvs) == 0 || kvs[0].CreateRevision != create {
			s.forget(ctx, e)
			return fmt.Errorf("%w: %s is gone", paddock.ErrLost, e.name)
		}
		e.mu.Lock() // an earlier Put of ours, of unknown outcome
		e.mod = kvs[0].ModRevision
		e.mu.Unlock()
		if kvs[0].Lease == int64(l.id) {
			return s.settle(ctx, e, l)
		}
	}
}

// forsake follows the end of a shared lease that the key hangs on, or may hang on. When the key hung on it the Keeper forgets the
// acquisition; should it hang on another lease after all, it is a stray there.
func (p *sessions) forsake(e *entry, l *lease) {
	e.mu.Lock()
	gone, left := e.on == l, []*lease{l}
	e.maybe = slices.DeleteFunc(e.maybe, func(other *lease) bool {
		if gone && other.life != nil {
			left = append(left, other)
		}
		return gone || other == l
	})
	if gone {
		e.on, e.gone = nil, true
	}
	e.mu.Unlock()
	p.leave(e, gone, left...)
}
