package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/paddock-go/paddock"
)

const (
	perLease  = 256         // keys: what is lost together, and deleted in one step of the server
	idleAfter = time.Minute // a shared lease without keys is kept for this long
)

// sessions are the shared leases of a Locker, by TTL.
type sessions struct {
	*server
	dir   string // of their own keys, whose deletion says that a lease has ended
	after time.Duration

	ctx      context.Context // of the watch on dir
	stop     context.CancelFunc
	watching sync.WaitGroup

	mu      sync.Mutex
	shelves map[int64]*shelf
	ids     map[clientv3.LeaseID]*lease
	owners  map[string]struct{} // of attempts that may have a key on the server, whatever it hangs on
	started bool                // the watch
}

// shelf holds the leases of one TTL.
type shelf struct {
	leases []*lease
	turn   chan struct{} // has room for one: of many that need a new lease one gets it for all
}

func newSessions(s *server, locker string) *sessions {
	p := &sessions{
		server: s, dir: s.root + "session/" + locker + "/", after: idleAfter,
		shelves: map[int64]*shelf{}, ids: map[clientv3.LeaseID]*lease{}, owners: map[string]struct{}{},
	}
	p.ctx, p.stop = context.WithCancel(outgoing(context.Background()))
	return p
}

// join makes room for e on a shared lease of that TTL, a new one if need be.
func (p *sessions) join(ctx context.Context, seconds int64, e *entry) (*lease, error) {
	p.mu.Lock()
	p.owners[e.a.Owner] = struct{}{}
	sh := p.shelves[seconds]
	if sh == nil {
		sh = &shelf{turn: make(chan struct{}, 1)}
		p.shelves[seconds] = sh
	}
	p.mu.Unlock()
	if l := p.room(sh, e); l != nil {
		return l, nil
	}
	ctx, cancel := within(ctx, requestWait)
	defer cancel()
	select {
	case sh.turn <- struct{}{}:
		defer func() { <-sh.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l := p.room(sh, e); l != nil { // whoever had the turn may have made it
		return l, nil
	}
	return p.begin(ctx, seconds, sh, e)
}

// room finds a lease for e, rather the one that it is on already.
func (p *sessions) room(sh *shelf, e *entry) *lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found *lease
	for _, l := range sh.leases {
		if _, ok := l.keys[e]; ok {
			return l
		}
		if found == nil && len(l.keys) < perLease && time.Now().Before(l.life.Deadline()) {
			found = l
		}
	}
	if found != nil {
		found.keys[e] = struct{}{}
	}
	return found
}

// begin starts a shared lease, with e as its first key. Its own key is there to be watched: what ends a lease deletes its keys.
func (p *sessions) begin(ctx context.Context, seconds int64, sh *shelf, e *entry) (*lease, error) {
	sent := time.Now()
	l, err := p.grant(ctx, seconds)
	if err != nil {
		return nil, err
	}
	key := p.dir + strconv.FormatInt(int64(l.id), 16)
	resp, _, err := ask(ctx, p.server, patience, requestWait, func(ctx context.Context) (*clientv3.PutResponse, error) {
		return p.client.Put(ctx, key, e.a.Note, clientv3.WithLease(l.id))
	})
	if err != nil {
		p.revoke(ctx, l)
		return nil, err
	}
	l.keys, l.lost = map[*entry]struct{}{e: {}}, make(chan struct{})
	l.life = p.keeper.Session(sent, l.granted, func(ctx context.Context) (time.Duration, error) { return p.beat(ctx, l) })
	p.mu.Lock()
	defer p.mu.Unlock()
	sh.leases = append(sh.leases, l)
	p.ids[l.id] = l
	if !p.started {
		p.started = true
		p.watching.Go(func() { p.watch(resp.Header.Revision + 1) })
	}
	return l, nil
}

// leave makes e's places on shared leases free. If it is gone altogether nothing of it should be found on the server.
func (p *sessions) leave(e *entry, gone bool, from ...*lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range from {
		delete(l.keys, e)
		if len(l.keys) == 0 {
			l.idle = time.Now()
		}
	}
	if gone {
		delete(p.owners, e.a.Owner)
	}
}

// take takes l off its shelf, and returns the keys that were on it; false: somebody has done so before.
func (p *sessions) take(l *lease) (map[*entry]struct{}, bool) {
	if l.over {
		return nil, false
	}
	l.over = true
	delete(p.ids, l.id)
	sh := p.shelves[l.seconds]
	for i, other := range sh.leases {
		if other == l {
			sh.leases = append(sh.leases[:i:i], sh.leases[i+1:]...)
		}
	}
	keys := l.keys
	l.keys = nil
	return keys, true
}

// lose ends everything that hangs on l, which the server has ended.
func (p *sessions) lose(l *lease, cause error) {
	p.mu.Lock()
	keys, first := p.take(l)
	p.mu.Unlock()
	if !first {
		return
	}
	close(l.lost)
	for e := range keys {
		p.forsake(e, l)
	}
	l.life.Lost(fmt.Errorf("its etcd lease %x has ended: %w", int64(l.id), cause))
}

// beat keeps l alive, or ends it when nobody has used it for a while.
func (p *sessions) beat(ctx context.Context, l *lease) (time.Duration, error) {
	end, _ := ctx.Deadline()
	ctx = outgoing(ctx)
	p.mu.Lock()
	unused := len(l.keys) == 0 && time.Since(l.idle) > p.after
	if unused {
		p.take(l)
	}
	p.mu.Unlock()
	if unused {
		p.revoke(ctx, l)
		return 0, fmt.Errorf("%w: nothing hung on it for %v", paddock.ErrLost, p.after)
	}
	ttls, err := p.keepAlive(ctx, time.Until(end), l.id)
	if err != nil {
		return 0, fmt.Errorf("etcdlock: keepalive: %w", err)
	}
	if ttls[0] <= 0 {
		p.lose(l, rpctypes.ErrLeaseNotFound)
		return 0, fmt.Errorf("%w: %w", paddock.ErrLost, rpctypes.ErrLeaseNotFound)
	}
	// The answer to the keepalive should not have to wait for long.
	ctx, cancel := within(ctx, time.Until(end)/2)
	defer cancel()
	p.audit(ctx, l)
	return ttls[0], nil
}

// audit compares what hangs on l with what should. A key that somebody has deleted is lost, though its lease lives. A key that
// nobody here knows any more would live for as long as the lease is kept alive, and is deleted.
func (p *sessions) audit(ctx context.Context, l *lease) {
	should := map[string]*entry{}
	p.mu.Lock()
	for e := range l.keys {
		if e.restsOn(l) {
			should[e.a.Owner] = e
		}
	}
	p.mu.Unlock()
	resp, err := p.client.TimeToLive(ctx, l.id, clientv3.WithAttachedKeys())
	if err != nil || resp.TTL < 0 {
		return // the next beat will tell
	}
	var strays []string
	p.mu.Lock()
	for _, k := range resp.Keys {
		key := string(k)
		owner := key[strings.LastIndexByte(key, '/')+1:]
		delete(should, owner)
		if _, known := p.owners[owner]; !known && strings.HasPrefix(key, p.root+"lock/") {
			strays = append(strays, key)
		}
	}
	p.mu.Unlock()
	for _, k := range strays { // an owner is never used again
		_, _ = p.client.Delete(ctx, k) // or at the next beat
	}
	// The member that has answered may have been behind the one that created a key.
	suspects := slices.Collect(maps.Values(should))
	gone, err := p.missing(ctx, suspects)
	if err != nil {
		return
	}
	for i, e := range suspects {
		if gone[i] && e.restsOn(l) {
			p.forsake(e, l)
			e.a.Lost(fmt.Errorf("%w: %s was deleted", paddock.ErrLost, e.name))
		}
	}
}

var errSessionKey = errors.New("its session key was deleted")

// watch learns from the deletion of a session's key that its lease has ended, sooner than the next beat would.
func (p *sessions) watch(rev int64) {
	for {
		changes := p.client.Watch(p.ctx, p.dir, clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithRev(rev))
		for resp := range changes {
			for _, ev := range resp.Events {
				p.ended(string(ev.Kv.Key))
			}
		}
		// Compacted, or without a leader: what has happened meanwhile has to be read.
		for again := true; again; {
			if !sleep(p.ctx, retryWait) {
				return
			}
			var err error
			rev, err = p.reread()
			again = err != nil
		}
	}
}

// reread finds out which session keys are gone, and as of which revision.
func (p *sessions) reread() (int64, error) {
	ctx, cancel := within(p.ctx, requestWait)
	defer cancel()
	gone := map[string]bool{}
	p.mu.Lock()
	for id := range p.ids {
		gone[p.dir+strconv.FormatInt(int64(id), 16)] = true
	}
	p.mu.Unlock()
	resp, err := p.client.Get(ctx, p.dir, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return 0, err
	}
	for _, kv := range resp.Kvs {
		delete(gone, string(kv.Key))
	}
	for key := range gone {
		p.ended(key)
	}
	return resp.Header.Revision + 1, nil
}

// ended takes in that a session's key is gone.
func (p *sessions) ended(key string) {
	id, err := strconv.ParseInt(strings.TrimPrefix(key, p.dir), 16, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	l := p.ids[clientv3.LeaseID(id)]
	p.mu.Unlock()
	if l == nil {
		return
	}
	p.lose(l, errSessionKey)
	ctx, cancel := within(p.ctx, requestWait)
	defer cancel()
	p.revoke(ctx, l) // if the key alone was deleted
}

// end revokes the leases that nothing hangs on; all, and ends the watch too, when the Locker is done.
func (p *sessions) end(ctx context.Context, all bool) {
	p.mu.Lock()
	var unused []*lease
	for _, l := range p.ids {
		if all || len(l.keys) == 0 {
			unused = append(unused, l)
		}
	}
	for _, l := range unused {
		p.take(l)
	}
	p.mu.Unlock()
	for _, l := range unused {
		l.life.End()
		p.revoke(ctx, l)
	}
	if all {
		p.stop()
		p.watching.Wait()
	}
}
