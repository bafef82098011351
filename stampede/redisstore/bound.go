package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// By default go-redis pays no heed to the end of a context while it waits for a reply. A call can be abandoned on a goroutine
// of its own, but to pass it on and back takes longer than the call on a fast server. So calls are made on the caller's goroutine where
// something else ends them in time: the client, if it was told to (ContextTimeoutEnabled), or a clone of it, on the same
// connections, that waits for no reply longer than the context lasts.

// bound knows such clones.
type bound struct {
	client redis.UniversalClient
	heeds  bool   // client ends calls with their context
	clones []step // the longest wait first
}

type step struct {
	wait   time.Duration
	client redis.UniversalClient
}

var waits = []time.Duration{
	10 * time.Second, 3 * time.Second, time.Second, 300 * time.Millisecond, 100 * time.Millisecond, 30 * time.Millisecond,
}

func newBound(client redis.UniversalClient) bound {
	b := bound{client: client}
	switch c := client.(type) {
	case *redis.Client:
		if b.heeds = c.Options().ContextTimeoutEnabled; !b.heeds {
			for _, w := range waits {
				b.clones = append(b.clones, step{w, c.WithTimeout(w)})
			}
		}
	case *redis.ClusterClient:
		b.heeds = c.Options().ContextTimeoutEnabled
	}
	return b
}

// within returns a client whose calls end about when ctx does, or nil.
func (b *bound) within(ctx context.Context) redis.UniversalClient {
	if b.heeds {
		return b.client
	}
	left := waits[0]
	if end, ok := ctx.Deadline(); ok {
		left = time.Until(end)
	}
	for _, s := range b.clones {
		if s.wait <= left+left/8 {
			return s.client
		}
	}
	return nil
}

// call makes a call, and returns about when ctx ends at the latest.
func call[T any](ctx context.Context, b *bound, do func(redis.UniversalClient) (T, error)) (T, error) {
	if c := b.within(ctx); c != nil && ctx.Err() == nil {
		return do(c)
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := do(b.client)
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
