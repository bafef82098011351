package conformance_test

import (
	"context"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/bridge"
)

// Flaws of a Locker whose leases are not those of a Keeper.
const (
	releasesLater    = "says released before it has"
	releasesTwice    = "releases again what is another's"
	sameOwner        = "uses one owner for all"
	neverEnds        = "does not notice the end of its window"
	waitsForNothing  = "says released without an answer"
	lowersAfterwards = "lowers Deadline after the answer"
)

// subletter is a Locker that passes on the leases of another with terms of its own.
type subletter struct {
	paddock.Locker
	flaw  string
	shelf *shelf
}

func brokenLease(tb testing.TB, flaw string) conformance.Backend {
	s := serve(tb, newShelf(""))
	b := s.backend()
	open, faulty := b.Open, b.Faults.Open
	b.Open = func(tb testing.TB) paddock.Locker { return subletter{open(tb), flaw, s.shelf} }
	b.Faults.Open = func(tb testing.TB) (paddock.Locker, conformance.Link) {
		l, k := faulty(tb)
		return subletter{l, flaw, s.shelf}, k
	}
	return b
}

func (s subletter) Acquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	lease, err := s.Locker.Acquire(ctx, key, opts)
	return s.sublet(ctx, lease, err)
}

func (s subletter) TryAcquire(ctx context.Context, key string, opts *paddock.Options) (*paddock.Lease, error) {
	lease, err := s.Locker.TryAcquire(ctx, key, opts)
	return s.sublet(ctx, lease, err)
}

func (s subletter) sublet(ctx context.Context, inner *paddock.Lease, err error) (*paddock.Lease, error) {
	if err != nil {
		return nil, err
	}
	t := &tenancy{subletter: s, inner: inner}
	spec := bridge.Spec{
		Locker: s.Locker, Key: inner.Key(), Fence: inner.Fence(), TTL: inner.TTL(), End: inner.Deadline(), Holder: t,
	}
	switch s.flaw {
	case sameOwner:
		spec.Fence.Owner = "00000000-0000-0000-0000-000000000000"
	case neverEnds:
		spec.End = time.Now().Add(time.Hour)
	}
	t.outer = bridge.NewLease(ctx, spec)
	return t.outer.Public().(*paddock.Lease), nil
}

// tenancy is what such a lease asks of the Locker.
type tenancy struct {
	subletter
	inner *paddock.Lease
	outer bridge.Lease
}

func (t *tenancy) Extend(ctx context.Context, ttl time.Duration) error {
	err := t.inner.Extend(ctx, ttl)
	if err == nil {
		t.outer.Move(nil, t.inner.TTL(), t.inner.Deadline())
	}
	return err
}

func (t *tenancy) Release(ctx context.Context) error {
	switch t.flaw {
	case releasesLater:
		time.AfterFunc(50*time.Millisecond, func() { _ = t.inner.Release(context.WithoutCancel(ctx)) })
		return nil
	case waitsForNothing:
		_ = t.inner.Release(ctx)
		return nil
	case releasesTwice:
		t.shelf.mu.Lock()
		defer t.shelf.mu.Unlock()
		t.shelf.remove(t.inner.Key(), "")
		return nil
	}
	return t.inner.Release(ctx)
}

func (t *tenancy) Lost(error) {
	if t.flaw == releasesTwice {
		time.AfterFunc(50*time.Millisecond, func() { _ = t.Release(context.Background()) })
	}
}
