package redislock

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	keepSubscribed = 30 * time.Second // when nobody waits any more
	pingAfter      = 5 * time.Second  // of silence, to tell a quiet connection from a dead one
	minResubscribe = 50 * time.Millisecond
	maxResubscribe = 5 * time.Second
	whenForbidden  = time.Minute // until a user without permission asks again
)

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
		go s.run(ctx)
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

// run listens until ctx ends.
func (s *subscription) run(ctx context.Context) {
	pause := minResubscribe
	for {
		heard, err := s.listen(ctx)
		if heard {
			pause = minResubscribe
		}
		wait := pause/2 + rand.N(pause)
		if redis.IsPermissionError(err) {
			wait = whenForbidden
		}
		pause = min(2*pause, maxResubscribe)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// listen subscribes and passes messages on until something fails. It reports whether anything was heard.
func (s *subscription) listen(ctx context.Context) (heard bool, err error) {
	pubsub := s.server.client.Subscribe(ctx, s.server.channel) // whose errors come from the first receive
	defer pubsub.Close()
	stop := context.AfterFunc(ctx, func() { _ = pubsub.Close() }) // which ends a receive
	defer stop()
	for pinged := false; ; {
		message, err := pubsub.ReceiveTimeout(ctx, pingAfter)
		var timeout net.Error
		switch {
		case ctx.Err() != nil:
			return heard, ctx.Err()
		case err == nil:
			heard, pinged = true, false
		case errors.As(err, &timeout) && timeout.Timeout() && !pinged:
			pinged = true
			if err := pubsub.Ping(ctx); err != nil {
				return heard, err
			}
		default:
			return heard, err
		}
		switch m := message.(type) {
		case *redis.Subscription: // again after a failure: something may have been missed
			s.wakeAll()
		case *redis.Message:
			process, key, _ := strings.Cut(m.Payload, ":")
			if process != s.server.process { // we know of our own
				s.wake(unescapes.Replace(key))
			}
		}
	}
}
