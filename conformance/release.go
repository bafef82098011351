package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleRelease = "Release ends the lease's context with ErrReleased before anything is sent; no renewal takes effect after it returned."
	ruleEnded   = "Release happens also when ctx has ended: then it returns ctx's error at once and goes on. A later Release says what the " +
		"first came to."
	ruleUnreachable = "when the backend cannot be reached Release is ErrUnavailable, and it goes on in the background."
)

var release = []check{
	{name: "Rule10/OnAnEndedContext", rule: ruleEnded, run: releaseEnded},
	{name: "Rule10/ContextEndsFirst", rule: ruleRelease, run: contextEndsFirst},
	{name: "Rule10/ContextEndsBeforeTheRequest", rule: ruleRelease, run: contextBeforeRequest},
	{name: "Rule10/ExtendInFlight", rule: ruleRelease, run: extendInFlight},
	{name: "Rule10/RenewalInFlight", rule: ruleRelease, run: renewalInFlight},
	{name: "Rule10/UnreachableByCut", rule: ruleUnreachable, run: unreachable(func(l *link) { l.cut() })},
	{name: "Rule10/UnreachableBySilence", rule: ruleUnreachable, run: unreachable(func(l *link) { l.silence() })},
	{name: "Rule10/ManyAtOnce", rule: ruleEnded, run: releasedAtOnce},
}

func releaseEnded(t *trial) {
	a, b := t.open(), t.open()
	for range 10 {
		lease := t.acquire(a, t.key(), forTTL(t.ttl(long)))
		ctx, cancel := context.WithCancelCause(t.ctx)
		cause := errors.New("the request is over")
		cancel(cause)
		begun := time.Now()
		t.ended(outcome{err: lease.Release(ctx)}, context.Canceled, cause)
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("Release on an ended context took %v", took)
		}
		t.is(lease.Err(), paddock.ErrReleased)
		t.free(b, lease.Key())
		t.release(lease)
	}
}

func contextEndsFirst(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	for range 20 {
		held := t.acquire(a, key, forTTL(t.ttl(long)))
		entered := make(chan error, 1)
		go func() {
			lease, err := b.Acquire(t.ctx, key, forTTL(t.ttl(long)))
			if err != nil {
				entered <- err
				return
			}
			if held.Context().Err() == nil {
				err = errors.New("the next holder entered before the lease's context had ended")
			}
			entered <- errors.Join(err, lease.Release(t.ctx))
		}()
		t.release(held)
		if err := await(t, entered, poll+soon, "a waiter"); err != nil {
			t.Fatal(err)
		}
	}
}

func contextBeforeRequest(t *trial) {
	l, link := t.spoilable()
	lease := t.acquire(l, t.key(), forTTL(t.ttl(long)))
	link.silence()
	released := make(chan error, 1)
	go func() { released <- lease.Release(t.ctx) }()
	select {
	case <-lease.Context().Done():
	case err := <-released:
		t.Fatalf("Release returned %v before the lease's context had ended", err)
	}
	t.is(context.Cause(lease.Context()), paddock.ErrReleased)
	link.pass()
	if err := await(t, released, soon, "Release on a link that was silent for a moment"); err != nil {
		t.is(err, paddock.ErrUnavailable)
	}
	t.free(t.open(), lease.Key())
}

// extendInFlight releases while Extends are under way. Whichever comes first, the key is free afterwards.
func extendInFlight(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	for range 50 {
		lease := t.acquire(a, key, forTTL(t.ttl(long)))
		var extends sync.WaitGroup
		for range 4 {
			extends.Go(func() {
				err := lease.Extend(t.ctx, t.ttl(2*long))
				if err != nil && !errors.Is(err, paddock.ErrReleased) {
					t.Errorf("Extend beside Release: %v", err)
				}
			})
		}
		t.release(lease)
		next := t.acquireSoon(b, key, forTTL(t.ttl(long)))
		extends.Wait()
		t.untouched(next, a)
		t.release(next)
	}
}

// renewalInFlight releases while renewals are on their way: they are sent about a third of the TTL after the grant.
func renewalInFlight(t *trial) {
	a, link := t.spoilable()
	b, c := t.open(), t.open()
	t.free(a, t.key()) // warm
	taken, free := t.acquire(a, t.key(), forTTL(t.lively())), t.acquire(a, t.key(), forTTL(t.lively()))
	ttl := taken.TTL()
	t.pass(ttl / 5)
	link.delayRequests(ttl / 2)
	t.pass(ttl / 3)
	link.delayRequests(0)
	for _, lease := range []*paddock.Lease{taken, free} {
		if err := lease.Release(t.ctx); err != nil && !errors.Is(err, paddock.ErrLost) { // lost by a slow machine
			t.is(err, paddock.ErrUnavailable) // behind the renewal, on the same connection
		}
	}
	next := t.acquireSoon(b, taken.Key(), forTTL(t.ttl(long)))
	t.free(b, free.Key())
	t.pass(ttl / 2) // until the renewals have come
	t.untouched(next, c)
	if lease, err := b.TryAcquire(t.ctx, free.Key(), forTTL(t.ttl(long))); err != nil {
		t.Errorf("TryAcquire of a key that was released, when a late renewal has come: %v", err)
	} else {
		t.release(lease)
	}
	t.release(next)
	t.free(a, taken.Key())
}

func unreachable(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		a, link := t.spoilable()
		b := t.open()
		lease := t.acquire(a, t.key(), forTTL(t.ttl(long)))
		spoil(link)
		released := make(chan error, 1)
		go func() { released <- lease.Release(t.ctx) }()
		t.is(await(t, released, soon, "Release on a link that is gone"), paddock.ErrUnavailable)
		t.is(lease.Err(), paddock.ErrReleased)
		ctx, cancel := context.WithTimeout(t.ctx, queued)
		defer cancel()
		t.is(lease.Release(ctx), context.DeadlineExceeded)
		link.pass()
		go func() { released <- lease.Release(t.ctx) }()
		if err := await(t, released, soon, "a later Release, when the link is back"); err != nil {
			t.Errorf("a later Release, when the link is back: %v", err)
		}
		t.free(b, lease.Key())
	}
}

func releasedAtOnce(t *trial) {
	a, b := t.open(), t.open()
	for range 20 {
		lease := t.acquire(a, t.key(), forTTL(t.ttl(long)))
		var releases sync.WaitGroup
		for range 8 {
			releases.Go(func() {
				if err := lease.Release(t.ctx); err != nil {
					t.Errorf("one of 8 Releases at once: %v", err)
				}
			})
		}
		releases.Wait()
		t.free(b, lease.Key())
	}
}
