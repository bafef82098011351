package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock"
)

// proof collects what is known of how long the ensemble will keep a session, on one connection.
//
// Only the leader ends sessions: at the earliest one timeout after it last heard that the session's client was heard. A
// server that follows answers reads by itself, for up to syncLimit ticks after it was cut off from the leader, by which time
// the session may have ended and others may have its locks: an answered read proves nothing. The server tells the leader
// whom it has heard when the leader pings it, which is every half tick. So a beat is counted on when two more requests
// have been answered on the same connection, both by way of the leader:
//
//   - one sent a tick after that beat was answered: its answer followed, from the leader to the server, a ping that came after
//     the beat, so the server has told the leader;
//   - one sent after the answer to that: it followed, from the server to the leader, what the server told, so the leader
//     knows. This one is a write, which only a leader that still has its majority answers. A leader that comes later
//     gives every session its whole timeout anew.
//
// The connect request itself is passed on to the leader, which counts from then.
type proof struct {
	asked   time.Time // when the connect request was sent
	timeout time.Duration
	between time.Duration // long enough for the leader to ping its followers
	beats   []heartbeat   // answered on this connection, in the order they were sent
}

// heartbeat is a request that the server has answered.
type heartbeat struct{ sent, heard time.Time }

// counted returns the latest time of which it is proven that the session will be kept for the timeout from then, given
// that a request sent at sent, by way of the leader, and a write after it were answered.
func (p *proof) counted(sent time.Time) time.Time {
	last := -1
	for i, b := range p.beats {
		if sent.Sub(b.heard) >= p.between {
			last = i
		}
	}
	if last < 0 {
		return p.asked
	}
	p.beats = p.beats[last:]
	return p.beats[0].sent
}

// beat is the session's heartbeat, as the Keeper calls it. It returns for how long from its call the session is kept.
func (s *session) beat(ctx context.Context) (time.Duration, error) {
	sent := time.Now()
	c, err := s.await(ctx)
	if err != nil {
		return 0, s.refused(err)
	}
	defer s.watchOver(ctx, c, sent)()

	s.mu.Lock()
	idle := s.busy == 0
	s.mu.Unlock()
	if _, err := s.conn.Sync(s.e.nothing); err != nil {
		return 0, s.refused(err)
	}
	heard := time.Now()
	if idle {
		// Nothing depends on the session now. Whoever comes next brings a write of its own, which was sent later than
		// the heartbeat that this one proves.
		_, err = s.conn.Sync(s.e.nothing)
	} else {
		err = s.write()
	}
	if err != nil {
		return 0, s.refused(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != c {
		return 0, errDisconnected
	}
	from := s.proof.counted(sent)
	s.proof.beats = append(s.proof.beats, heartbeat{sent, heard})
	left := from.Add(s.proof.timeout).Sub(sent)
	left -= sent.Sub(from) / 100 // clocks have run apart since then too; the Keeper's margin is of what is left
	if left <= 0 {
		return 0, errUnproven
	}
	return left, nil
}

var errUnproven = errors.New("zklock: the server's answer does not prove that the leader will keep the session")

// write has the ensemble agree on something that changes nothing: that nodes of holders are there. What is not there is
// lost: somebody has deleted it.
func (s *session) write() error {
	nodes := s.holders()
	if len(nodes) == 0 {
		_, err := s.conn.Set(s.e.nothing, nil, math.MaxInt32)
		if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("zklock: a node at %s, where nothing is to be, was written", s.e.nothing)
		}
		return err
	}
	checks := make([]any, len(nodes))
	for i, n := range nodes {
		checks[i] = &zk.CheckVersionRequest{Path: n.path(), Version: -1}
	}
	results, err := s.conn.Multi(checks...)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for i, r := range results {
		if errors.Is(r.Error, zk.ErrNoNode) && i < len(nodes) {
			s.e.mu.Lock()
			held := s.e.nodes[nodes[i].owner] == nodes[i] // and not being released
			s.e.mu.Unlock()
			if held {
				nodes[i].lost(fmt.Errorf("%w: node %s was deleted", paddock.ErrLost, nodes[i].name))
				s.e.forget(nodes[i]) // or its check would hide others' that come after it
			}
		}
	}
	return nil
}

// maxChecks is how many nodes one heartbeat looks after. What is logged for it should stay small.
const maxChecks = 32

// holders returns nodes of leases that hang on the session, others each time if there are many.
func (s *session) holders() []*node {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	var nodes []*node
	for _, n := range s.e.nodes { // begins anywhere
		if n.session == s && n.holder {
			if nodes = append(nodes, n); len(nodes) == maxChecks {
				break
			}
		}
	}
	return nodes
}

// watchOver breaks the link if a beat is not answered in time: at the end of ctx if nothing at all was heard since it was
// sent, and after a third of the timeout if only it was not answered. go-zookeeper waits for two thirds of the timeout,
// and only for anything to be heard, before it tries another server.
func (s *session) watchOver(ctx context.Context, c *link, sent time.Time) (stop func()) {
	silent := context.AfterFunc(ctx, func() {
		if time.Duration(c.heard.Load()) < sent.Sub(s.begun) {
			_ = c.Conn.Close() // which go-zookeeper sees
		}
	})
	stalled := time.AfterFunc(c.timeout/3, func() { _ = c.Conn.Close() })
	return func() {
		silent()
		stalled.Stop()
	}
}
