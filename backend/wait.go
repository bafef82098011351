package backend

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/bridge"
)

const (
	maxPoll    = 5 * time.Second // a waiter asks at least this often: a notification is a hint
	minSilence = 5 * time.Second // the shortest silence of a backend that ends an Acquire
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// wait is one Acquire.
type wait struct {
	keeper *Keeper
	request
	outer     context.Context // the caller's
	begun     time.Time
	contended bool    // the key was seen held
	place     *waiter // in the line for the key; nil where the backend queues
}

// acquire tries until it has a lease. Where the backend does not queue, those of one process who want a key stand in a line of
// which only the head talks to the server.
func (w *wait) acquire(ctx context.Context) (bridge.Lease, error) {
	k := w.keeper
	answered, backoff := w.begun, minBackoff
	pause := time.Duration(0) // before the next try, once at the head of the line
	if !k.g.Fair {
		var head bool
		if w.place, head = k.join(w.key); !head {
			w.contend(0)
			pause = maxPoll
		}
	}
	// A head that leaves without the lock may have had a hint that its successor needs.
	hint, poll := true, time.Duration(0)
	defer func() { k.leave(w.place, hint, poll) }()
	for {
		if w.place != nil {
			if err := k.turn(ctx, w.place, pause); err != nil {
				return nil, k.stopped(ctx, w.outer, w.key, err)
			}
		}
		lease, a, err := k.try(ctx, w.outer, w.request, k.g.Fair)
		contended, last := a.standing()
		w.contended = w.contended || contended
		var held *paddock.HeldError
		switch {
		case err == nil:
			hint, poll = false, min(w.ttl, maxPoll)
			return lease, nil
		case ctx.Err() != nil:
			return nil, k.stopped(ctx, w.outer, w.key, err)
		case isPermanent(err):
			return nil, err
		case errors.As(err, &held):
			answered, backoff = time.Now(), minBackoff
			w.contend(held.RetryAfter)
			pause = nextTry(held.RetryAfter)
			if w.place == nil { // refused by a backend that queues
				if !sleep(ctx, pause) {
					return nil, k.stopped(ctx, w.outer, w.key, err)
				}
			} else if k.watch(w.key) {
				pause = 0 // once more, now that a hint would reach us
			}
		default:
			if last.After(answered) {
				answered = last
			}
			if silent := time.Since(answered); silent >= max(w.ttl, minSilence) {
				return nil, unavailable(w.key, silent, err)
			}
			if !sleep(ctx, backoff/2+rand.N(backoff/2)) {
				return nil, k.stopped(ctx, w.outer, w.key, err)
			}
			backoff = min(2*backoff, maxBackoff)
			pause = 0
		}
	}
}

// contend tells the observer, once, that the wait has begun.
func (w *wait) contend(retryAfter time.Duration) {
	if !w.contended && w.keeper.obs.Contended != nil {
		w.keeper.obs.Contended(w.key, retryAfter)
	}
	w.contended = true
}

// nextTry is when to ask again without a hint: just after the present lease ends if it is not renewed, spread out, since
// others wait too; and soon enough in any case.
func nextTry(retryAfter time.Duration) time.Duration {
	if retryAfter <= 0 || retryAfter > maxPoll {
		return maxPoll - rand.N(maxPoll/10)
	}
	return retryAfter + time.Millisecond + rand.N(min(retryAfter/20, 50*time.Millisecond)+1)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// line is those of this process who want one key, first come first. The Keeper's mu guards it.
type line struct {
	waiters []*waiter
	watched bool   // the key was seen held
	stop    func() // of Watch
}

// waiter is a place in a line.
type waiter struct {
	key  string
	hint chan struct{} // something below has changed; has room for one
	head bool
	now  bool          // a hint came that no try has followed yet
	poll time.Duration // on becoming the head: how long to wait for a hint; 0: as long as turn was told
}

func (w *waiter) wake() {
	select {
	case w.hint <- struct{}{}:
	default:
	}
}

// join goes to the end of the line for key, and starts one if there is none.
func (k *Keeper) join(key string) (w *waiter, head bool) {
	w = &waiter{key: key, hint: make(chan struct{}, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lines[key]
	if l == nil {
		l = &line{}
		k.lines[key] = l
		w.head = true
	}
	l.waiters = append(l.waiters, w)
	return w, w.head
}

// watch has hints for key reach its line, and reports whether it was the first to ask for them. The caller is at the line's head.
func (k *Keeper) watch(key string) bool {
	k.mu.Lock()
	l := k.lines[key]
	first := !l.watched
	l.watched = true
	k.mu.Unlock()
	if first && k.o.Watch != nil {
		stop := k.o.Watch(key)
		k.mu.Lock()
		l.stop = stop // the line lives: we stand in it
		k.mu.Unlock()
	}
	return first
}

// turn returns when w is at the head of its line and either a hint has come or pause is over.
func (k *Keeper) turn(ctx context.Context, w *waiter, pause time.Duration) error {
	var timer *time.Timer
	var over <-chan time.Time
	for {
		k.mu.Lock()
		head, now := w.head, w.now
		if head {
			w.now = false
		}
		if w.poll > 0 {
			pause, w.poll = w.poll, 0
		}
		k.mu.Unlock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if head && (now || pause <= 0) {
			return nil
		}
		if head && timer == nil {
			timer = time.NewTimer(pause)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-w.hint:
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// leave takes w out of its line. If it was the head its successor is told to try now if hint, else to wait poll for one.
func (k *Keeper) leave(w *waiter, hint bool, poll time.Duration) {
	if w == nil {
		return
	}
	k.mu.Lock()
	l := k.lines[w.key]
	i := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, i, i+1)
	stop := l.stop
	switch {
	case len(l.waiters) == 0:
		delete(k.lines, w.key)
	case i == 0:
		next := l.waiters[0]
		next.head, next.now, next.poll = true, hint || w.now, poll
		next.wake()
		stop = nil
	default:
		stop = nil
	}
	k.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// Wake tells a waiter for key that the key may be free. It is a hint: too many cost a try each, too few some time.
func (k *Keeper) Wake(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.lines[key]; l != nil {
		l.waiters[0].now = true
		l.waiters[0].wake()
	}
}

// WakeAll is Wake for every key: hints may have been missed.
func (k *Keeper) WakeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.lines {
		l.waiters[0].now = true
		l.waiters[0].wake()
	}
}
