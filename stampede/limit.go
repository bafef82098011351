package stampede

import (
	"context"
	"sync/atomic"
	"time"
)

// limit gives contexts that end after a wait, or somewhat later. A timer for each call would be a good part of what a hit costs, and
// hardly one ever fires; so calls share them.
type limit struct {
	wait   time.Duration
	shared atomic.Pointer[term]
}

// term is a context that ends at end.
type term struct {
	context.Context
	cancel context.CancelFunc // never called once it is shared, since calls that began before may still use it
	end    time.Time
}

// within returns a context with ctx's values that ends with it, and at least l.wait and at most a quarter more from now.
func (l *limit) within(ctx context.Context) (context.Context, context.CancelFunc) {
	short := l.deadline(ctx, time.Now())
	if _, shared := short.(limited); !shared || ctx.Done() == nil {
		return short, func() {}
	}
	both, cancel := context.WithCancelCause(short)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	return both, func() { stop(); cancel(nil) }
}

// deadline is within for what a caller does on its own goroutine: what is returned may end later than ctx if ctx is cancelled, but not
// if ctx has a deadline. To listen to both would cost more than all else that a hit costs.
func (l *limit) deadline(ctx context.Context, now time.Time) context.Context {
	end, ok := ctx.Deadline()
	if ok && end.Sub(now) <= l.wait {
		return ctx
	}
	shared := l.shared.Load()
	if shared == nil || shared.end.Sub(now) < l.wait {
		next := &term{end: now.Add(l.wait + l.wait/4)}
		next.Context, next.cancel = context.WithDeadline(context.Background(), next.end)
		if l.shared.CompareAndSwap(shared, next) {
			shared = next
		} else { // another call was faster
			next.cancel()
			shared = l.shared.Load()
		}
	}
	if ok && end.Before(shared.end) {
		return ctx
	}
	return limited{shared.Context, ctx}
}

// limited is one context with the values of another.
type limited struct {
	context.Context
	values context.Context
}

func (l limited) Value(key any) any { return l.values.Value(key) }
