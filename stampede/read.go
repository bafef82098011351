package stampede

import (
	"context"
	"fmt"
	"time"
)

// A read of the store may serve every call that asked before it was sent. So that a crowd costs one or two reads, a key has at
// most one under way in a process: who comes meanwhile is in the next round, which is sent when the one before is back. Each
// read is made by one of those that it is for, on its own goroutine: passing it to another would take longer than the read.

// reading is the reads of a key.
type reading[V any] struct {
	busy bool      // a read is under way
	next *round[V] // of those who came since it was sent; nil: nobody
}

// round is one read.
type round[V any] struct {
	waiting int           // guarded by the cache's mu
	turn    chan struct{} // has something in it when the round is to be made by one of those who wait for it
	done    chan struct{}
	found   *found[V] // set before done is closed; nil: it was not made, and those who wait for it look elsewhere
}

// found is what the store knows of a key.
type found[V any] struct {
	Entry
	value V
	at    time.Time // when it was read
	err   error     // of the store
}

// read returns what the store had for key at some moment after the call, and whether the caller has to call next when it knows
// what follows from that: only then the next round is sent. When a flight turns up that can be joined instead, what is
// returned is nil. The error is ctx's. now is the time, or zero.
func (c *Cache[V]) read(ctx context.Context, key string, join bool, now time.Time) (f *found[V], lead bool, err error) {
	r, lead := c.round(key)
	returned := false
	defer func() {
		if lead && !returned { // the store panicked: that is not to be waited for
			if r != nil && !r.over() {
				close(r.done)
			}
			c.next(key)
		}
	}()
	if r == nil { // nobody else can have it
		f = c.fetch(ctx, key, now)
	} else {
		for !lead && !r.over() {
			select {
			case <-r.turn:
				lead = c.take(key, r)
			case <-r.done:
			case <-ctx.Done():
				c.quit(key, r)
				return nil, false, ended(ctx, key)
			}
		}
		if lead {
			if !join || !c.blocked(key) {
				f = c.fetch(ctx, key, time.Time{})
			}
			if f == nil || f.err == nil || ctx.Err() == nil { // else the others make it without me
				r.found = f
			}
			close(r.done)
		}
		f = r.found
	}
	returned = true
	if lead && ctx.Err() != nil && (f == nil || f.err != nil) {
		c.next(key)
		return nil, false, ended(ctx, key)
	}
	return f, lead, nil
}

func (r *round[V]) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// round returns the next read of key to be sent, and whether it is the caller's to make; nil when it is for the caller alone.
func (c *Cache[V]) round(key string) (r *round[V], lead bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.reads[key]
	if q == nil {
		if q, c.spare = c.spare, nil; q == nil {
			q = new(reading[V])
		}
		q.busy = true
		c.reads[key] = q
		return nil, true
	}
	if q.next == nil {
		q.next = newRound[V]()
	}
	r = q.next
	if !q.busy { // offered to those who wait for it, and not begun
		q.busy, q.next = true, nil
		return r, true
	}
	r.waiting++
	return r, false
}

func newRound[V any]() *round[V] {
	return &round[V]{turn: make(chan struct{}, 1), done: make(chan struct{})}
}

// take reports whether r is the caller's to make: another may have been faster.
func (c *Cache[V]) take(key string, r *round[V]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.reads[key]
	if q == nil || q.busy || q.next != r {
		return false
	}
	q.busy, q.next = true, nil
	return true
}

// next offers the next round, if there is one, to those who wait for it.
func (c *Cache[V]) next(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.reads[key]
	if q.busy = false; q.next == nil || q.next.waiting == 0 {
		delete(c.reads, key)
		q.next, c.spare = nil, q
		return
	}
	q.next.turn <- struct{}{}
}

// quit ends a caller's wait for r.
func (c *Cache[V]) quit(key string, r *round[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.waiting--
	if q := c.reads[key]; q != nil && !q.busy && q.next == r && r.waiting == 0 {
		delete(c.reads, key)
	}
}

// fetch reads key. now is the time, or zero.
func (c *Cache[V]) fetch(ctx context.Context, key string, now time.Time) *found[V] {
	if now.IsZero() {
		now = time.Now()
	}
	f := &found[V]{at: now}
	if f.err = c.silence.now(f.at); f.err != nil {
		return f
	}
	es, err := c.store.Get(c.limit.deadline(ctx, f.at), c.storeKey(key))
	if err != nil {
		f.err = fmt.Errorf("%w: %w", ErrStoreDown, err)
		if ctx.Err() == nil {
			c.silence.failed(f.at, c.o.StoreTimeout, f.err)
			c.storeDown(key, f.err)
		}
		return f
	}
	c.silence.broken(f.at)
	f.take(c, key, &es[0])
	return f
}

// take decodes e; what cannot be read is treated as absent.
func (f *found[V]) take(c *Cache[V], key string, e *Entry) {
	f.Entry = *e
	var err error
	if f.value, err = c.decode(&f.Entry); err != nil {
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
	return Result[V]{Value: f.value, Status: s, Age: f.Age(), Fence: f.Fence, writer: f.Writer}
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
