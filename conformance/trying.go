package conformance

import (
	"errors"
	"time"

	"github.com/paddock-go/paddock"
)

const ruleTry = "TryAcquire makes one attempt; a key held by another is ErrHeld, as *HeldError, promptly."

var trying = []check{
	{name: "Rule02/HeldIsErrHeldAtOnce", rule: ruleTry, run: heldAtOnce},
	{name: "Rule02/RefusedTriesLeaveNothing", rule: ruleTry, run: refusedTries},
}

// onlyHeld reports an error that is not ErrHeld; for other goroutines than the case's own.
func (t *trial) onlyHeld(err error) {
	t.Helper()
	if !errors.Is(err, paddock.ErrHeld) {
		t.Errorf("the error is %q; want %q", err, paddock.ErrHeld)
	}
}

func heldAtOnce(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	held := t.acquire(a, key, forTTL(t.ttl(long)))
	for name, l := range map[string]paddock.Locker{"the holder's Locker": a, "another Locker": b} {
		begun := time.Now()
		lease, err := l.TryAcquire(t.ctx, key, nil)
		if took := time.Since(begun); took > soon/2 {
			t.Errorf("%s took %v to refuse", name, took)
		}
		if lease != nil {
			t.Errorf("%s returned a lease with the error %v", name, err)
		}
		t.is(err, paddock.ErrHeld)
		var h *paddock.HeldError
		if !errors.As(err, &h) {
			t.Fatalf("%s: the error is a %T; want a *HeldError in its chain", name, err)
		}
		if h.Key != key {
			t.Errorf("%s: HeldError.Key is %q; want %q", name, h.Key, key)
		}
		if h.RetryAfter < 0 || h.RetryAfter > held.TTL()+t.g.TTLStep {
			t.Errorf("%s: RetryAfter is %v of a TTL of %v", name, h.RetryAfter, held.TTL())
		}
	}
	t.release(held)
	for _, l := range []paddock.Locker{b, a} {
		lease, err := l.TryAcquire(t.ctx, key, forTTL(t.ttl(long)))
		if err != nil {
			t.Fatalf("TryAcquire of a key that was released: %v", err)
		}
		t.release(lease)
	}
}

func refusedTries(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	held := t.acquire(a, key, forTTL(t.ttl(long)))
	for range 50 {
		t.refused(b, key)
	}
	t.release(held)
	t.free(a, key)
	t.free(b, key)
}
