package stampede

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

const batchSlots = 32 // so many of a batch's flights talk to locker or store at one time

// batch lets the flights of a call of GetMany share one load. Each takes its lock and its ticket by itself; the load begins when
// each has got that far or has found the key taken, and is over before any flight of the batch waits for another process.
type batch[V any] struct {
	ctx   context.Context // the caller's, for its values
	load  func(context.Context, []string) (map[string]V, error)
	slots chan struct{}

	mu      sync.Mutex
	pending int // flights that may still come
	sealed  bool
	begun   bool
	in      map[*flight[V]]bool // that have come, or will not
	arrived []arrival
	sharers map[*rule]int       // flights that share the right to load without the lock
	lines   map[*rule]*queue[V] // of those who wait for it

	done   chan struct{} // closed when values and err are set
	values map[string]V
	err    error
}

// arrival is a flight that has all it needs to load.
type arrival struct {
	key     string
	ctx     context.Context
	harmful bool
}

func newBatch[V any](ctx context.Context, load func(context.Context, []string) (map[string]V, error)) *batch[V] {
	return &batch[V]{
		ctx: ctx, load: load, slots: make(chan struct{}, batchSlots), in: map[*flight[V]]bool{},
		sharers: map[*rule]int{}, lines: map[*rule]*queue[V]{}, done: make(chan struct{}),
	}
}

// slot waits for one of the slots, and returns what gives it back. A nil batch has room for all.
func (b *batch[V]) slot() (back func()) {
	if b == nil {
		return func() {}
	}
	b.slots <- struct{}{}
	return func() { <-b.slots }
}

// expect counts a flight that begins.
func (b *batch[V]) expect() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending++
}

// without says that f does not come, if it has not come yet.
func (b *batch[V]) without(f *flight[V]) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.in[f] {
		b.in[f] = true
		b.pending--
		b.start()
	}
}

// seal says that no more flights begin.
func (b *batch[V]) seal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sealed = true
	b.start()
}

// start begins the load when all that may come have come. The caller holds mu.
func (b *batch[V]) start() {
	if !b.sealed || b.pending > 0 || b.begun {
		return
	}
	b.begun = true
	if len(b.arrived) > 0 {
		go b.run(b.arrived)
	}
}

// part is the load of one of the flights: its part of the batch's, or one of its own when it comes too late for that.
func part[V any](ctx context.Context, key string, p *rule) (value V, err error) {
	m, _ := ctx.Value(markKey{}).(*mark)
	f, _ := m.flight.(*flight[V])
	b := f.batch
	b.mu.Lock()
	late := b.in[f] || b.begun
	if !late {
		b.in[f] = true
		b.arrived = append(b.arrived, arrival{key, ctx, p.Cost == Harmful})
		b.pending--
		b.start()
	}
	b.mu.Unlock()
	if late {
		return b.alone(ctx, key)
	}
	end := ctx.Done()
	if p.Cost == Harmful { // its lock is held until the load has really ended
		end = nil
	}
	select {
	case <-b.done:
		return pick(b.values, b.err, key)
	case <-end:
		return value, context.Cause(ctx)
	}
}

// alone loads one key.
func (b *batch[V]) alone(ctx context.Context, key string) (V, error) {
	values, err := b.load(ctx, []string{key})
	return pick(values, err, key)
}

func pick[V any](values map[string]V, err error, key string) (value V, _ error) {
	if err != nil {
		return value, err
	}
	value, ok := values[key]
	if !ok {
		return value, fmt.Errorf("%w: %q", ErrNotFound, key)
	}
	return value, nil
}

// run loads. Its context ends when those of all flights have, or that of one whose key is harmful.
func (b *batch[V]) run(arrived []arrival) {
	fences := map[string]fencing.Fence{}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(b.ctx))
	defer cancel(nil)
	var mu sync.Mutex
	left := len(arrived)
	keys := make([]string, len(arrived))
	for i, a := range arrived {
		keys[i] = a.key
		if f, ok := fencing.FromContext(a.ctx); ok {
			fences[a.key] = f
		}
		m, _ := a.ctx.Value(markKey{}).(*mark)
		ctx = marked(ctx, m.cache, a.key, nil)
		defer context.AfterFunc(a.ctx, func() {
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 || a.harmful {
				cancel(context.Cause(a.ctx))
			}
		})()
	}
	ctx = context.WithValue(ctx, fencesKey{}, fences)
	b.err = errGoexit
	defer close(b.done)
	b.values, b.err = guard(ctx, func(ctx context.Context) (map[string]V, error) { return b.load(ctx, keys) })
}

type fencesKey struct{}

// FenceOf returns the fence under which key is being loaded, from the context of a load: that of GetMany has one for each key, any other
// only that of its own.
func FenceOf(ctx context.Context, key string) (fencing.Fence, bool) {
	if fences, ok := ctx.Value(fencesKey{}).(map[string]fencing.Fence); ok {
		f, ok := fences[key]
		return f, ok
	}
	if m, ok := ctx.Value(markKey{}).(*mark); !ok || m.key != key {
		return fencing.Fence{}, false
	}
	return fencing.FromContext(ctx)
}

// queue is where flights of a batch and of one policy wait for room for one load without the lock, in a batch of their own: nobody who has
// a lock waits with them.
type queue[V any] struct {
	batch *batch[V]
	ready chan struct{}      // closed when there is room
	leave context.CancelFunc // nobody waits any more
	// The mu of the batch that the flights come from guards these.
	users int
	room  bool
}

// right waits for the right to load without the lock: for one load of flights that share it. It returns what gives it back, or nil when
// there was no room.
func (f *flight[V]) right() (back func()) {
	b := f.batch
	if b == nil {
		if !f.room() {
			return nil
		}
		return func() { <-f.p.bypass }
	}
	if back := b.share(f); back != nil {
		return back
	}
	q, back := b.line(f.p)
	b.without(f)
	f.batch = q.batch
	t := time.NewTimer(f.p.MaxWait)
	defer t.Stop()
	select {
	case <-q.ready:
		return back
	case <-t.C:
	case <-f.ctx.Done():
	}
	f.batch.without(f)
	back()
	return nil
}

// share gives f the right that others of the batch and of its policy have, or else one that is there for the taking. It returns what
// gives it back, or nil: none is there, or f comes too late for the batch's load.
func (b *batch[V]) share(f *flight[V]) (back func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.in[f] {
		return nil
	}
	if b.sharers[f.p] == 0 {
		select {
		case f.p.bypass <- struct{}{}:
		default:
			return nil
		}
	}
	b.sharers[f.p]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.sharers[f.p]--; b.sharers[f.p] == 0 {
			<-f.p.bypass
		}
	}
}

// line goes to the queue for p, and starts one if there is none. It returns with it what leaves it and gives back what was had.
func (b *batch[V]) line(p *rule) (q *queue[V], back func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q = b.lines[p]; q == nil {
		ctx, leave := context.WithCancel(context.Background())
		q = &queue[V]{batch: newBatch(b.ctx, b.load), ready: make(chan struct{}), leave: leave}
		b.lines[p] = q
		go b.admit(ctx, p, q)
	}
	q.users++
	q.batch.expect()
	return q, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if q.users--; q.users > 0 {
			return
		}
		q.leave()
		if q.room {
			<-p.bypass
		} else {
			delete(b.lines, p)
		}
	}
}

// admit lets those in q load when there is room; who comes later goes to another queue.
func (b *batch[V]) admit(ctx context.Context, p *rule, q *queue[V]) {
	select {
	case p.bypass <- struct{}{}:
	case <-ctx.Done():
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if q.users == 0 { // they have left meanwhile
		<-p.bypass
		return
	}
	q.room = true
	delete(b.lines, p)
	close(q.ready)
	q.batch.seal()
}

// room waits for room for a load without the lock.
func (f *flight[V]) room() bool {
	t := time.NewTimer(f.p.MaxWait)
	defer t.Stop()
	select {
	case f.p.bypass <- struct{}{}:
		return true
	case <-t.C:
	case <-f.ctx.Done():
	}
	return false
}
