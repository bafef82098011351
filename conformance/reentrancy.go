package conformance

import (
	"context"

	"github.com/paddock-go/paddock"
)

const (
	ruleStranger = "the same process is a stranger to itself: TryAcquire answers ErrHeld, and a ctx that does not descend from the lease waits."
	ruleItself   = "an Acquire whose ctx descends from a live lease on that key of the same Locker answers ErrInvalid at once: it would wait for itself."
)

var reentrancy = []check{
	{name: "Rule13/StrangerToItself", rule: ruleStranger, run: strangerToItself},
	{name: "Rule13/WouldWaitForItself", rule: ruleItself, run: wouldWaitForItself},
}

func strangerToItself(t *trial) {
	l := t.open()
	lease := t.acquire(l, t.key(), forTTL(t.ttl(long)))
	t.refused(l, lease.Key())
	again, err := l.TryAcquire(lease.Context(), lease.Key(), nil)
	if again != nil {
		t.Fatal("TryAcquire was granted a key that its own process holds")
	}
	t.is(err, paddock.ErrHeld)
	waiter := acquiring(t.ctx, l, lease.Key(), forTTL(t.ttl(long)))
	t.pass(queued)
	select {
	case o := <-waiter:
		t.Fatalf("Acquire of a key that its own process holds: %v, %v", o.lease, o.err)
	default:
	}
	t.release(lease)
	next, _ := t.granted(waiter, soon, "a waiter of the same process")
	t.release(next)
}

func wouldWaitForItself(t *trial) {
	a, b := t.open(), t.open()
	key, other := t.key(), t.key()
	outer := t.acquire(a, key, forTTL(t.ttl(long)))
	inner, err := a.Acquire(outer.Context(), other, forTTL(t.ttl(long)))
	if err != nil {
		t.Fatalf("Acquire of another key below a lease: %v", err)
	}
	below, cancel := context.WithCancel(inner.Context())
	defer cancel()
	for _, ctx := range []context.Context{outer.Context(), inner.Context(), below, context.WithoutCancel(below)} {
		o := await(t, acquiring(ctx, a, key, nil), soon/2, "Acquire with a ctx that descends from a lease on the key")
		if o.lease != nil {
			t.Fatal("Acquire was granted a key that its own ctx descends from a lease on")
		}
		t.is(o.err, paddock.ErrInvalid)
	}
	// The Locker of another process, and what follows the lease, wait and get the key.
	waiter := acquiring(context.WithoutCancel(below), b, key, forTTL(t.ttl(long)))
	t.pass(queued)
	t.release(outer)
	next, _ := t.granted(waiter, soon, "another Locker's Acquire with that ctx")
	t.release(next)
	later, err := a.Acquire(context.WithoutCancel(below), key, nil)
	if err != nil {
		t.Fatalf("Acquire with a ctx that descends from a lease that was released: %v", err)
	}
	t.release(later)
	t.release(inner)
}
