package conformance_test

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
)

// Flaws of a Locker that wraps a healthy one.
const (
	triesPatiently   = "waits in TryAcquire"
	bareErrHeld      = "returns a bare ErrHeld"
	sleepsLong       = "sleeps through the release"
	pollsUnfairly    = "polls"
	holdEndsWithCtx  = "ends the hold with the acquiring ctx"
	deafToCtx        = "is deaf to ctx"
	heldForATimeout  = "says ErrHeld for every failure"
	losesTheCause    = "loses the cause of ctx"
	hidesTheDriver   = "hides the driver's error"
	ttlEndsTheWait   = "ends the wait with the TTL"
	losesValues      = "loses the values of ctx"
	goroutineEach    = "has a goroutine for each lease"
	reentrant        = "is re-entrant"
	blindToCase      = "is blind to case"
	cleansPaths      = "cleans paths"
	stopsAtNUL       = "stops at NUL"
	locksHashTags    = "locks hash tags"
	trimsSpace       = "trims space"
	repairsArguments = "repairs arguments"
	noMaxHold        = "ignores MaxHold"
	neverGivesUp     = "never gives up"
	givesUpAtOnce    = "gives up at once"
	closeReleases    = "releases everything in Close"
	closesNothing    = "closes nothing"
	leaksAGoroutine  = "leaks a goroutine"
	inspectsAnother  = "inspects another"
	asksTwice        = "asks twice"
)

// flawed is a Locker with a flaw over a healthy one.
type flawed struct {
	paddock.Locker
	flaw string

	mu     sync.Mutex
	leases map[string]*paddock.Lease
	closed chan struct{}
}

func brokenLocker(tb testing.TB, flaw string) conformance.Backend {
	b := brokenShelf(tb, "")
	open, faulty := b.Open, b.Faults.Open
	wrap := func(l paddock.Locker) paddock.Locker {
		f := &flawed{Locker: l, flaw: flaw, leases: map[string]*paddock.Lease{}, closed: make(chan struct{})}
		if flaw == leaksAGoroutine {
			go func() { select {} }()
		}
		return f
	}
	b.Open = func(tb testing.TB) paddock.Locker { return wrap(open(tb)) }
	b.Faults.Open = func(tb testing.TB) (paddock.Locker, conformance.Link) {
		l, k := faulty(tb)
		return wrap(l), k
	}
	return b
}

func (f *flawed) Guarantees() paddock.Guarantees {
	g := f.Locker.Guarantees()
	g.Fair = f.flaw == pollsUnfairly
	return g
}

// withoutValues is a context whose values are gone.
type withoutValues struct{ context.Context }

func (withoutValues) Value(any) any { return nil }

func (f *flawed) key(key string) string {
	switch f.flaw {
	case blindToCase:
		return strings.ToLower(key)
	case cleansPaths:
		return path.Clean(key)
	case stopsAtNUL:
		key, _, _ := strings.Cut(key, "\x00")
		return key
	case locksHashTags:
		if _, tag, ok := strings.Cut(key, "{"); ok {
			if tag, _, ok := strings.Cut(tag, "}"); ok && tag != "" {
				return tag
			}
		}
	case trimsSpace:
		return strings.TrimSpace(key)
	case repairsArguments:
		if key == "" {
			return "default"
		}
	}
	return key
}

func (f *flawed) Acquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	outer := ctx
	switch f.flaw {
	case deafToCtx:
		ctx = context.WithoutCancel(ctx)
	case losesValues:
		ctx = withoutValues{ctx}
	case ttlEndsTheWait:
		if opts != nil {
			c, cancel := context.WithTimeout(ctx, opts.TTL)
			defer cancel()
			ctx = c
		}
	case noMaxHold:
		o := *opts
		o.MaxHold = 0
		opts = &o
	case asksTwice:
		if first, err := f.TryAcquire(ctx, key+"/first", opts); err == nil {
			_ = first.Release(ctx)
		}
	}
	var lease *paddock.Lease
	var err error
	switch f.flaw {
	case sleepsLong:
		lease, err = f.poll(ctx, key, opts, long)
	case pollsUnfairly:
		lease, err = f.poll(ctx, key, opts, 20*time.Millisecond)
	case givesUpAtOnce:
		lease, err = f.Locker.TryAcquire(ctx, f.key(key), opts)
	default:
		lease, err = f.Locker.Acquire(ctx, f.key(key), opts)
	}
	for f.flaw == neverGivesUp && errors.Is(err, paddock.ErrUnavailable) {
		lease, err = f.Locker.Acquire(ctx, f.key(key), opts)
	}
	return f.granted(outer, key, lease, err)
}

const long = time.Minute

// poll is an Acquire of tries.
func (f *flawed) poll(ctx context.Context, key string, opts *paddock.Options, every time.Duration) (*paddock.Lease, error) {
	for {
		lease, err := f.Locker.TryAcquire(ctx, f.key(key), opts)
		if !errors.Is(err, paddock.ErrHeld) {
			return lease, err
		}
		select {
		case <-time.After(every):
		case <-f.closed:
			return nil, paddock.ErrClosed
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), context.Cause(ctx))
		}
	}
}

func (f *flawed) TryAcquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	outer := ctx
	switch f.flaw {
	case reentrant:
		f.mu.Lock()
		lease := f.leases[key]
		f.mu.Unlock()
		if lease != nil && lease.Err() == nil {
			return lease, nil
		}
	case triesPatiently:
		c, cancel := context.WithTimeout(ctx, 6*time.Second)
		defer cancel()
		if lease, err := f.Locker.Acquire(c, key, opts); err == nil {
			return lease, nil
		}
	case deafToCtx:
		ctx = context.WithoutCancel(ctx)
	}
	lease, err := f.Locker.TryAcquire(ctx, f.key(key), opts)
	if f.flaw == bareErrHeld && errors.Is(err, paddock.ErrHeld) {
		err = paddock.ErrHeld
	}
	return f.granted(outer, key, lease, err)
}

// granted breaks what an acquisition came to.
func (f *flawed) granted(ctx context.Context, key string, lease *paddock.Lease, err error) (*paddock.Lease, error) {
	switch {
	case err == nil:
	case f.flaw == heldForATimeout:
		return nil, &paddock.HeldError{Key: key}
	case f.flaw == hidesTheDriver:
		return nil, paddock.ErrUnavailable
	case f.flaw == losesTheCause && ctx.Err() != nil:
		return nil, ctx.Err()
	case f.flaw == repairsArguments && errors.Is(err, paddock.ErrInvalid):
		return f.Locker.Acquire(ctx, strings.ToValidUTF8(key[:min(len(key), 1024)], "?"), nil)
	}
	if err != nil {
		return nil, err
	}
	switch f.flaw {
	case holdEndsWithCtx:
		context.AfterFunc(ctx, func() { _ = lease.Release(context.WithoutCancel(ctx)) })
	case goroutineEach:
		go func() { <-lease.Context().Done() }()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leases[key] = lease
	return lease, nil
}

func (f *flawed) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	h, err := paddock.Inspect(ctx, f.Locker, key)
	if f.flaw == inspectsAnother {
		h.Owner = "another"
	}
	return h, err
}

func (f *flawed) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.closed:
	default:
		close(f.closed)
	}
	switch f.flaw {
	case closesNothing:
		return nil
	case closeReleases:
		for _, lease := range f.leases {
			_ = lease.Release(context.Background())
		}
	}
	return f.Locker.Close()
}
