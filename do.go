package paddock

import (
	"context"
	"errors"
	"time"
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
