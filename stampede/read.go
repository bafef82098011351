package stampede

import (
	"context"
	"time"
)

// A read of the store may serve every call that asked before it was sent. So that a crowd costs one or two reads, a key has at
// most one under way in a process: who comes meanwhile is in the next round, which is sent when the one before is back.

// reading is the reads of a key.
type reading[V any] struct {
	next *round[V] // nil: nobody has come since the present round was sent
}

// round is one read. Its fields are set when done is closed.
type round[V any] struct {
	ctx  context.Context // of who came first, for its values
	done chan struct{}
	found[V]
}

// found is what the store knows of a key.
type found[V any] struct {
	Entry
	value V
	at    time.Time // when it was read
	err   error     // of the store
}

// read returns what the store had for key at some moment after the call. The error is ctx's.
func (c *Cache[V]) read(ctx context.Context, key string) (*found[V], error) {
	c.mu.Lock()
	var r *round[V]
	if q := c.reads[key]; q == nil {
		r = &round[V]{ctx: ctx, done: make(chan struct{})}
		q = &reading[V]{}
		c.reads[key] = q
		go c.rounds(key, q, r)
	} else {
		if q.next == nil {
			q.next = &round[V]{ctx: ctx, done: make(chan struct{})}
		}
		r = q.next
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return &r.found, nil
	case <-ctx.Done():
		return nil, ended(ctx, key)
	}
}

// rounds reads for as long as there is somebody to read for.
func (c *Cache[V]) rounds(key string, q *reading[V], r *round[V]) {
	for r != nil {
		r.found = c.fetch(context.WithoutCancel(r.ctx), key)
		close(r.done)
		c.mu.Lock()
		if r, q.next = q.next, nil; r == nil {
			delete(c.reads, key)
		}
		c.mu.Unlock()
	}
}

// fetch reads key.
func (c *Cache[V]) fetch(ctx context.Context, key string) (f found[V]) {
	var es []Entry
	f.at = time.Now()
	f.err = c.ask(ctx, func(ctx context.Context) (err error) {
		es, err = c.store.Get(ctx, c.storeKey(key))
		return err
	})
	if f.err != nil {
		c.storeDown(key, f.err)
		return f
	}
	f.take(c, key, es[0])
	return f
}

// take decodes e; what cannot be read is treated as absent.
func (f *found[V]) take(c *Cache[V], key string, e Entry) {
	f.Entry = e
	var err error
	if f.value, err = c.decode(e); err != nil {
		f.Kind = Absent
		c.undecodable(key, err)
	}
}

// usable reports whether f is still in its stale window.
func (f *found[V]) usable() bool {
	e := f.Entry
	e.Left -= time.Since(f.at)
	return e.Fresh() && e.Kind == Value || e.Stale()
}

func (f *found[V]) result(s Status) Result[V] {
	return Result[V]{Value: f.value, Status: s, Age: f.Age(), Fence: f.Fence}
}

func (c *Cache[V]) storeDown(key string, err error) {
	if c.obs.StoreDown != nil {
		c.obs.StoreDown(key, err)
	}
}

func (c *Cache[V]) undecodable(key string, err error) {
	if c.obs.Undecodable != nil {
		c.obs.Undecodable(key, err)
	}
}
