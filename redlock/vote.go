package redlock

import (
	"slices"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// ballot is what a node has made of a request for the lock.
type ballot int

const (
	pending  ballot = iota // no answer yet
	doubtful               // and none is expected soon: the node has been silent for a while
	granted
	refused // held by another
	failed  // no answer, or one that is of no use
)

// answer is a node's to a request for the lock.
type answer struct {
	ballot
	read fencing.Token // granted: what the node's fence record holds; 0: there is none
	now  fencing.Token // granted: the node's clock in microseconds
	// refused:
	holder string
	left   time.Duration // until the holder's lock ends if it is not renewed
	err    error         // failed
	// stray says that a request may still arrive: it was sent twice, or had no answer.
	stray bool
}

// vote is one attempt, as the nodes' answers make it in whatever order they come. It sends nothing and knows no time, so that
// the tests run it on simulated nodes.
type vote struct {
	majority int
	fences   int      // how many nodes have to write the token; 0: no fence
	answers  []answer // by node

	token   fencing.Token // 0: not drawn
	writing []bool        // by node: was sent the token
	written int           // nodes that have written it
	missed  int           // nodes that were sent it and have not
}

func newVote(nodes, fences int) vote {
	return vote{
		majority: nodes/2 + 1, fences: fences,
		answers: make([]answer, nodes), writing: make([]bool, nodes),
	}
}

// need is how many grants make a lock.
func (v *vote) need() int { return max(v.majority, v.fences) }

func (v *vote) count(b ballot) int {
	n := 0
	for i := range v.answers {
		if v.answers[i].ballot == b {
			n++
		}
	}
	return n
}

// verdict is what the answers so far come to.
type verdict int

const (
	undecided  verdict = iota
	elected            // enough nodes have granted
	beaten             // another has the lock
	split              // nobody has, and the attempt should give way
	leading            // nobody has, and the others should give way
	unanswered         // too few nodes have an answer
)

// judge weighs the answers.
//
// Contenders that ask at the same time split the nodes among them, and nobody has a majority. If all gave up and came
// back they could go on like that. So one of them stays and asks again those who refused, while the others give way: the
// one that has the first of the nodes that answer.
func (v *vote) judge() verdict {
	grants, refusals, waits := v.count(granted), v.count(refused), v.count(pending)
	switch {
	case grants >= v.need():
		return elected
	case v.hold(v.rival()) >= v.majority:
		return beaten
	case len(v.answers)-v.count(failed) < v.need():
		return unanswered
	case grants+waits >= v.need(), grants+refusals < v.need():
		return undecided
	}
	for i := range v.answers {
		switch v.answers[i].ballot {
		case pending:
			return undecided
		case granted:
			return leading
		case refused:
			if grants >= v.majority {
				return leading // with a fence quorum above the majority
			}
			return split
		}
	}
	return undecided // not reached: somebody has answered
}

// rival is who holds most of the nodes that refused.
func (v *vote) rival() string {
	most := ""
	for i := range v.answers {
		if a := &v.answers[i]; a.ballot == refused && (most == "" || v.hold(a.holder) > v.hold(most)) {
			most = a.holder
		}
	}
	return most
}

// hold is how many nodes refused because of holder.
func (v *vote) hold(holder string) int {
	n := 0
	for i := range v.answers {
		if v.answers[i].ballot == refused && v.answers[i].holder == holder {
			n++
		}
	}
	return n
}

// retryAfter is when enough nodes will be free if no lock on them is renewed.
func (v *vote) retryAfter() time.Duration {
	var left []time.Duration
	for i := range v.answers {
		if v.answers[i].ballot == refused {
			left = append(left, v.answers[i].left)
		}
	}
	if len(left) == 0 {
		return 0
	}
	slices.Sort(left)
	lacks := max(1, v.need()-v.count(granted))
	return max(time.Millisecond, left[min(lacks, len(left))-1])
}

// draw draws the token: above all that the nodes which have granted had written by then, and not below their clocks.
func (v *vote) draw() fencing.Token {
	for i := range v.answers {
		if a := &v.answers[i]; a.ballot == granted {
			v.token = max(v.token, a.read+1, a.now)
		}
	}
	return v.token
}

// mayWrite reports whether node i is to be sent the token, and takes it that it is. A node that granted after the token
// was drawn is, unless what it had written is no less: a node's token must only rise.
func (v *vote) mayWrite(i int) bool {
	a := &v.answers[i]
	if v.token == 0 || v.writing[i] || a.ballot != granted || a.read >= v.token {
		return false
	}
	v.writing[i] = true
	return true
}

// wrote takes in whether a node that was sent the token has written it.
func (v *vote) wrote(ok bool) {
	if ok {
		v.written++
	} else {
		v.missed++
	}
}

// fenced reports whether enough nodes have written the token, and whether enough still can.
func (v *vote) fenced() (done, possible bool) {
	can := -v.missed
	for i := range v.answers {
		a := &v.answers[i]
		if a.ballot == pending || a.ballot == doubtful || a.ballot == granted && (v.writing[i] || a.read < v.token) {
			can++
		}
	}
	return v.written >= v.fences, can >= v.fences
}
