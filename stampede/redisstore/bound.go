package redisstore

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// By default go-redis pays no heed to the end of a context while it waits for a reply. A call is then made on a goroutine of its own,
// and left to itself when the context has ended. To pass it on and back takes longer than the call itself on a fast server, so with a
// client that was told to pay heed (ContextTimeoutEnabled) it is made on the caller's. (Clones of a client with other time
// limits, as WithTimeout makes them, would do as well, but have none of its hooks.)

// heeds reports whether client ends a call with its context.
func heeds(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	}
	return false
}

// call makes a call, and returns about when ctx ends at the latest.
func call[T any](ctx context.Context, s *Store, do func() (T, error)) (T, error) {
	if s.heeds && ctx.Err() == nil {
		return do()
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := do()
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		var zero T
		return zero, fmt.Errorf("no answer: %w", ctx.Err())
	}
}
