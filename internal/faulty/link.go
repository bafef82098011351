// Package faulty puts a link that can be spoiled between a Keeper and a backend within the process, for tests: what was sent
// arrives even when its sender has given up, answers are lost or late, and nothing is told that was not asked.
package faulty

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock/backend"
)

// Link is a backend.Backend whose calls pass through to Server, whose own calls must not take long: those of Try with Waits
// excepted, which may queue. The server is given copies of the attempts, so that it cannot reach the Keeper through them.
type Link struct {
	Server backend.Backend
	Sent   *atomic.Int64 // how many calls were made

	mu       sync.Mutex
	changed  chan struct{} // closed when one of the following changes
	requests time.Duration
	replies  time.Duration
	lose     bool
	silent   bool
	broken   bool
	kept     []func() // requests sent into silence, by callers that have gone
}

// New returns a link to server that lets everything pass, and counts calls in sent.
func New(server backend.Backend, sent *atomic.Int64) *Link {
	return &Link{Server: server, Sent: sent, changed: make(chan struct{})}
}

// aliveWithin is the silence after which a client gives its connection up.
const aliveWithin = time.Second

var (
	errRefused = errors.New("connection refused")
	errReset   = errors.New("connection reset")
	errNoSound = errors.New("no sign of life on the connection")
)

func (l *Link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

// DelayRequests delivers what is sent from now on after d.
func (l *Link) DelayRequests(d time.Duration) { l.set(func() { l.requests = d }) }

// DelayReplies delivers what is answered from now on after d.
func (l *Link) DelayReplies(d time.Duration) { l.set(func() { l.replies = d }) }

// LoseReplies delivers requests and no answers.
func (l *Link) LoseReplies() { l.set(func() { l.lose = true }) }

// Silence delivers nothing.
func (l *Link) Silence() { l.set(func() { l.silent = true }) }

// Cut breaks off the calls under way and refuses new ones.
func (l *Link) Cut() { l.set(func() { l.broken = true }) }

// Pass lets everything pass again, and delivers what Silence has kept.
func (l *Link) Pass() {
	l.set(func() {
		l.requests, l.replies, l.lose, l.silent, l.broken = 0, 0, false, false, false
		for _, deliver := range l.kept {
			go deliver()
		}
		l.kept = nil
	})
}

// state is a moment of the link.
type state struct {
	requests, replies    time.Duration
	lose, silent, broken bool
	changed              <-chan struct{} // closed when it is over
}

func (l *Link) state() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	return state{l.requests, l.replies, l.lose, l.silent, l.broken, l.changed}
}

// request returns when a request has arrived. If its sender gives up before, it does deliver when it arrives.
func (l *Link) request(ctx context.Context, deliver func()) error {
	l.Sent.Add(1)
	now := l.state()
	if now.broken {
		return errRefused
	}
	if due := time.Now().Add(now.requests); !sleep(ctx, now.requests) {
		time.AfterFunc(time.Until(due), deliver)
		return ctx.Err()
	}
	for {
		switch now = l.state(); {
		case now.broken:
			return errReset
		case !now.silent:
			return nil
		}
		if err := now.over(ctx); err != nil {
			l.set(func() { l.kept = append(l.kept, deliver) })
			return err
		}
	}
}

// reply returns when the answer to a request has arrived.
func (l *Link) reply(ctx context.Context) error {
	if !sleep(ctx, l.state().replies) {
		return ctx.Err()
	}
	for lost := false; ; {
		now := l.state()
		lost = lost || now.lose
		switch {
		case now.broken, lost && !now.lose:
			return errReset
		case !lost && !now.silent:
			return nil
		}
		if err := now.over(ctx); err != nil {
			return err
		}
	}
}

// over returns nil when the link has changed, or the error of whoever waits on a silent one for too long.
func (s state) over(ctx context.Context) error {
	patience := time.NewTimer(aliveWithin)
	defer patience.Stop()
	select {
	case <-s.changed:
		return nil
	case <-patience.C:
		return errNoSound
	case <-ctx.Done():
		return ctx.Err()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
