package paddock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Do acquires key, runs fn, and releases.
//
// fn's context ends when ctx or the lease does, whichever is first; it carries the fence (fencing.FromContext), and an
// Acquire of the same key below it is refused instead of waiting for itself. Do returns fn's error, joined with ErrLost if
// the lease was lost before fn returned (ErrClosed if the Locker was closed), also when fn returned nil: the work may have
// run beside another holder's. A release that fails after fn returned is the Observer's to see, not Do's error, since
// callers would repeat work that is done; the backend goes on releasing, or the TTL does.
//
// The release happens also when fn panics or calls runtime.Goexit, and when ctx has ended: on a context of its own, for at
// most the TTL or 5 s.
func Do(ctx context.Context, l Locker, key string, opts *Options, fn func(ctx context.Context, lease *Lease) error) error {
	lease, err := l.Acquire(ctx, key, opts)
	if err != nil {
		return err
	}
	return run(ctx, lease, fn)
}

// TryDo is Do if nobody else does: it does not wait for another holder, whose key is ErrHeld.
func TryDo(ctx context.Context, l Locker, key string, opts *Options, fn func(ctx context.Context, lease *Lease) error) error {
	lease, err := l.TryAcquire(ctx, key, opts)
	if err != nil {
		return err
	}
	return run(ctx, lease, fn)
}

// Guarded returns an fn for Do and TryDo that shows the lease's fence for resource to guard, and then runs fn: once fn runs, a
// holder that was deposed without noticing is refused, before fn's first write.
//
//	err := paddock.Do(ctx, locker, "invoice/4711", nil, paddock.Guarded(guard, "invoice/4711", charge))
//
// If guard refuses the fence, fn does not run, the lease is released and Do returns the guard's error: fencing.ErrStale when a later
// holder was there before, fencing.ErrDomain when the mark is of another lock service. So it does if the guard cannot
// be reached. fn shows the fence again with each write, as guards do.
func Guarded(guard fencing.Guard, resource string, fn func(ctx context.Context, lease *Lease) error) func(ctx context.Context, lease *Lease) error {
	return func(ctx context.Context, lease *Lease) error {
		if err := guard.Advance(ctx, resource, lease.Fence()); err != nil {
			return fmt.Errorf("paddock: %q is guarded: %w", lease.Key(), err)
		}
		return fn(ctx, lease)
	}
}

const releaseWait = 5 * time.Second

func run(ctx context.Context, lease *Lease, fn func(context.Context, *Lease) error) error {
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(lease.TTL(), releaseWait))
		defer cancel()
		_ = lease.Release(rctx) // the Observer sees it
	}()
	fctx, cancel := context.WithCancelCause(lease.within(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(lease.Context(), func() { cancel(lease.Err()) })
	defer stop()

	err := fn(fctx, lease)
	if end := lease.Err(); end != nil && !errors.Is(end, ErrReleased) { // fn may release early
		return errors.Join(err, end)
	}
	return err
}
