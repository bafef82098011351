package rediswire

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	pingAfter      = 5 * time.Second // of silence, to tell a quiet connection from a dead one
	minResubscribe = 50 * time.Millisecond
	maxResubscribe = 5 * time.Second
	whenForbidden  = time.Minute // until a user without permission asks again
)

// Subscription listens on a channel, and subscribes again when that fails.
type Subscription struct {
	Client  redis.UniversalClient
	Channel string
	Message func(payload string)
	Live    func(bool) // whether messages arrive from now on; called at each change
}

// Run listens until ctx ends. Only then has it closed its connection.
func (s *Subscription) Run(ctx context.Context) {
	pause := minResubscribe
	for ctx.Err() == nil {
		heard, err := s.listen(ctx)
		if heard {
			pause = minResubscribe
		}
		wait := pause/2 + rand.N(pause)
		if redis.IsPermissionError(err) {
			wait = whenForbidden
		}
		pause = min(2*pause, maxResubscribe)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// listen subscribes once and passes on what it hears until something fails. It reports whether anything was heard.
func (s *Subscription) listen(ctx context.Context) (heard bool, err error) {
	pubsub := s.Client.Subscribe(ctx, s.Channel) // whose errors come from the first receive
	defer pubsub.Close()
	stop := context.AfterFunc(ctx, func() { _ = pubsub.Close() }) // which ends a receive
	defer stop()
	defer func() {
		if heard {
			s.Live(false)
		}
	}()
	for pinged := false; ; {
		message, err := pubsub.ReceiveTimeout(ctx, pingAfter)
		var timeout net.Error
		switch {
		case ctx.Err() != nil:
			return heard, ctx.Err()
		case err == nil:
			pinged = false
		case errors.As(err, &timeout) && timeout.Timeout() && !pinged && heard:
			pinged = true
			if err := pubsub.Ping(ctx); err != nil {
				return heard, err
			}
		default:
			return heard, err
		}
		switch m := message.(type) {
		case *redis.Subscription:
			heard = true
			s.Live(true)
		case *redis.Message:
			s.Message(m.Payload)
		}
	}
}
