package stampede

import (
	"context"
	"sync"
	"time"
)

// limit gives contexts that end after a wait, or somewhat later. A timer for each call would be a good part of what a hit costs, and
// hardly one ever fires; so calls share them.
type limit struct {
	wait time.Duration

	mu     sync.Mutex
	shared context.Context // ends at end
	cancel func()          // of shared; never called, since calls that began before may still use it
	end    time.Time
}

// within returns a context with ctx's values that ends with it, and at least l.wait and at most a quarter more from now.
func (l *limit) within(ctx context.Context) (context.Context, context.CancelFunc) {
	short := l.deadline(ctx, time.Now())
	if short == ctx || ctx.Done() == nil {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end.Sub(now) < l.wait {
		l.end = now.Add(l.wait + l.wait/4)
		l.shared, l.cancel = context.WithDeadline(context.Background(), l.end)
	}
	if ok && end.Before(l.end) {
		return ctx
	}
	return limited{l.shared, ctx}
}

// limited is one context with the values of another.
type limited struct {
	context.Context
	values context.Context
}

func (l limited) Value(key any) any { return l.values.Value(key) }
