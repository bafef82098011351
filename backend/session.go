package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/bridge"
)

// Session is a life on the server that several leases share: an etcd lease, a ZooKeeper session. The Keeper keeps it alive
// and counts its trust window, which is that of its leases.
type Session struct {
	keeper *Keeper
	window *bridge.Window
	beat   func(context.Context) (time.Duration, error)
	task   task

	mu     sync.Mutex
	ttl    time.Duration
	leases map[*held]struct{}
	over   bool
}

// Session starts a life that the server granted for ttl in answer to a request sent at sent. The Keeper calls beat every
// third of the TTL; beat asks the server to count anew and returns the TTL that it granted, paddock.ErrLost when the life is over,
// or another error, after which it is soon called again.
func (k *Keeper) Session(sent time.Time, ttl time.Duration, beat func(context.Context) (time.Duration, error)) *Session {
	s := &Session{
		keeper: k, beat: beat, ttl: ttl, leases: map[*held]struct{}{},
		window: bridge.NewWindow(sent.Add(ttl - k.o.Margin(ttl))),
	}
	s.task.session = s
	k.mu.Lock()
	defer k.mu.Unlock()
	k.shared = true
	k.planRenewal(&s.task, sent, ttl)
	return s
}

// Deadline is the end of the session's trust window as known now.
func (s *Session) Deadline() time.Time { return s.window.End() }

// Lost tells the Keeper that the session is over on the server, and everything that hung on it gone.
func (s *Session) Lost(cause error) {
	for _, h := range s.end() {
		h.gone(cause)
	}
}

// End stops the beats. The backend ends the session on the server itself, when no lease hangs on it any more.
func (s *Session) End() { s.end() }

func (s *Session) end() []*held {
	s.keeper.mu.Lock()
	s.keeper.plan.remove(&s.task)
	s.keeper.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.list()
}

func (s *Session) list() []*held {
	leases := make([]*held, 0, len(s.leases))
	for h := range s.leases {
		leases = append(leases, h)
	}
	return leases
}

// add hangs a lease on the session, unless that is over.
func (s *Session) add(h *held) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.leases[h] = struct{}{}
	return true
}

func (s *Session) remove(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, h)
}

// renew makes one beat.
func (s *Session) renew() {
	k := s.keeper
	s.check()
	s.mu.Lock()
	ttl, over := s.ttl, s.over
	s.mu.Unlock()
	if over {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(ttl/6, minRenewWait))
	defer cancel()
	sent := time.Now()
	answer := &struct { // not to be read once abandoned
		ttl time.Duration
		err error
	}{}
	err := errSilent
	if k.call(ctx, context.Background(), func() { answer.ttl, answer.err = s.beat(ctx) }) {
		err = answer.err
	}
	if errors.Is(err, paddock.ErrLost) {
		s.Lost(fmt.Errorf("its session has ended: %w", err))
		return
	}
	s.check() // what was over before the answer stays over
	s.mu.Lock()
	if err == nil {
		ttl = answer.ttl
		s.ttl = ttl
		if end := sent.Add(ttl - k.o.Margin(ttl)); end.After(s.window.End()) {
			s.window.Set(end)
		}
	}
	leases, over := s.list(), s.over
	s.mu.Unlock()
	for _, h := range leases {
		if err != nil {
			h.late(err)
		} else if k.obs.Renewed != nil && h.lease.Err() == nil {
			k.obs.Renewed(h.public(), time.Since(sent))
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case over:
	case err == nil:
		k.planRenewal(&s.task, sent, ttl)
	default:
		k.planRetry(&s.task, ttl)
	}
}

// check ends the leases if the trust window has closed, on either clock.
func (s *Session) check() {
	if !bridge.Past(time.Now(), s.Deadline()) {
		return
	}
	s.mu.Lock()
	leases := s.list()
	s.mu.Unlock()
	for _, h := range leases {
		h.lease.Err()
	}
}
