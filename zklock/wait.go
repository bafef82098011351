package zklock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

// waiter is an attempt in the queue for its key.
type waiter struct {
	*session
	a     *backend.Attempt
	n     *node
	heard time.Time // when the server last answered
}

// maxPoll is how long a waiter relies on being notified.
const maxPoll = 5 * time.Second

var errVanished = errors.New("zklock: the node is gone from its queue")

// wait returns when nobody stands before n any more, which it learnt later than sent. places are those who do, or nil.
func (s *session) wait(ctx context.Context, a *backend.Attempt, n *node, places []place) (sent time.Time, err error) {
	w := &waiter{session: s, a: a, n: n, heard: time.Now()}
	for {
		if len(places) > 0 {
			if !a.Waits {
				return sent, &paddock.HeldError{Key: a.Key}
			}
			var gone bool
			if gone, err = w.follow(ctx, places[len(places)-1]); err == nil {
				if gone && len(places) == 1 { // nobody else stood there, and who comes later stands behind
					return time.Now(), nil
				}
				places = nil
			}
		} else {
			sent = time.Now()
			if places, err = w.look(ctx); err == nil && len(places) == 0 {
				return sent, nil
			}
		}
		// A connection may break without a place being lost: the next round waits for the next connection.
		if err != nil && (!broken(err) || ctx.Err() != nil || time.Since(w.heard) >= silence(a)) {
			return sent, err
		}
	}
}

// reach returns when requests can be sent, or nothing was heard for too long.
func (w *waiter) reach(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, w.heard.Add(silence(w.a)))
	defer cancel()
	_, err := w.await(ctx)
	return err
}

// answered notes that the server has answered that others stand before us.
func (w *waiter) answered() {
	w.a.Contended(0)
	w.heard = time.Now()
}

// look returns those who stand before n.
func (w *waiter) look(ctx context.Context) ([]place, error) {
	if err := w.reach(ctx); err != nil {
		return nil, err
	}
	places, there, err := w.list()
	if err == nil && !there { // this server may not have heard yet of what another has done
		if _, err = w.conn.Sync(w.n.parent); err == nil {
			places, there, err = w.list()
		}
		if err == nil && !there {
			return nil, errVanished
		}
	}
	if err == nil && len(places) > 0 {
		w.answered()
	}
	return places, err
}

func (w *waiter) list() (places []place, there bool, err error) {
	children, _, err := w.conn.Children(w.n.parent)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, false, nil
	}
	if err == nil {
		places, there = ahead(children, w.n.owner)
	}
	return places, there, err
}

// follow returns when p is gone, or may be. True: it is.
func (w *waiter) follow(ctx context.Context, p place) (bool, error) {
	if err := w.reach(ctx); err != nil {
		return false, err
	}
	path := w.n.parent + "/" + p.name
	watch, err := w.watch(path)
	if err != nil {
		return false, err
	}
	w.answered()
	for {
		timer := time.NewTimer(maxPoll - rand.N(maxPoll/10))
		select {
		case <-watch.over:
			timer.Stop()
			return watch.deleted, nil
		case <-w.life.Done():
			timer.Stop()
			return false, w.cause
		case <-ctx.Done():
			timer.Stop()
			return false, ctx.Err()
		case <-timer.C: // a notification is a hint
		}
		if err := w.reach(ctx); err != nil {
			return false, err
		}
		there, _, err := w.conn.Exists(path)
		if err != nil || !there {
			return false, err
		}
		w.answered()
	}
}

// watch is one watch on a node that somebody waits to see gone. All waiters of a session share it, and those that give up
// leave it to the next: ZooKeeper 3.5 has no way to take one back that go-zookeeper knows.
type watch struct {
	over    chan struct{} // closed when it has fired
	deleted bool          // upon the deletion of the node, without doubt
	link    *link         // that it was set on
}

// watch sets a watch on the node at path, or finds the one that is set.
func (s *session) watch(path string) (*watch, error) {
	s.mu.Lock()
	w, c := s.watches[path], s.link
	if w != nil {
		s.mu.Unlock()
		return w, nil
	}
	w = &watch{over: make(chan struct{})}
	s.watches[path] = w // before it can fire
	s.mu.Unlock()
	_, stat, _, err := s.conn.GetW(path)
	if err == nil && stat.EphemeralOwner == 0 {
		err = foreign(path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		if s.link == c {
			w.link = c
		}
		return w, nil
	}
	if s.watches[path] == w {
		delete(s.watches, path)
		close(w.over)
	}
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return w, err
}

// changed is called when a watch fires. One that was set anew on another connection also fires when that server has not
// heard of the node yet.
func (s *session) changed(ev zk.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watches[ev.Path]; w != nil {
		delete(s.watches, ev.Path)
		w.deleted = ev.Type == zk.EventNodeDeleted && w.link != nil && w.link == s.link
		close(w.over)
	}
}
