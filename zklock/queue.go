package zklock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

// ensemble is the backend: a way to the servers, and what this process has on them.
type ensemble struct {
	o       Options // all set
	servers []string
	keeper  *backend.Keeper
	root    string // where the parents of keys are
	nothing string // a path where nothing is

	entering chan struct{} // has room for the attempts that may be about to enter a queue

	mu      sync.Mutex
	session *session // nil: none was needed yet, or the last has ended
	closed  bool
	closing sync.Once
	nodes   map[string]*node // by owner: attempts, and leases until they are known to be gone
	parents map[string]bool  // seen lately, so probably there
	clients sync.WaitGroup   // sessions that have not hung up
}

const (
	maxParents  = 4096 // remembered
	maxEntering = 128
	minSilence  = 5 * time.Second // an attempt goes on without hearing anything for this long, or its TTL
)

// join returns a session on which requests can be sent. When one has ended, the next begins.
func (e *ensemble) join(ctx context.Context) (*session, error) {
	for {
		e.mu.Lock()
		if e.closed {
			e.mu.Unlock()
			return nil, paddock.ErrClosed
		}
		s := e.session
		if s == nil {
			s = e.begin()
			e.session = s
			e.closing.Do(func() {
				go func() {
					<-e.keeper.Done()
					e.close()
				}()
			})
		}
		e.mu.Unlock()
		_, err := s.await(ctx)
		if err == nil || ctx.Err() != nil || !errors.Is(err, zk.ErrSessionExpired) {
			return s, err
		}
	}
}

// drop forgets a session that has ended, with all that hung on it.
func (e *ensemble) drop(s *session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.session == s {
		e.session = nil
	}
	maps.DeleteFunc(e.nodes, func(_ string, n *node) bool { return n.session == s })
}

// Try is that of backend.Backend.
func (e *ensemble) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	n := newNode(e.root+"/"+element(a.Key), a)
	defer close(n.tried)
	e.mu.Lock()
	e.nodes[a.Owner] = n
	e.mu.Unlock()
	// ctx is looked at after that: an Undo, which comes after its end, either finds n or comes before anything is sent.
	if err := ctx.Err(); err != nil {
		e.forget(n)
		return backend.Grant{}, err
	}
	limit, cancel := context.WithTimeout(ctx, silence(a))
	defer cancel()
	s, err := e.join(limit)
	if err != nil {
		e.forget(n)
		return backend.Grant{}, err
	}
	// Requests pass one connection, in order: what was abandoned meanwhile had better not been sent.
	select {
	case e.entering <- struct{}{}:
	case <-limit.Done():
		e.forget(n)
		return backend.Grant{}, errBusy
	}
	s.use(n)
	entered := sync.OnceFunc(func() { <-e.entering })
	defer entered()
	g, err := s.stand(ctx, limit, a, n, entered)
	switch {
	case err == nil:
	case s.isOver(): // and takes the node along
		e.forget(n)
	case ctx.Err() != nil:
		// The Keeper has others to clean up after, while this goroutine has nothing else to do.
		ctx, cancel := context.WithTimeout(context.Background(), withdrawal)
		defer cancel()
		_ = e.remove(ctx, n) // or Undo does
	}
	return g, err
}

var errBusy = fmt.Errorf("zklock: %d attempts of this process are not answered", maxEntering)

// withdrawal is how long an attempt that was abandoned tries to take its node away itself.
const withdrawal = time.Second

// stand puts n into the queue, before limit's end, and waits until it is the first.
func (s *session) stand(ctx, limit context.Context, a *backend.Attempt, n *node, entered func()) (backend.Grant, error) {
	sent := time.Now()
	children, err := s.enter(limit, n, a.Note)
	if err != nil {
		return backend.Grant{}, s.leave(ctx, n, err)
	}
	if ctx.Err() != nil {
		return backend.Grant{}, ctx.Err()
	}
	entered()
	if places, there := ahead(children, n.owner); !there || len(places) > 0 {
		if sent, err = s.wait(ctx, a, n, places); err != nil {
			return backend.Grant{}, s.leave(ctx, n, err)
		}
	}
	if err := s.trusted(ctx, silence(a)); err != nil {
		return backend.Grant{}, err
	}
	s.e.mu.Lock()
	n.holder = true
	s.e.mu.Unlock()
	return backend.Grant{Token: n.token, Domain: s.e.o.Domain, Sent: sent, TTL: s.granted(a, a.TTL), Session: s.keeper}, nil
}

// leave returns what an attempt ends with, which err has stopped. After an answer, such as that the key is held, nothing of n is left.
func (s *session) leave(ctx context.Context, n *node, err error) error {
	final := errors.Is(err, errForeign) || permanent(err)
	if !final && !errors.Is(err, paddock.ErrHeld) {
		return s.refused(err)
	}
	if n.none {
		s.e.forget(n)
	} else if e := s.e.remove(ctx, n); e != nil && !errors.Is(e, paddock.ErrLost) {
		return e
	}
	if final {
		return backend.Permanent(fmt.Errorf("zklock: %s: %w", n.parent, err))
	}
	return err
}

var errForeign = errors.New("paddock did not create it")

// foreign is the error for a node in a queue that has a name like ours, but belongs to no session: it goes only when somebody deletes it.
func foreign(path string) error {
	return fmt.Errorf("the node %s is in the lock's way: %w", path, errForeign)
}

// silence is how long an attempt goes on without hearing anything.
func silence(a *backend.Attempt) time.Duration { return max(a.TTL, minSilence) }

// granted is how long a lease outlives its holder: as long as the session does. One that is not renewed is ended by this
// process after the TTL that was asked for.
func (s *session) granted(a *backend.Attempt, ttl time.Duration) time.Duration {
	if a.NoRenew {
		return ttl
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proof.timeout
}

// trusted returns when the session's trust window is open. It closes in an outage that the session survives, with all
// that stands in queues; the next heartbeat opens it, unless that is not answered either.
func (s *session) trusted(ctx context.Context, silence time.Duration) error {
	for end := time.Now().Add(silence); !time.Now().Before(s.keeper.Deadline()); {
		if time.Now().After(end) {
			return errUnproven
		}
		look := time.NewTimer(minRedial)
		select {
		case <-look.C:
		case <-s.life.Done():
			look.Stop()
			return s.cause
		case <-ctx.Done():
			look.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// Undo is that of backend.Backend. No marker of abandoned owners is needed on the servers: a Try sends its request once,
// and what the request came to is known, or its connection is gone, before the Try is over, for which this waits. A request on a connection that
// is gone comes before everything that the session sends on the next, or never: a server closes the old connection of a
// session that connects again, and the leader refuses requests by way of a server that the session has left.
func (e *ensemble) Undo(ctx context.Context, a *backend.Attempt) error {
	e.mu.Lock()
	n := e.nodes[a.Owner]
	e.mu.Unlock()
	if n == nil {
		return nil
	}
	select {
	case <-n.tried:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := e.remove(ctx, n); !errors.Is(err, paddock.ErrLost) {
		return err
	}
	return nil
}

// Release is that of backend.Backend.
func (e *ensemble) Release(ctx context.Context, a *backend.Attempt) error {
	e.mu.Lock()
	n := e.nodes[a.Owner]
	e.mu.Unlock()
	if n == nil {
		return paddock.ErrLost
	}
	return e.remove(ctx, n)
}

// Renew is that of backend.Backend. The session keeps its leases; what a single one is asked for is whether it is there.
func (e *ensemble) Renew(ctx context.Context, batch []backend.Renewal) {
	for i := range batch {
		r := &batch[i]
		e.mu.Lock()
		n := e.nodes[r.Owner]
		e.mu.Unlock()
		if n == nil {
			r.Err = paddock.ErrLost
			continue
		}
		s := n.session
		r.Session = s.keeper
		there, err := s.there(ctx, n)
		switch {
		case err != nil:
			r.Err = s.refused(err)
		case !there:
			e.forget(n) // no release follows
			r.Err = fmt.Errorf("%w: node %s is gone", paddock.ErrLost, n.name)
		default:
			r.Granted, r.Ordered = s.granted(r.Attempt, r.TTL), true // nothing that is under way can end it sooner
		}
	}
}

// there reports whether n is.
func (s *session) there(ctx context.Context, n *node) (bool, error) {
	if _, err := s.await(ctx); err != nil {
		return false, err
	}
	there, _, err := s.conn.Exists(n.path())
	if err == nil && !there { // or this server has not heard of it yet
		if _, err = s.conn.Sync(n.parent); err == nil {
			there, _, err = s.conn.Exists(n.path())
		}
	}
	return there, err
}

// use hangs n on the session.
func (s *session) use(n *node) {
	s.e.mu.Lock()
	n.session = s
	s.e.mu.Unlock()
	s.mu.Lock()
	s.busy++
	s.mu.Unlock()
}

// forget drops n: nothing of it is on the servers.
func (e *ensemble) forget(n *node) {
	e.mu.Lock()
	known := e.nodes[n.owner] == n
	delete(e.nodes, n.owner)
	s := n.session
	e.mu.Unlock()
	if known && s != nil {
		s.mu.Lock()
		s.busy--
		s.mu.Unlock()
	}
}

// remove takes the node of a Try that is over off the servers, over as many connections as it takes. paddock.ErrLost: it was not there.
func (e *ensemble) remove(ctx context.Context, n *node) error {
	e.mu.Lock()
	s := n.session
	e.mu.Unlock()
	if s == nil {
		e.forget(n)
		return paddock.ErrLost
	}
	var err error
	for tries := 0; ; tries++ {
		if _, err = s.await(ctx); err == nil {
			err = s.delete(n)
		}
		if tries > 0 && errors.Is(err, paddock.ErrLost) { // by the try before, whose answer was lost
			err = nil
		}
		if !broken(err) || ctx.Err() != nil {
			break
		}
	}
	err = s.refused(err)
	if err == nil || errors.Is(err, paddock.ErrLost) {
		e.forget(n)
	}
	return err
}

func (s *session) delete(n *node) error {
	name := n.name
	if name == "" && !n.none {
		var err error
		if name, err = s.find(n); err != nil {
			return err
		}
	}
	if name == "" {
		return paddock.ErrLost
	}
	err := s.conn.Delete(n.parent+"/"+name, -1)
	if errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%w: node %s is gone", paddock.ErrLost, name)
	}
	return err
}

// permanent tells the errors that will not go away by themselves.
func permanent(err error) bool {
	for _, e := range []error{
		zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrNoChildrenForEphemerals, zk.ErrBadArguments, zk.ErrInvalidPath,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lost tells the errors after which a request may have been carried out.
func lost(err error) bool {
	return err != nil && !permanent(err) && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNodeExists)
}

// broken tells the errors after which the request may succeed on the next connection.
func broken(err error) bool {
	var op *net.OpError
	return errors.Is(err, zk.ErrConnectionClosed) || errors.Is(err, zk.ErrNoServer) || errors.Is(err, zk.ErrSessionMoved) ||
		errors.As(err, &op)
}
