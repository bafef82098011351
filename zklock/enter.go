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

// enter creates n, at the end of the queue for its key, and returns the children of its parent.
//
// It does so in one transaction, and asks for the children in the same breath. If the parent is there, the transaction
// touches it, since the answer then tells the transaction's id; if not, it makes the parent as well, whose own creation
// tells the id. So there is never a parent that was not used, which the server would keep for ever.
func (s *session) enter(ctx context.Context, n *node, note string) ([]string, error) {
	e := s.e
	create := &zk.CreateRequest{
		Path: n.parent + "/" + nodePrefix + n.owner + "-", Data: []byte(note), Acl: e.o.ACL, Flags: zk.FlagEphemeralSequential,
	}
	touch := &zk.SetDataRequest{Path: n.parent, Version: -1}
	parent := &zk.CreateRequest{Path: n.parent, Acl: e.o.ACL, Flags: zk.FlagContainer}
	there := e.seen(n.parent)
	for tries := 0; ; tries++ {
		var m *multi
		if there {
			m = s.launch(create.Path, false, create, touch)
		} else {
			m = s.launch(n.parent, true, parent, create)
		}
		children, stat, unlisted := s.list(n.parent, m)
		<-m.over
		err := m.err
		switch {
		case err == nil:
			e.see(n.parent)
			if there {
				n.name, n.token = path.Base(m.results[0].String), fencing.Token(m.results[1].Stat.Mzxid)
				return children, nil
			}
			p, ok := position(children, n.owner)
			if unlisted != nil || !ok {
				return nil, s.adopt(ctx, n)
			}
			n.name, n.token = p.name, fencing.Token(stat.Czxid)
			return children, nil
		case lost(err):
			if e := s.adopt(ctx, n); e != nil {
				return nil, fmt.Errorf("%w: %w", err, e)
			}
			return nil, nil
		case errors.Is(err, zk.ErrNodeExists) && !there && tries < maxEntries:
			there = true
			continue
		case errors.Is(err, zk.ErrNoNode) && tries < maxEntries:
			if there { // the server has removed it, since it was empty
				there = false
				continue
			}
			if err = s.makeContainers(path.Dir(n.parent)); err == nil {
				continue
			}
		}
		n.none = true
		return nil, err
	}
}

// list returns the children of parent, behind m. What has failed by now left nothing to be listed, and on a link that is cut the
// question would wait for the next.
func (s *session) list(parent string, m *multi) ([]string, *zk.Stat, error) {
	select {
	case <-m.over:
		if m.err != nil {
			return nil, nil, m.err
		}
	default:
	}
	return s.conn.Children(parent)
}

// maxEntries is how often others may make or remove the parent in front of one attempt.
const maxEntries = 10

// multi is a transaction on its way.
type multi struct {
	container bool          // its first operation creates one
	left      chan struct{} // closed when it was sent
	over      chan struct{} // closed when it was answered, or will not be
	results   []zk.MultiResponse
	err       error
}

// launch starts a transaction whose first operation names path, and returns when it was sent, or is over. container: that
// operation creates one, which go-zookeeper can neither say, so the link does, nor read the answer to: there are no
// results then.
func (s *session) launch(path string, container bool, ops ...any) *multi {
	m := &multi{container: container, left: make(chan struct{}), over: make(chan struct{})}
	s.mu.Lock()
	s.multis[path] = append(s.multis[path], m)
	s.mu.Unlock()
	go func() {
		m.results, m.err = s.conn.Multi(ops...)
		if container && errors.Is(m.err, zk.ErrAPIError) {
			m.err = nil
		}
		close(m.over)
	}()
	select {
	case <-m.left:
	case <-m.over:
		s.mu.Lock()
		s.dequeue(path, m)
		s.mu.Unlock()
	}
	return m
}

// leaving is called before a transaction is sent. Of several that name the same path first, which one it is makes no
// difference.
func (s *session) leaving(path []byte) *multi {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.multis[string(path)]
	if len(line) == 0 {
		return nil
	}
	s.dequeue(string(path), line[0])
	return line[0]
}

// dequeue takes m out of the line of those to be sent. The caller holds s.mu.
func (s *session) dequeue(path string, m *multi) {
	line := slices.DeleteFunc(slices.Clone(s.multis[path]), func(other *multi) bool { return other == m })
	if len(line) == 0 {
		delete(s.multis, path)
	} else {
		s.multis[path] = line
	}
}

// makeContainers makes the node at path and what is missing above it, from below, since who may use a node need not be allowed
// to create it. The servers remove each some time after its last child.
func (s *session) makeContainers(at string) error {
	missing := []string{at}
	for len(missing) > 0 {
		last := len(missing) - 1
		_, err := s.conn.CreateContainer(missing[last], nil, zk.FlagContainer, s.e.o.ACL)
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists):
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
	name, err := s.find(n)
	if err != nil {
		return err
	}
	if name == "" {
		n.none = true
		return errNotCreated
	}
	n.name = name
	_, stat, err := s.conn.Get(n.path())
	if err != nil {
		return err
	}
	n.token = fencing.Token(stat.Czxid)
	return nil
}

var errNotCreated = errors.New("zklock: the node was not created")

// find looks for a node after an answer was lost; the name is empty if there is none.
func (s *session) find(n *node) (name string, err error) {
	if _, err := s.conn.Sync(n.parent); err != nil { // or this server might not have heard of it yet
		return "", err
	}
	children, _, err := s.conn.Children(n.parent)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return "", err
	}
	p, _ := position(children, n.owner)
	return p.name, nil
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
