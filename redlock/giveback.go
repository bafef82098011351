package redlock

import (
	"errors"
	"fmt"

	"github.com/paddock-go/paddock"
)

// giveBack has the node give up what it has of a claim that is closed or lost. In the end of an undo, which is due when
// requests may be under way, the node refuses those too; otherwise who waits for an answer gives back when it comes. What the
// node could not be told it owes from then on.
func (s *seat) giveBack(undo bool) (had bool, err error) {
	c := s.claim
	c.mu.Lock()
	switch {
	case s.nothing():
		s.returned(false)
		had = s.had
		c.mu.Unlock()
		return had, nil
	case s.telling || s.owed:
		err = errOwed
	case s.asking && !undo:
		err = errUnderWay
	}
	if err != nil {
		c.mu.Unlock()
		return false, err
	}
	s.telling = true
	mark, ttl := s.asking || s.strays > 0, c.ttl
	c.mu.Unlock()

	had, maybe, err := s.node.release(c, mark)

	c.mu.Lock()
	defer c.mu.Unlock()
	s.telling = false
	if err != nil {
		s.untold(err, maybe)
		s.owed = s.node.owe(s, ttl)
		return false, err
	}
	s.returned(had)
	return s.had, nil
}

// returned takes in that the node has nothing of the claim any more, and whether it had the lock before. Called with mu held.
func (s *seat) returned(had bool) {
	s.had = s.had || had || s.doubtful
	s.given, s.owed, s.doubtful = true, false, false
	s.claim.tell()
}

// untold takes in that the node has not confirmed, because of err; maybe it was told, and has given back. Called with mu held.
func (s *seat) untold(err error, maybe bool) {
	silent := errors.Is(err, errSilent)
	s.doubtful = s.doubtful || silent || maybe
	s.refusing = !silent
	s.claim.tell()
}

// tell says that there is news.
func (c *claim) tell() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// nothing reports whether the node has nothing of the claim, and will not have. Called with mu held.
func (s *seat) nothing() bool {
	b := s.claim.vote.answers[s.i].ballot
	return s.given || !s.asking && s.strays == 0 && (b == refused || b == failed)
}

var (
	errUnderWay = errors.New("a request for the lock is under way")
	errOwed     = errors.New("the node is being told")
)

// busy reports whether the node is being told, and may well answer. Called with mu held.
func (s *seat) busy() bool { return (s.calls > 0 || s.telling) && !s.node.silent(silence) }

// undone is what an undo has come to: nil when a majority has confirmed it. What the others have is in the background's hands;
// wait says that it is not yet, of a node that may well answer.
func (c *claim) undone() (wait bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	given, busy := 0, 0
	for i := range c.seats {
		if s := &c.seats[i]; s.given {
			given++
		} else if s.busy() {
			busy++
		}
	}
	if given >= c.vote.majority {
		return false, nil
	}
	return busy > 0, fmt.Errorf("redlock: %d of %d nodes have undone the attempt", given, len(c.seats))
}

// outcome is what a release has come to, likewise. It is lost when a majority cannot have had the lock. A node that fell silent or hung
// up when it was told is taken to have had it.
func (c *claim) outcome(patient bool) (wait bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	given, had, busy, refusing := 0, 0, 0, 0
	for i := range c.seats {
		switch s := &c.seats[i]; {
		case s.given:
			given++
			if s.had {
				had++
			}
		case s.busy():
			busy++
		case s.refusing:
			refusing++
		}
	}
	n, majority := len(c.seats), c.vote.majority
	switch {
	case had >= majority:
		return false, nil
	case n-given+had < majority:
		return false, paddock.ErrLost
	case busy == 0 && given >= majority:
		return false, nil
	}
	return busy > 0 || patient && n-refusing >= majority, fmt.Errorf("redlock: %d of %d nodes have released the lock", given, n)
}
