package stampede

import (
	"context"
	"fmt"
	"time"
)

// KeepOptions of Keep; nil is the zero KeepOptions.
type KeepOptions struct {
	// Ahead is how long before its TTL is over an entry is replaced. Defaults to a fifth of the policy's TTL.
	Ahead time.Duration
	// Idle is how long after its last read in this process a key is still replaced. From then on it is left alone until it is read
	// again. Defaults to ten times the policy's TTL; negative means for ever.
	Idle time.Duration
}

// kept is a key that is kept fresh. The cache's mu guards its fields.
type kept[V any] struct {
	c     *Cache[V]
	key   string
	p     *rule
	load  func(context.Context) (V, error)
	ahead time.Duration
	idle  time.Duration

	read    time.Time // last
	timer   *time.Timer
	queued  bool // waits for a worker, or has one
	dormant bool // until it is read
	stopped bool
	backoff time.Duration // after failures in a row; 0: the last time went well
}

// Keep has key replaced in the background before its TTL is over, by one process of all that keep it, for as long as it is read:
// a first time at once, if it is not there. The keys of a Cache share Options.Workers workers. A load that fails is tried again after a pause that doubles, up to TTL.
// stop ends it, without waiting for a load that is under way. A key can be kept once in a Cache.
func (c *Cache[V]) Keep(key string, load func(ctx context.Context) (V, error), opts *KeepOptions) (stop func(), err error) {
	p, err := c.check(context.Background(), key, false)
	if err != nil {
		return nil, err
	}
	k := &kept[V]{c: c, key: key, p: p, load: load, ahead: p.TTL / 5, idle: 10 * p.TTL, read: time.Now()}
	if opts != nil && opts.Ahead != 0 {
		k.ahead = opts.Ahead
	}
	if opts != nil && opts.Idle != 0 {
		k.idle = opts.Idle
	}
	if k.ahead < 0 || k.ahead >= p.TTL {
		return nil, fmt.Errorf("%w: keep %q: Ahead is %v; it must be less than the TTL of %v", ErrInvalid, key, k.ahead, p.TTL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("%w: %q", ErrClosed, key)
	}
	if c.kept[key] != nil {
		return nil, fmt.Errorf("%w: %q is kept already", ErrInvalid, key)
	}
	c.kept[key] = k
	k.timer = time.AfterFunc(0, k.due)
	return k.stop, nil
}

func (k *kept[V]) stop() {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
	if k.c.kept[k.key] == k {
		delete(k.c.kept, k.key)
	}
}

// noteRead wakes a kept key that was left alone. The caller holds mu.
func (c *Cache[V]) noteRead(key string) {
	if k := c.kept[key]; k != nil {
		k.read = time.Now()
		if k.dormant {
			k.dormant = false
			k.queue()
		}
	}
}

// due is called by the timer.
func (k *kept[V]) due() {
	k.c.mu.Lock()
	defer k.c.mu.Unlock()
	if k.stopped || k.queued {
		return
	}
	if k.idle >= 0 && time.Since(k.read) > k.idle {
		k.dormant = true
		return
	}
	k.queue()
}

// queue has a worker look after k, when one is free. The caller holds mu.
func (k *kept[V]) queue() {
	c := k.c
	if c.closed {
		return
	}
	k.queued = true
	c.due = append(c.due, k)
	if c.workers < c.o.Workers {
		c.workers++
		go c.work()
	}
}

// work looks after the kept keys that are due, until there are none.
func (c *Cache[V]) work() {
	for {
		c.mu.Lock()
		if len(c.due) == 0 || c.closed {
			c.workers--
			c.settle()
			c.mu.Unlock()
			return
		}
		k := c.due[0]
		c.due = c.due[1:]
		stopped := k.stopped
		c.mu.Unlock()
		if stopped {
			continue
		}
		next := k.tend()
		c.mu.Lock()
		if k.queued = false; !k.stopped && !c.closed {
			k.timer.Reset(next)
		}
		c.mu.Unlock()
	}
}

const minKeepPause = 10 * time.Millisecond

// tend replaces k's entry if that is due and nobody else has done it, and returns when to look again.
func (k *kept[V]) tend() time.Duration {
	c := k.c
	ctx := context.Background()
	got := c.fetch(ctx, k.key, time.Time{})
	if got.err != nil || got.Failure != "" {
		return k.failed()
	}
	if left := got.Left - k.ahead; got.Fresh() && left > 0 {
		k.backoff = 0
		return k.spread(left)
	}
	v := &visit[V]{c: c, ctx: ctx, key: k.key, p: k.p, load: k.load, anew: true, first: got.Writer, quits: true}
	m, err := c.join(v, nil)
	if err != nil {
		return k.failed()
	}
	o := outcome[V]{}
	select {
	case o = <-m.out:
	case <-c.closing:
		m.leave()
	}
	if o.verdict == contended { // another process does it
		return k.spread(max(minKeepPause, k.ahead/4))
	}
	if o.verdict == taken && o.err != nil {
		return k.failed()
	}
	if got = c.fetch(ctx, k.key, time.Time{}); got.err != nil || !got.Fresh() || got.Left <= k.ahead { // it was not stored
		return k.failed()
	}
	k.backoff = 0
	return k.spread(got.Left - k.ahead)
}

// failed is how long to wait after one more failure.
func (k *kept[V]) failed() time.Duration {
	k.backoff = min(max(2*k.backoff, k.p.ErrorTTL, minKeepPause), max(k.p.TTL, minKeepPause))
	return k.spread(k.backoff)
}

// spread takes up to a tenth off, so that the processes of a fleet do not all look at the same moment.
func (k *kept[V]) spread(d time.Duration) time.Duration {
	return max(minKeepPause, d-time.Duration(float64(d)*0.1*k.c.rand()))
}
