package redlock

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/paddock-go/paddock/internal/rediswire"
)

const (
	keepSubscribed = 30 * time.Second      // after the last waiter
	straggling     = 10 * time.Millisecond // after the first node has told of a release
)

// hints wakes waiters when other processes release. Each node tells by itself, and a lock is not free before a majority has
// told; when that does not come, the first one's word has to do.
type hints struct {
	quorum  *quorum
	wake    func(key string)
	wakeAll func()

	mu      sync.Mutex
	waiting map[string]int         // by key: calls of watch
	heard   map[release]*retelling // not complete yet
	live    []bool                 // by node: we would hear
	cancel  context.CancelFunc     // ends the subscriptions; nil: there are none
	idle    *time.Timer
	closed  bool
}

// release of a lock, as nodes tell of it.
type release struct{ owner, key string }

// retelling is who has told of a release.
type retelling struct {
	by    []bool
	timer *time.Timer
}

// message tells others of a release.
func (q *quorum) message(owner, key string) string { return q.process + ":" + owner + ":" + key }

// watch is the Watch of backend.KeeperOptions.
func (h *hints) watch(key string) (stop func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting[key]++
	if h.cancel == nil && !h.closed {
		ctx, cancel := context.WithCancel(context.Background())
		h.cancel, h.live = cancel, make([]bool, len(h.quorum.nodes))
		for i, n := range h.quorum.nodes {
			s := rediswire.Subscription{
				Client: n.client, Channel: h.quorum.channel,
				Message: func(payload string) { h.told(i, payload) },
				Live:    func(live bool) { h.listening(ctx, i, live) },
			}
			go s.Run(ctx)
		}
	}
	return func() { h.unwatch(key) }
}

func (h *hints) unwatch(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[key]--; h.waiting[key] == 0 {
		delete(h.waiting, key)
	}
	switch {
	case len(h.waiting) > 0 || h.closed:
	case h.idle == nil:
		h.idle = time.AfterFunc(keepSubscribed, h.drop)
	default:
		h.idle.Reset(keepSubscribed)
	}
}

// drop ends subscriptions that nobody needs.
func (h *hints) drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.waiting) == 0 && h.cancel != nil {
		h.cancel()
		h.cancel = nil
	}
}

func (h *hints) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.cancel != nil {
		h.cancel()
	}
	if h.idle != nil {
		h.idle.Stop()
	}
	for _, r := range h.heard {
		r.timer.Stop()
	}
}

// listening takes in whether we hear node i. Once we hear a majority, after a time in which we did not, everybody tries:
// something may have been missed.
func (h *hints) listening(ctx context.Context, i int, live bool) {
	h.mu.Lock()
	was := count(h.live)
	if ctx.Err() == nil {
		h.live[i] = live
	}
	again := was < h.quorum.majority && count(h.live) >= h.quorum.majority
	h.mu.Unlock()
	if again {
		h.wakeAll()
	}
}

func count(bs []bool) int {
	n := 0
	for _, b := range bs {
		if b {
			n++
		}
	}
	return n
}

// told takes in node i's word of a release.
func (h *hints) told(i int, payload string) {
	process, rest, _ := strings.Cut(payload, ":")
	owner, key, _ := strings.Cut(rest, ":")
	if process == h.quorum.process { // the Keeper knows of our own
		return
	}
	h.mu.Lock()
	if h.waiting[key] == 0 || h.closed {
		h.mu.Unlock()
		return
	}
	of := release{owner, key}
	r := h.heard[of]
	if r == nil {
		r = &retelling{by: make([]bool, len(h.quorum.nodes))}
		r.timer = time.AfterFunc(straggling, func() { h.complete(of) })
		h.heard[of] = r
	}
	r.by[i] = true
	all := count(r.by) == h.quorum.majority
	h.mu.Unlock()
	if all {
		h.wake(key)
	}
}

// complete forgets a release some time after the first word of it, and wakes the waiter if the majority has not told.
func (h *hints) complete(of release) {
	h.mu.Lock()
	r := h.heard[of]
	delete(h.heard, of)
	missed := count(r.by) < h.quorum.majority && !h.closed
	h.mu.Unlock()
	if missed {
		h.wake(of.key)
	}
}
