package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// stage of an attempt.
type stage int

const (
	voting  stage = iota // for the lock
	writing              // the token, where there is a fence
	won
	lost
)

// claim is one acquisition: a vote, and what each node has of it until that is given back.
type claim struct {
	names
	key, owner, note string
	ctx              context.Context // the caller's values, not its end
	asked            time.Duration   // the TTL
	timeout          time.Duration   // of one call to a node
	seats            []seat

	leads   chan struct{} // closed when the attempt leads a split vote, and at the latest when over is
	over    chan struct{} // closed when voting is
	settled chan struct{} // closed when won or lost

	news chan struct{} // a node has given back, or could not be told; has room for one

	mu       sync.Mutex
	vote     vote
	stage    stage
	led      bool          // leads is closed
	closed   bool          // nothing more may be asked for; what is granted from now on is given back
	released bool          // somebody has waited for that
	ttl      time.Duration // the longest that a node may have been asked for
	cause    error         // of the loss, unless it is in the answers
}

// seat is one node's part of a claim. The claim's mu guards it.
type seat struct {
	claim *claim
	node  *node
	i     int

	asking bool // a request that may create the lock is under way
	strays int  // requests that had no answer, or were sent twice: they may arrive at any time

	// What is to be given back is told to the node once, and if that fails it is the node's debt (see debts.go).
	calls    int  // of giveBack, that a release or an undo waits for
	telling  bool // one call is at it
	owed     bool
	doubtful bool // the node was told, and did not answer: it may have done it
	refusing bool // the last that was heard of the node was an error, at once
	given    bool // the node has confirmed that it has nothing of the claim any more
	had      bool // and it had the lock, as far as is known
}

func (q *quorum) claim(ctx context.Context, a *backend.Attempt) *claim {
	c := &claim{
		names: q.names(a.Key), key: a.Key, owner: a.Owner, note: a.Note,
		ctx: context.WithoutCancel(ctx), asked: a.TTL, ttl: a.TTL, timeout: q.patience(a.TTL),
		seats: make([]seat, len(q.nodes)), vote: newVote(len(q.nodes), q.fences),
		leads: make(chan struct{}), over: make(chan struct{}), settled: make(chan struct{}), news: make(chan struct{}, 1),
	}
	for i := range c.seats {
		c.seats[i] = seat{claim: c, node: q.nodes[i], i: i, asking: true}
	}
	c.doubt()
	return c
}

// doubt goes on without the answers of nodes that are silent, as far as it can.
func (c *claim) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.seats {
		if a := &c.vote.answers[i]; a.ballot == pending && c.seats[i].node.silent(silence) {
			a.ballot = doubtful
		}
	}
	if !c.closed {
		c.step()
	}
}

// stand asks the node for the lock and, once enough nodes have granted it, for the token to be written. It reports whether
// the node is for the claim, when that has been decided.
func (s *seat) stand() (bool, error) {
	c := s.claim
	for begun, pause := time.Now(), time.Duration(0); ; {
		sent := time.Now()
		a := s.node.grant(c, s.unsent)
		took := time.Since(sent)
		if withdrawn := s.answered(a); withdrawn {
			_, _ = s.giveBack(false) // what fails goes on in the background
			return false, errWithdrawn
		}
		switch a.ballot {
		case failed:
			return false, a.err
		case granted:
			<-c.over
			return s.write(), nil
		}
		<-c.leads
		if pause = min(max(2*pause, took, minAskAgain), maxAskAgain); !s.askAgain(begun, pause) {
			return false, nil
		}
	}
}

const (
	minAskAgain = 100 * time.Microsecond
	maxAskAgain = 10 * time.Millisecond
)

var errWithdrawn = errors.New("the vote was over")

// answered takes in an answer, and reports whether it has come too late.
func (s *seat) answered(a answer) (withdrawn bool) {
	c := s.claim
	c.mu.Lock()
	defer c.mu.Unlock()
	s.asking = false
	if a.stray {
		s.strays++
	}
	c.vote.answers[s.i] = a
	if c.closed || c.stage == lost {
		return true
	}
	c.step()
	return false
}

// unsent takes in that a request of which the outcome was not known has never been sent.
func (s *seat) unsent() {
	s.claim.mu.Lock()
	defer s.claim.mu.Unlock()
	s.strays--
	s.claim.tell()
}

// settled reports whether there is nothing to be told to the node any more, by what was heard since.
func (s *seat) settled() bool {
	s.claim.mu.Lock()
	defer s.claim.mu.Unlock()
	if s.nothing() && !s.given {
		s.returned(false)
	}
	return s.given
}

// askAgain waits for a moment, and reports whether the node is to be asked again: others should give way soon.
func (s *seat) askAgain(begun time.Time, pause time.Duration) bool {
	c := s.claim
	t := time.NewTimer(pause/2 + rand.N(pause))
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.over:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stage == voting && time.Since(begun) > c.timeout {
		c.lose(nil)
	}
	s.asking = c.stage == voting && !c.closed
	return s.asking
}

// write has the token written, and reports whether the claim is won.
func (s *seat) write() bool {
	c := s.claim
	c.mu.Lock()
	due := !c.closed && c.stage != lost && c.vote.mayWrite(s.i)
	read, token := c.vote.answers[s.i].read, c.vote.token
	c.mu.Unlock()
	if due {
		ok := s.node.write(c, read, token)
		c.mu.Lock()
		c.vote.wrote(ok)
		c.step()
		c.mu.Unlock()
	}
	<-c.settled
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stage == won
}

// step goes on to the next stage if the answers allow it, or require it. Called with mu held.
func (c *claim) step() {
	if c.stage == voting {
		switch c.vote.judge() {
		case elected:
			c.elected()
		case leading:
			c.lead()
		case beaten, split, unanswered:
			c.lose(nil)
		}
	}
	if c.stage == writing {
		if done, possible := c.vote.fenced(); done {
			c.stage = won
			close(c.settled)
		} else if !possible {
			c.lose(errUnfenced)
		}
	}
}

var errUnfenced = errors.New("too few nodes have written the token: the others had lost the lock by then, or did not answer")

// elected ends the voting, and draws the token.
func (c *claim) elected() {
	next := won
	if c.vote.fences > 0 {
		if next = writing; !c.vote.draw().Valid() {
			c.lose(&finalError{fmt.Errorf("a fence record holds a token next to the largest, %d", fencing.MaxToken)})
			return
		}
	}
	c.stage = next
	c.lead()
	close(c.over)
	if next == won {
		close(c.settled)
	}
}

// lead has the nodes that refused asked again.
func (c *claim) lead() {
	if !c.led {
		c.led = true
		close(c.leads)
	}
}

// lose ends the attempt. What it holds is to be given back.
func (c *claim) lose(cause error) {
	if c.stage == voting {
		c.lead()
		close(c.over)
	}
	c.stage, c.cause = lost, cause
	close(c.settled)
}

// close says that nothing more may be asked for.
func (c *claim) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.stage != won && c.stage != lost {
		c.lose(errSilent)
	}
}
