package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/internal/rediswire"
)

// renewing is a batch of renewals: one pipeline to each node, and a majority of its own for each lease. Nodes that have
// lost a lock which a majority has just confirmed get it back.
type renewing struct {
	base   context.Context
	end    time.Time // of the calls
	number int64     // higher than those of all renewals before
	leases []leaseRenewal
	judged chan struct{} // closed when the verdicts are in
}

// leaseRenewal is one lease's part of it.
type leaseRenewal struct {
	claim   *claim
	ttl     time.Duration
	shorten string // "1" or "0"

	ok, gone int // nodes
	errs     nodeErrors
	verdict  error // nil: a majority has confirmed
}

// said is what a node says about one lease.
type said struct {
	reply int64
	err   error
}

// The replies of renew.lua that are not errors.
const (
	replyRenewed = 1
	replyFree    = 0
	replyOthers  = -2
)

var errOvertaken = errors.New("a later renewal was there before")

// Renew is that of backend.Backend.
func (q *quorum) Renew(ctx context.Context, batch []backend.Renewal) {
	r := &renewing{
		base: context.WithoutCancel(ctx), end: time.Now().Add(maxPatience), number: q.renewals.Add(1),
		leases: make([]leaseRenewal, len(batch)), judged: make(chan struct{}),
	}
	if end, ok := ctx.Deadline(); ok {
		r.end = end
	}
	for i := range batch {
		c := batch[i].State.(*claim)
		c.mu.Lock()
		c.ttl = max(c.ttl, batch[i].TTL)
		c.mu.Unlock()
		r.leases[i] = leaseRenewal{claim: c, ttl: batch[i].TTL, shorten: "0"}
		if batch[i].Shorten {
			r.leases[i].shorten = "1"
		}
	}
	answers := make(chan []said, len(q.nodes))
	q.begin(len(q.nodes))
	for i, n := range q.nodes {
		go n.renew(r, i, answers)
	}
	r.collect(ctx, q, answers)
	for i := range batch {
		l := &r.leases[i]
		batch[i].Err, batch[i].Ordered = l.verdict, l.verdict == nil
		if errors.Is(l.verdict, paddock.ErrLost) { // nobody will release it
			l.claim.close()
			q.unlock(l.claim, toRelease)
		}
	}
	close(r.judged)
}

// collect takes answers in until every lease's verdict is certain, and gives it.
func (r *renewing) collect(ctx context.Context, q *quorum, answers <-chan []said) {
	open := len(r.leases)
	for waiting := len(q.nodes); waiting > 0 && open > 0; waiting-- {
		select {
		case node := <-answers:
			open = 0
			for i := range r.leases {
				if l := &r.leases[i]; !l.count(node[i], q) {
					open++
				}
			}
		case <-ctx.Done():
			waiting = 1
		}
	}
	for i := range r.leases {
		switch l := &r.leases[i]; {
		case l.ok >= q.majority:
		case l.gone > len(q.nodes)-q.majority:
			l.verdict = fmt.Errorf("%w: %d of %d nodes do not have it any more", paddock.ErrLost, l.gone, len(q.nodes))
		default:
			if missing := len(q.nodes) - l.ok - l.gone - len(l.errs); missing > 0 {
				l.errs = append(l.errs, fmt.Errorf("%d nodes: %w", missing, errSilent))
			}
			l.verdict = fmt.Errorf("redlock: %d of %d nodes renewed the lock, %d do not have it any more: %w",
				l.ok, len(q.nodes), l.gone, l.errs)
		}
	}
}

// count takes in what a node says, and reports whether the verdict is certain.
func (l *leaseRenewal) count(s said, q *quorum) bool {
	switch {
	case s.err != nil:
		l.errs = append(l.errs, s.err)
	case s.reply == replyRenewed:
		l.ok++
	case s.reply == replyFree, s.reply == replyOthers:
		l.gone++
	default:
		l.errs = append(l.errs, errOvertaken)
	}
	return l.ok >= q.majority || l.gone > len(q.nodes)-q.majority
}

// renew is node i's part.
func (n *node) renew(r *renewing, i int, answers chan<- []said) {
	defer n.end(1)
	answer := make([]said, len(r.leases))
	ctx, cancel := context.WithDeadline(r.base, r.end)
	defer cancel()
	calls := make([]*rediswire.Call, len(r.leases))
	for j := range r.leases {
		l := &r.leases[j]
		calls[j] = renewScript.Call(ctx, "1", l.claim.lock, l.claim.owner, l.ttl.Milliseconds(), l.shorten, r.number)
	}
	err := n.call(ctx, calls...)
	for j, c := range calls {
		if noResult(err) {
			answer[j].err = err
			continue
		}
		reply, err := c.Result()
		answer[j].reply, _ = reply.(int64)
		answer[j].err = n.explain(err)
	}
	answers <- answer

	<-r.judged
	n.repair(ctx, r, i, answer)
}

// repair gives the node back what it has lost of the leases that live.
func (n *node) repair(ctx context.Context, r *renewing, i int, answer []said) {
	var seats []*seat
	var owners []*rediswire.Counted
	var calls []*rediswire.Call
	for j := range r.leases {
		l := &r.leases[j]
		c, s := l.claim, &l.claim.seats[i]
		switch said := answer[j]; {
		case said.err != nil || l.verdict != nil:
		case said.reply == replyRenewed:
			s.has()
		case said.reply == replyFree && ctx.Err() == nil && s.restoring():
			owner := &rediswire.Counted{Arg: c.owner}
			seats, owners = append(seats, s), append(owners, owner)
			calls = append(calls, restoreScript.Call(ctx, "3", c.lock, c.fence, c.mark(c.owner), owner, l.ttl.Milliseconds(), c.note,
				n.keep().Milliseconds(), r.number, digits(c.vote.token)))
		}
	}
	if len(calls) == 0 {
		return
	}
	err := n.call(ctx, calls...)
	for k, s := range seats {
		var reply any
		err := err
		if !noResult(err) {
			reply, err = calls[k].Result()
		}
		stray := owners[k].Twice() || err != nil && mayArrive(owners[k], err)
		if s.restored(reply == any(int64(1)), stray) {
			_, _ = s.giveBack(false) // what fails goes on in the background
		}
	}
}

// has takes in that the node has the lock, whatever its vote was.
func (s *seat) has() {
	s.claim.mu.Lock()
	defer s.claim.mu.Unlock()
	s.claim.vote.answers[s.i].ballot = granted
}

// restoring reports whether the node may be given the lock back, and takes it that it is.
func (s *seat) restoring() bool {
	c := s.claim
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || s.asking {
		return false
	}
	s.asking = true
	return true
}

// restored takes in the answer, and reports whether it has come too late.
func (s *seat) restored(ok, stray bool) (withdrawn bool) {
	c := s.claim
	c.mu.Lock()
	defer c.mu.Unlock()
	s.asking = false
	if stray {
		s.strays++
	}
	if ok {
		c.vote.answers[s.i].ballot = granted
	}
	return c.closed
}
