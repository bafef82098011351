package stampede

import (
	"context"
	"fmt"
	"time"
)

// flight gets one key loaded, for all in this process who want it: by its own load if it wins the lock, else by waiting for
// whoever has it. At most one flight of a key can be joined at a time.
//
// Who may take its result is decided by when they joined. A step is counted before each request that a result rests on, and
// a member notes the step it joined at. Who joined before the load's Begin was sent can take any result, since all that the
// load reads is read after they asked. Who joined later, but before the Put was sent, can take it if Put said Stored: then
// nothing was invalidated between the two. All others go round again.
type flight[V any] struct {
	c      *Cache[V]
	key    string
	p      *rule
	load   func(context.Context) (V, error)
	batch  *batch[V]       // that it began as a part of, or nil
	ctx    context.Context // the first caller's values; ends when nobody waits any more
	cancel context.CancelCauseFunc
	// patience is what lock and other loads are waited for with: it ends with ctx, and when there is a detour to take.
	patience   context.Context
	noPatience context.CancelFunc
	seen       string // writer of the entry that is to be replaced although it is fresh
	insist     bool   // a failure that is remembered does not count

	// The cache's mu guards what follows.
	members    map[*member[V]]struct{}
	background bool // goes on without members
	blocking   bool // somebody had no other choice than to wait: who comes may join without a look at the store
	step       int
	loading    bool
	storing    bool // the Put was sent: joining is of no use any more
	over       bool // cannot be joined
	forced     *detour
}

// detour is a load without what is missing.
type detour struct {
	cause     error
	storeless bool
}

// member is a call that waits for a flight.
type member[V any] struct {
	f     *flight[V]
	at    int  // step at which it joined
	first bool // its load is the flight's
	quits bool // it does not wait for others' loads
	out   chan outcome[V]
}

type verdict int

const (
	taken      verdict = iota // the result is for this member
	roundAgain                // it is not
	contended                 // the key is being loaded elsewhere, and the policy says not to wait for that
)

type outcome[V any] struct {
	verdict verdict
	res     Result[V]
	err     error
}

// joinBlocking joins the flight for key if there is one that a look at the store would not spare the caller.
func (c *Cache[V]) joinBlocking(v *visit[V]) *member[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flights[v.key]
	if f == nil || !f.blocking || f.storing {
		return nil
	}
	return f.add(v, false)
}

// blocked reports whether there is a flight that joinBlocking would join.
func (c *Cache[V]) blocked(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.flights[key]
	return f != nil && f.blocking && !f.storing
}

// join joins the flight for v's key, and starts it if there is none. With a detour it is told to take that instead of waiting
// for others.
func (c *Cache[V]) join(v *visit[V], by *detour) (*member[V], error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, first := c.flights[v.key], false
	if f == nil {
		if c.closed {
			return nil, fmt.Errorf("%w: %q", ErrClosed, v.key)
		}
		f, first = c.start(v), true
	}
	f.blocking = f.blocking || !v.anew // who has something to serve need not wait for a refresh
	if by != nil {
		f.take(by)
	}
	return f.add(v, first), nil
}

// take sets the detour to take, unless there is one. The caller holds mu.
func (f *flight[V]) take(d *detour) {
	if f.forced == nil {
		f.forced = d
		f.noPatience()
	}
}

// lead starts a flight for v's key and joins it, unless the key is being loaded already.
func (c *Cache[V]) lead(v *visit[V]) *member[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idleKey(v.key) {
		return nil
	}
	return c.start(v).add(v, true)
}

// refresh starts a flight in the background for v's key, unless the key is being loaded already, and reports whether it did.
func (c *Cache[V]) refresh(v *visit[V], seen string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.idleKey(v.key) {
		return false
	}
	f := c.start(v)
	f.background, f.seen = true, seen
	return true
}

func (c *Cache[V]) idleKey(key string) bool {
	return !c.closed && c.flights[key] == nil && !time.Now().Before(c.held[key])
}

// start starts a flight. The caller holds mu.
func (c *Cache[V]) start(v *visit[V]) *flight[V] {
	f := &flight[V]{
		c: c, key: v.key, p: v.p, load: v.load, batch: v.batch, seen: v.first, insist: v.anew,
		members: map[*member[V]]struct{}{},
	}
	f.batch.expect()
	f.ctx, f.cancel = context.WithCancelCause(marked(context.WithoutCancel(v.ctx), c, v.key, f))
	f.patience, f.noPatience = context.WithCancel(f.ctx)
	c.flights[v.key] = f
	c.running[f] = struct{}{}
	go f.run()
	return f
}

// add adds a member. The caller holds mu.
func (f *flight[V]) add(v *visit[V], first bool) *member[V] {
	m := &member[V]{f: f, at: f.step, first: first, out: make(chan outcome[V], 1)}
	m.quits = v.quits || f.p.OnContention == Fail || f.p.OnContention == ServeStale && v.stale != nil
	f.members[m] = struct{}{}
	return m
}

// leave ends m's interest. The last one to leave ends the flight, in the same step in which nobody can join it any more.
func (m *member[V]) leave() {
	f := m.f
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	delete(f.members, m)
	if len(f.members) == 0 && !f.background && !f.over {
		f.close()
		f.cancel(errAbandoned)
	}
}

// own reports whether m waits for a load of this process, which it would only repeat.
func (m *member[V]) own() bool {
	m.f.c.mu.Lock()
	defer m.f.c.mu.Unlock()
	return m.f.loading && (m.first || m.f.p.AfterMaxWait == Load)
}

// close makes f one that cannot be joined. The caller holds mu.
func (f *flight[V]) close() {
	f.over = true
	if f.c.flights[f.key] == f {
		delete(f.c.flights, f.key)
	}
}

// advance counts a step, before a request is sent. Who joined before is below what it returns.
func (f *flight[V]) advance() int {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.step++
	return f.step
}

// publish gives the result to those who joined before the step, lets the others go round again, and frees the flight.
func (f *flight[V]) publish(before int, res Result[V], err error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	f.close()
	for m := range f.members {
		o := outcome[V]{verdict: roundAgain}
		if m.at < before {
			o = outcome[V]{verdict: taken, res: res, err: err}
			if !m.first && res.Status == Loaded {
				o.res.Status = Waited
			}
		}
		m.out <- o
	}
	clear(f.members)
}

// fail publishes err to all members.
func (f *flight[V]) fail(err error) { f.publish(f.advance(), Result[V]{}, err) }

// contend is called when the key is held elsewhere: members whose policy does not let them wait leave. It reports whether any stays;
// else the flight is over.
func (f *flight[V]) contend() (stay bool) {
	f.batch.without(f)
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	for m := range f.members {
		if m.quits {
			m.out <- outcome[V]{verdict: contended}
			delete(f.members, m)
		}
	}
	if len(f.members) == 0 {
		f.close()
		return false
	}
	return true
}

// end is the end of the flight's goroutine.
func (f *flight[V]) end() {
	f.batch.without(f)
	f.c.mu.Lock()
	over := f.over && len(f.members) == 0
	f.c.mu.Unlock()
	if !over {
		f.fail(errGoexit) // a Locker or Store called it
	}
	f.cancel(nil)
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	delete(f.c.running, f)
	f.c.settle()
}

// hold notes that the key is held elsewhere: no try for a while.
func (c *Cache[V]) hold(key string, retryAfter time.Duration) {
	if retryAfter <= 0 || retryAfter > maxHeld {
		retryAfter = maxHeld
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) >= heldSweep {
		for k, until := range c.held {
			if !now.Before(until) {
				delete(c.held, k)
			}
		}
	}
	c.held[key] = now.Add(retryAfter)
}

func (c *Cache[V]) unhold(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, key)
}

func (c *Cache[V]) heldFor(key string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Until(c.held[key])
}

const (
	maxHeld   = 100 * time.Millisecond
	heldSweep = 1024 // so many keys are remembered before those that are over are looked for
)
