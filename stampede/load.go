package stampede

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const (
	// stopWait is how long a load that was told to end may take to do so, before it is left to itself.
	stopWait = 100 * time.Millisecond
	// releaseWait is how long the result is kept back for the release of the lock, which goes on in the background.
	releaseWait = 250 * time.Millisecond
	// ticketSlack is what a ticket is kept for beyond the time that its load may take.
	ticketSlack = 10 * time.Second
)

// lead loads, as the one who may: holding lease, or without a lock. d is what is bypassed, or nil.
func (f *flight[V]) lead(lease *paddock.Lease, d *detour) {
	free := f.releaser(lease)
	defer func() { free() }() // on every way out
	f.c.mu.Lock()
	f.loading = true
	f.c.mu.Unlock()

	before := f.advance()
	var t *Ticket
	if d == nil || !d.storeless {
		got, ticket, err := f.begin()
		switch {
		case err == nil:
			if f.known(&got, before) {
				return
			}
			t = &ticket
		case f.p.OnStoreDown == Fail:
			f.fail(err)
			return
		default:
			d = &detour{cause: err, storeless: true}
		}
	}
	if f.ctx.Err() != nil {
		f.fail(context.Cause(f.ctx))
		return
	}

	l := f.execute(lease)
	if l.hung != nil && f.p.Cost == Harmful { // it may be at its work still
		free = func() {}
		go func() { <-l.hung; f.releaser(lease)() }()
	}
	if lost := leaseLost(lease); lost != nil && f.p.Cost == Harmful && !isEnd(l.err) {
		l.err = fmt.Errorf("%w: %q: %w", ErrLeaseLost, f.key, errors.Join(lost, l.err))
		l.kind = Absent
	}
	e := f.entry(l)
	var fence fencing.Fence
	if lease != nil {
		fence = lease.Fence()
		e.Fence = fence
	}
	if e.Kind == Absent { // who waits is to find the lock free
		free()
	}
	f.c.mu.Lock()
	f.storing = true
	f.c.mu.Unlock()
	last := f.advance()
	if t != nil && f.store(*t, e) || l.err != nil && l.kind != NotFound {
		before = last
	}
	free()
	res := Result[V]{Value: l.value, Status: Loaded, Fence: fence, writer: e.Writer}
	if d != nil {
		res.Status, res.Cause = Bypassed, d.cause
	}
	f.publish(before, res, l.err)
}

// releaser returns a function that releases lease, the first time that it is called.
func (f *flight[V]) releaser(lease *paddock.Lease) func() {
	return func() {
		if lease == nil || errors.Is(lease.Err(), paddock.ErrReleased) {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), releaseWait)
		defer cancel()
		_ = lease.Release(ctx) // the Locker's observer sees it, and it goes on in the background
	}
}

func leaseLost(lease *paddock.Lease) error {
	if lease == nil {
		return nil
	}
	return lease.Err()
}

// begin gets the ticket, and what the store knows now.
func (f *flight[V]) begin() (got found[V], t Ticket, err error) {
	var e Entry
	keep := f.p.LoadTimeout + f.p.LockTTL + ticketSlack
	got.at = time.Now()
	defer f.batch.slot()()
	err = f.c.ask(context.WithoutCancel(f.ctx), f.key, func(ctx context.Context) (err error) {
		e, t, err = f.c.store.Begin(ctx, f.c.storeKey(f.key), uuid.NewString(), keep)
		return err
	})
	if err != nil {
		f.c.storeDown(f.key, err)
		return got, t, err
	}
	got.take(f.c, f.key, &e)
	return got, t, nil
}

// store offers e, and reports whether it was stored.
func (f *flight[V]) store(t Ticket, e Entry) bool {
	var o Outcome
	err := f.c.ask(context.WithoutCancel(f.ctx), f.key, func(ctx context.Context) (err error) {
		o, err = f.c.store.Put(ctx, f.c.storeKey(f.key), t, e)
		return err
	})
	if err != nil {
		o = 0
		f.c.storeDown(f.key, err)
	}
	if e.Kind != Absent && f.c.obs.Stored != nil {
		f.c.obs.Stored(f.key, o, err)
	}
	return o == Stored
}

// loaded is what came of a load.
type loaded[V any] struct {
	value V
	kind  Kind // Value, NotFound or Failed; Absent: not to be told to others
	err   error
	took  time.Duration
	hung  <-chan struct{} // closed when a load that did not end in time does; nil if it ended
}

// execute runs the load on a context of its own: it has the first caller's values and the fence, and ends when nobody waits any more, at
// LoadTimeout, and, if the key is harmful, with the lease.
func (f *flight[V]) execute(lease *paddock.Lease) loaded[V] {
	ctx := f.ctx
	if lease != nil {
		ctx = lease.Context()
		if f.p.Cost != Harmful { // what has been done would be lost, and nothing won
			ctx = context.WithoutCancel(ctx)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.ctx, func() { cancel(context.Cause(f.ctx)) })()
	timeout := fmt.Errorf("%w: %q: LoadTimeout is %v", ErrLoadTimeout, f.key, f.p.LoadTimeout)
	ctx, stop := context.WithTimeoutCause(ctx, f.p.LoadTimeout, timeout)
	defer stop()

	begun := time.Now()
	results, ended := make(chan loaded[V], 1), make(chan struct{})
	go func() {
		defer close(ended)
		l := loaded[V]{err: errGoexit}
		defer func() { results <- l }()
		l.value, l.err = guard(ctx, f.load)
	}()
	var l loaded[V]
	select {
	case l = <-results:
	case <-ctx.Done():
		t := time.NewTimer(stopWait)
		defer t.Stop()
		select {
		case l = <-results:
		case <-t.C:
			l = loaded[V]{err: context.Cause(ctx), hung: ended}
		}
	}
	l.took = time.Since(begun)
	f.judge(ctx, &l)
	if f.c.obs.Loaded != nil {
		f.c.obs.Loaded(f.key, l.took, l.err)
	}
	return l
}

// judge says what kind of result l is. A load that returned a value in spite of the end of its context has one.
func (f *flight[V]) judge(ctx context.Context, l *loaded[V]) {
	switch cause := context.Cause(ctx); {
	case l.err == nil:
		l.kind = Value
	case errors.Is(l.err, ErrNotFound):
		l.kind = NotFound
	case f.ctx.Err() != nil: // it did not fail, it was ended
		l.kind, l.err = Absent, context.Cause(f.ctx)
	case errors.Is(cause, ErrLoadTimeout) && !errors.Is(l.err, ErrLoadTimeout):
		l.kind, l.err = Failed, fmt.Errorf("%w: %w", cause, l.err)
	default:
		l.kind = Failed
	}
}

// guard makes an error of a panic.
func guard[V any](ctx context.Context, load func(context.Context) (V, error)) (value V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = newPanic(r)
		}
	}()
	return load(ctx)
}

// entry is what the store is to be told of l.
func (f *flight[V]) entry(l loaded[V]) Entry {
	e := Entry{Kind: l.kind, Writer: uuid.NewString(), LoadTime: loadTime(l.took)}
	switch l.kind {
	case Value:
		var err error
		if e.Value, err = f.c.encode(l.value); err != nil { // of use to its callers all the same
			f.c.undecodable(f.key, err)
			return Entry{Writer: e.Writer}
		}
		e.TTL, e.StaleFor = f.c.jittered(f.p, f.p.TTL), f.p.StaleFor
	case NotFound:
		e.TTL = f.p.NotFoundTTL
	case Failed:
		e.TTL, e.Failure = f.p.ErrorTTL, message(l.err)
	}
	if e.TTL <= 0 {
		return Entry{Writer: e.Writer}
	}
	return e
}

// mark says that a context is that of a load.
type mark struct {
	cache  any
	key    string
	flight any // nil: a part of a batch
	outer  *mark
}

type markKey struct{}

func marked(ctx context.Context, cache any, key string, flight any) context.Context {
	outer, _ := ctx.Value(markKey{}).(*mark)
	return context.WithValue(ctx, markKey{}, &mark{cache, key, flight, outer})
}

// loads reports whether ctx descends from cache's load of key.
func loads(ctx context.Context, cache any, key string) bool {
	m, _ := ctx.Value(markKey{}).(*mark)
	for ; m != nil; m = m.outer {
		if m.cache == cache && m.key == key {
			return true
		}
	}
	return false
}

// isEnd reports whether err says that a load was ended, by the last who waited for it or by Close, and not that it failed.
func isEnd(err error) bool { return errors.Is(err, errAbandoned) || errors.Is(err, ErrClosed) }
