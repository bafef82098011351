package zklock

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock/fencing"
)

// enter creates n, at the end of the queue for its key, and returns the children of its parent. It sends what it needs in
// one go: the parent, if it was not seen lately; the node and the touch of the parent that tells the transaction's id; the
// question for the children. The server answers in that order.
func (s *session) enter(ctx context.Context, n *node, note string) (children []string, err error) {
	create := &zk.CreateRequest{
		Path: n.parent + "/" + nodePrefix + n.owner + "-", Data: []byte(note), Acl: s.e.o.ACL, Flags: zk.FlagEphemeralSequential,
	}
	touch := &zk.SetDataRequest{Path: n.parent, Version: -1}
	for tries := 0; ; tries++ {
		var parent <-chan error
		if !s.e.seen(n.parent) {
			parent = s.launch(n.parent, func() error { return s.container(n.parent) })
		}
		var results []zk.MultiResponse
		multi := s.launch(create.Path, func() (err error) {
			results, err = s.conn.Multi(create, touch)
			return err
		})
		children, _, err = s.conn.Children(n.parent)
		if e := <-multi; e != nil || err != nil {
			children, err = nil, e
		}
		if parent != nil && <-parent == nil {
			n.made = true
		}
		switch {
		case err == nil:
			s.e.see(n.parent)
			n.name = path.Base(results[0].String)
			n.token = fencing.Token(results[1].Stat.Mzxid)
			return children, nil
		case errors.Is(err, zk.ErrNoNode) && tries < maxEntries: // the server has removed the empty container, or more
			if err = s.makeParents(n); err == nil {
				continue
			}
			n.none = true
			return nil, err
		case lost(err):
			if e := s.adopt(ctx, n); e != nil {
				return nil, fmt.Errorf("%w: %w", err, e)
			}
			return nil, nil
		default:
			n.none = true
			return nil, err
		}
	}
}

// maxEntries is how often the parent may be removed in front of one attempt.
const maxEntries = 5

// launch makes a call whose request names path first, and returns when that request has left, or when the call is over.
func (s *session) launch(path string, call func() error) (answer <-chan error) {
	left, over := make(chan struct{}), make(chan error, 1)
	s.mu.Lock()
	s.passing[path] = append(s.passing[path], left)
	s.mu.Unlock()
	go func() { over <- call() }()
	select {
	case <-left:
	case err := <-over:
		over <- err
		s.mu.Lock()
		if rest := slices.DeleteFunc(s.passing[path], func(c chan struct{}) bool { return c == left }); len(rest) > 0 {
			s.passing[path] = rest
		} else {
			delete(s.passing, path)
		}
		s.mu.Unlock()
	}
	return over
}

// passed is called with every packet that has left.
func (s *session) passed(packet []byte) {
	path := named(packet)
	if path == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, left := range s.passing[string(path)] {
		close(left)
	}
	delete(s.passing, string(path))
}

// seen reports whether a parent was there a while ago.
func (e *ensemble) seen(parent string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.parents[parent]
}

func (e *ensemble) see(parent string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.parents) >= maxParents {
		clear(e.parents)
	}
	e.parents[parent] = true
}

// container creates an empty node that the server removes some time after its last child.
func (s *session) container(path string) error {
	_, err := s.conn.CreateContainer(path, nil, zk.FlagContainer, s.e.o.ACL)
	return err
}

// makeParents makes n's parent and what is missing above it, from below, since who may use a node need not be allowed to
// create it.
func (s *session) makeParents(n *node) error {
	missing := []string{n.parent}
	for len(missing) > 0 {
		last := len(missing) - 1
		err := s.container(missing[last])
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists):
			n.made = n.made || err == nil && last == 0
			missing = missing[:last]
		case errors.Is(err, zk.ErrNoNode) && len(missing) < maxDepth:
			missing = append(missing, path.Dir(missing[last]))
		default:
			return err
		}
	}
	return nil
}

const maxDepth = 64 // of a path

// adopt finds out what became of n when the answer to its creation was lost. Nil: it is there, and n's.
func (s *session) adopt(ctx context.Context, n *node) error {
	if _, err := s.await(ctx); err != nil {
		return err
	}
	p, err := s.find(n)
	if err != nil {
		return err
	}
	if p.name == "" {
		n.none = true
		return errNotCreated
	}
	n.name = p.name
	_, stat, err := s.conn.Get(n.path())
	if err != nil {
		return err
	}
	n.token = fencing.Token(stat.Czxid)
	return nil
}

var errNotCreated = errors.New("zklock: the node was not created")
