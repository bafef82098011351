package backend

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	maxCleaners  = 4
	minCleanWait = 20 * time.Millisecond
	maxCleanWait = time.Second
)

// chore is an abandoned attempt to be undone, or a lease to be released.
type chore struct {
	a      *Attempt
	lease  *held // nil: undo
	due    time.Time
	giveUp time.Time // the server must have dropped the key by itself; zero: it may never
	wait   time.Duration
	number int
}

// cleanup is the queue of chores, done by a few workers. The Keeper's mu guards it.
type cleanup struct {
	keeper  *Keeper
	chores  []*chore // a heap
	pending int      // in the heap, or being done
	workers int
	number  int // of the last chore
	dropped int // chores up to this number are not repeated
	timer   *time.Timer
}

func (q *cleanup) Len() int           { return len(q.chores) }
func (q *cleanup) Less(i, j int) bool { return q.chores[i].due.Before(q.chores[j].due) }
func (q *cleanup) Swap(i, j int)      { q.chores[i], q.chores[j] = q.chores[j], q.chores[i] }
func (q *cleanup) Push(x any)         { q.chores = append(q.chores, x.(*chore)) }
func (q *cleanup) Pop() any {
	last := len(q.chores) - 1
	c := q.chores[last]
	q.chores[last] = nil
	q.chores = q.chores[:last]
	return c
}

// callWait bounds one call of a clean-up or a release.
func (k *Keeper) callWait(ttl time.Duration) time.Duration {
	return max(500*time.Millisecond, min(ttl/3, 5*time.Second))
}

// undo takes an attempt of unknown outcome off the server.
func (q *cleanup) undo(a *Attempt) { q.add(&chore{a: a}, a.TTL) }

// release goes on releasing a lease.
func (q *cleanup) release(h *held) {
	h.mu.Lock()
	ttl := h.ttl
	h.mu.Unlock()
	q.add(&chore{a: h.a, lease: h}, max(ttl, h.a.TTL))
}

func (q *cleanup) add(c *chore, ttl time.Duration) {
	k := q.keeper
	c.due, c.wait = time.Now(), minCleanWait
	k.mu.Lock()
	if !k.shared || k.closed {
		// A request may be handled as late as its call may take; from then the TTL counts.
		c.giveUp = c.due.Add(tryWait(ttl) + ttl + k.g.TTLStep)
	}
	q.number++
	c.number = q.number
	q.pending++
	k.refs++
	heap.Push(q, c)
	pending := q.pending
	q.start()
	k.mu.Unlock()
	q.observe(pending)
}

func (q *cleanup) observe(pending int) {
	if obs := q.keeper.obs.CleanupPending; obs != nil {
		obs(pending)
	}
}

// start sees to it that the first chore is done when it is due.
func (q *cleanup) start() {
	if len(q.chores) == 0 || q.workers >= maxCleaners {
		return
	}
	d := time.Until(q.chores[0].due)
	if d <= 0 {
		q.workers++
		go q.work()
	} else if q.timer == nil {
		q.timer = time.AfterFunc(d, func() {
			q.keeper.mu.Lock()
			defer q.keeper.mu.Unlock()
			q.start()
		})
	} else {
		q.timer.Reset(d)
	}
}

func (q *cleanup) work() {
	k := q.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(q.chores) > 0 && !q.chores[0].due.After(time.Now()) {
		c := heap.Pop(q).(*chore)
		q.start() // another worker, if more is due
		k.mu.Unlock()
		err := q.do(c)
		k.mu.Lock()
		if err != nil && c.number > q.dropped && (c.giveUp.IsZero() || time.Now().Before(c.giveUp)) {
			c.due = time.Now().Add(c.wait/2 + rand.N(c.wait))
			c.wait = min(2*c.wait, maxCleanWait)
			heap.Push(q, c)
			continue
		}
		k.mu.Unlock()
		q.finish(c, err)
		k.mu.Lock()
	}
	q.workers--
	q.start()
}

// do makes one call. Nil: nothing is left to be done.
func (q *cleanup) do(c *chore) error {
	k := q.keeper
	ctx, cancel := context.WithTimeout(context.Background(), k.callWait(c.a.TTL))
	defer cancel()
	call := k.b.Undo
	if c.lease != nil {
		call = k.b.Release
	}
	answer := new(error) // not to be read once abandoned
	if !k.call(ctx, context.Background(), func() { *answer = call(ctx, c.a) }) {
		return errSilent
	}
	if errors.Is(*answer, paddock.ErrLost) { // gone, perhaps by an earlier call
		return nil
	}
	return *answer
}

// finish ends a chore that is done, or given up because of err.
func (q *cleanup) finish(c *chore, err error) {
	k := q.keeper
	if h := c.lease; h == nil {
		k.Wake(c.a.Key)
	} else {
		if err != nil {
			err = fmt.Errorf("%w: release %q: left to expire: %w", paddock.ErrUnavailable, c.a.Key, err)
		}
		h.mu.Lock()
		released := h.releasing != nil
		h.mu.Unlock()
		if released {
			h.settle(err)
		} else { // it was lost
			h.drop()
			k.Wake(c.a.Key)
		}
	}
	k.mu.Lock()
	q.pending--
	pending := q.pending
	k.settle()
	k.unref()
	k.mu.Unlock()
	q.observe(pending)
}

// drop gives up all chores, and returns how many keys may be left.
func (q *cleanup) drop() int {
	k := q.keeper
	k.mu.Lock()
	q.dropped = q.number
	n, chores := q.pending+len(k.acquiring), q.chores // an attempt whose call goes on may leave something too
	q.chores = nil
	k.mu.Unlock()
	for _, c := range chores {
		q.finish(c, errDropped)
	}
	return n
}

var errDropped = errors.New("its Locker was closed")
