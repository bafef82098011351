package redlock

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// The tests in this file run attempts, with the vote of the real ones, on models of nodes, under schedules that are drawn at random:
// locks end at any time, requests and replies are lost, doubled and delayed, nodes go down and come back, with their memory or
// without, holders give up at any time. What they look for is a token that two leases share, or that is not above the token of
// a lease which was returned before the attempt began. Nothing else is asked of them; who holds the lock plays no part.

// rule is how tokens are drawn and written.
type rule struct {
	incr  bool // each node counts at its grant, and the highest count is the token: no second round
	write func(m *model, owner string, read, token fencing.Token) bool
}

var (
	theRule = rule{write: (*model).write}
	// Each of these looks right at first.
	writeBack = rule{write: func(m *model, owner string, _, token fencing.Token) bool {
		m.token, m.writer = max(m.token, token), owner
		return true
	}}
	incrAtGrant  = rule{incr: true}
	onlyWhereOur = rule{write: func(m *model, owner string, _, token fencing.Token) bool {
		if m.lock != owner {
			return false
		}
		m.token, m.writer = max(m.token, token), owner
		return true
	}}
)

// world is what a schedule may do.
type world struct {
	nodes, fences int
	wiped         int           // how many nodes may lose their memory
	clocks        bool          // they have clocks
	skew          fencing.Token // by which those may differ
	rule          rule
}

// attempt is one acquisition.
type attempt struct {
	owner         string
	vote          vote
	begun         int // steps of the schedule
	returned      int // with a lease; 0: not
	drawn, closed bool
	wrote         []bool // by node: it has answered to the token
}

// message is a request, or the reply to it.
type message struct {
	kind   int
	reply  bool
	a      *attempt
	node   int
	answer answer
	ok     bool
	read   fencing.Token // that the node had at the grant
	token  fencing.Token // to write
}

const (
	asking = iota
	fencingOff
	givingBack
	marking
	restoring
)

// schedule is one run.
type schedule struct {
	world
	*rand.Rand
	step      int
	hot       int // the node of the last request
	most      int // attempts
	ends      int // of a hundred steps: locks end
	copies    int // of a hundred messages: stay to be delivered again
	losses    int // of a hundred messages
	focus     int // how much the favourite is favoured
	favourite *attempt
	models    []model
	down      []bool
	wipeable  []int
	ahead     []fencing.Token // of clocks
	attempts  []*attempt
	messages  []message
}

var owners = func() (names []string) {
	for i := range 16 {
		names = append(names, "owner "+strconv.Itoa(i))
	}
	return names
}()

// run runs a schedule, and says what went wrong.
func (w world) run(r *rand.Rand) string {
	s := &schedule{
		world: w, Rand: r, most: 2 + r.IntN(5), ends: r.IntN(15), copies: r.IntN(75), losses: r.IntN(6), focus: r.IntN(8),
		models: make([]model, w.nodes), down: make([]bool, w.nodes), ahead: make([]fencing.Token, w.nodes),
	}
	for i := range s.ahead {
		if w.skew > 0 {
			s.ahead[i] = fencing.Token(r.Uint64N(uint64(w.skew)))
		}
	}
	s.wipeable = r.Perm(w.nodes)[:w.wiped]
	for s.step = 1; s.step < 200; s.step++ {
		s.next()
	}
	return s.violation()
}

func (s *schedule) violation() string {
	for i, a := range s.attempts {
		for _, b := range s.attempts[i+1:] {
			switch {
			case a.returned == 0 || b.returned == 0:
			case a.vote.token == b.vote.token:
				return fmt.Sprintf("two leases have the token %d", a.vote.token)
			case a.returned < b.begun && a.vote.token > b.vote.token:
				return fmt.Sprintf("token %d was followed by %d", a.vote.token, b.vote.token)
			}
		}
	}
	return ""
}

// next does one thing.
func (s *schedule) next() {
	n := s.IntN(100)
	if len(s.messages) == 0 {
		n = s.IntN(18)
	}
	switch {
	case n < 6:
		if len(s.attempts) < s.most {
			s.begin()
		}
	case n < 8:
		i := s.IntN(s.nodes)
		s.down[i] = !s.down[i] && s.IntN(2) == 0
	case n < 10:
		if s.wiped > 0 {
			s.models[s.wipeable[s.IntN(s.wiped)]] = model{}
		}
	case n < 13: // somebody releases, or gives up
		if len(s.attempts) > 0 {
			s.close(s.attempts[s.IntN(len(s.attempts))], s.IntN(2) == 0)
		}
	case n < 18: // or asks again those that refused, or restores what was lost
		if len(s.attempts) > 0 {
			s.again(s.attempts[s.IntN(len(s.attempts))])
		}
	case n < 18+s.ends: // a lock ends, early or not
		i := s.IntN(s.nodes)
		if s.IntN(3) > 0 {
			i = s.hot
		}
		s.models[i].lock = ""
	case len(s.messages) > 0:
		s.deliver()
	}
}

func (s *schedule) begin() {
	a := &attempt{owner: owners[len(s.attempts)], vote: newVote(s.nodes, s.fences), begun: s.step, wrote: make([]bool, s.nodes)}
	if s.rule.incr {
		a.vote.fences = 0
	}
	s.attempts = append(s.attempts, a)
	for i := range s.models {
		s.send(message{kind: asking, a: a, node: i})
	}
}

// deliver delivers a message, and perhaps keeps a copy, or loses it.
func (s *schedule) deliver() {
	i := s.IntN(len(s.messages))
	for range s.focus { // one attempt after the other gets on, for a while
		if s.messages[i].a == s.favourite {
			break
		}
		i = s.IntN(len(s.messages))
	}
	if s.IntN(12) == 0 {
		s.favourite = s.messages[i].a
	}
	m := s.messages[i]
	if m.reply || s.IntN(100) >= s.copies { // a client takes one reply
		s.messages[i] = s.messages[len(s.messages)-1]
		s.messages = s.messages[:len(s.messages)-1]
		if s.IntN(100) < s.losses {
			return
		}
	}
	if m.reply {
		s.replied(m)
	} else if !s.down[m.node] {
		s.requested(m)
	}
}

func (s *schedule) send(m message) { s.messages = append(s.messages, m) }

func (s *schedule) close(a *attempt, mark bool) {
	a.closed = true
	kind := givingBack
	if mark {
		kind = marking
	}
	for i := range s.models {
		s.send(message{kind: kind, a: a, node: i})
	}
}

func (s *schedule) again(a *attempt) {
	if a.closed {
		return
	}
	for i := range s.models {
		switch {
		case a.returned > 0:
			s.send(message{kind: restoring, a: a, node: i})
		case !a.drawn && a.vote.answers[i].ballot == refused:
			s.send(message{kind: asking, a: a, node: i})
		}
	}
}

func (s *schedule) requested(m message) {
	n, owner := &s.models[m.node], m.a.owner
	s.hot = m.node
	switch m.kind {
	case asking:
		clock := fencing.Token(0)
		if s.clocks {
			clock = fencing.Token(s.step)*1000 + s.ahead[m.node]
		}
		m.answer = n.grant(time.Time{}, clock, owner, time.Hour)
		if s.rule.incr && m.answer.ballot == granted {
			n.token++
			m.answer.read = n.token
		}
	case fencingOff:
		m.ok = s.rule.write(n, owner, m.read, m.token)
	case givingBack, marking:
		n.release(owner, m.kind == marking)
	case restoring:
		n.restore(time.Time{}, owner, time.Hour, 1, m.a.vote.token)
	}
	m.reply = true
	s.send(m)
}

// replied does what claim.step does.
func (s *schedule) replied(m message) {
	a := m.a
	if a.closed {
		return
	}
	switch m.kind {
	case asking:
		if a.vote.answers[m.node].ballot == granted {
			return // a copy
		}
		a.vote.answers[m.node] = m.answer
		if !a.drawn && a.vote.judge() == elected {
			if a.drawn = true; s.rule.incr {
				for _, answer := range a.vote.answers {
					a.vote.token = max(a.vote.token, answer.read)
				}
				a.returned = s.step
				return
			}
			a.vote.draw()
		}
		for i := range s.models {
			if a.drawn && !s.rule.incr && a.vote.mayWrite(i) {
				s.send(message{kind: fencingOff, a: a, node: i, read: a.vote.answers[i].read, token: a.vote.token})
			}
		}
	case fencingOff:
		if !a.wrote[m.node] {
			a.wrote[m.node] = true
			a.vote.wrote(m.ok)
		}
		if done, _ := a.vote.fenced(); done && a.returned == 0 {
			a.returned = s.step
		}
	}
}
