package redislock

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/paddock-go/paddock/internal/rediswire"
)

const keepSubscribed = 30 * time.Second // when nobody waits any more

// subscription is to the channel where releases are told, for all who wait in this Locker. It is made when the first comes.
type subscription struct {
	server  *server
	wake    func(key string)
	wakeAll func()
	keep    time.Duration // when nobody waits any more

	mu      sync.Mutex
	waiting int                // keys with waiters
	cancel  context.CancelFunc // ends the subscription; nil: there is none
	idle    *time.Timer
	closed  bool
}

// watch is the Watch of backend.KeeperOptions.
func (s *subscription) watch(string) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	if s.cancel == nil && !s.closed {
		ctx, cancel := context.WithCancel(context.Background())
		s.cancel = cancel
		go (&rediswire.Subscription{Client: s.server.client, Channel: s.server.channel, Message: s.message, Live: s.live}).Run(ctx)
	}
	return s.unwatch
}

func (s *subscription) unwatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	switch {
	case s.waiting > 0 || s.closed:
	case s.idle == nil:
		s.idle = time.AfterFunc(s.keep, s.drop)
	default:
		s.idle.Reset(s.keep)
	}
}

// drop ends a subscription that nobody needs.
func (s *subscription) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == 0 && s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

func (s *subscription) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
	}
	if s.idle != nil {
		s.idle.Stop()
	}
}

// live is called when messages arrive from now on: some may have been missed.
func (s *subscription) live(on bool) {
	if on {
		s.wakeAll()
	}
}

// message is called for each release or undoing, of ours too, which we know of.
func (s *subscription) message(payload string) {
	if process, tag, _ := strings.Cut(payload, ":"); process != s.server.process {
		s.wake(rediswire.Untag(tag))
	}
}
