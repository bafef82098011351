package conformance

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleExtend  = "Extend sets the TTL for this and all later renewals; Extends and renewals of one lease serialise."
	ruleMaxHold = "with MaxHold the lease ends, as ErrLost, at the latest that long after the grant; Extend does not pass it."
)

var extend = []check{
	{name: "Rule16/Longer", rule: ruleExtend, run: extendLonger},
	{name: "Rule16/LaterRenewals", rule: ruleExtend, run: extendRenewed},
	{name: "Rule16/Concurrent", rule: ruleExtend, run: extendConcurrently},
	{name: "Rule16/EndedLease", rule: ruleExtend, run: extendEnded},
	{name: "Rule16/MaxHold", rule: ruleMaxHold, run: maxHold},
}

// extended must succeed, if not at once: a call may take a sixth of the TTL, which a slow machine may need for itself.
func (t *trial) extended(lease *paddock.Lease, ttl time.Duration) {
	t.Helper()
	err := lease.Extend(t.ctx, ttl)
	for range 5 {
		if errors.Is(err, paddock.ErrUnavailable) {
			t.Logf("Extend, which will be repeated: %v", err)
			err = lease.Extend(t.ctx, ttl)
		}
	}
	if err != nil {
		t.Fatalf("Extend to %v: %v", ttl, err)
	}
	if d := time.Until(lease.Deadline()); d > lease.TTL() {
		t.Errorf("after Extend to %v Deadline is %v away; the TTL is %v", ttl, d, lease.TTL())
	}
}

// enters asks for the key of lease again and again, so as to have it at the first possible moment. Nil: not within d.
func (t *trial) enters(lease *paddock.Lease, l paddock.Locker, d time.Duration) *paddock.Lease {
	t.Helper()
	for until := time.Now().Add(d); time.Now().Before(until); t.pass(5 * time.Millisecond) {
		next, err := l.TryAcquire(t.ctx, lease.Key(), forTTL(t.ttl(long)))
		if at := time.Now(); err == nil {
			if early := lease.Deadline().Sub(at); early > 0 {
				t.Errorf("another holder entered %v before Deadline", early)
			}
			if lease.Err() == nil {
				t.Errorf("another holder entered, and Err of the old lease is nil")
			}
			return next
		}
		t.is(err, paddock.ErrHeld)
	}
	return nil
}

// entersAfter waits until another holder gets the key of lease, which must be after its window.
func (t *trial) entersAfter(lease *paddock.Lease, l paddock.Locker, within time.Duration) {
	t.Helper()
	next := t.enters(lease, l, within)
	if next == nil {
		t.Fatalf("nobody else got the key within %v", within)
	}
	t.is(lease.Err(), paddock.ErrLost)
	t.release(next)
}

func extendLonger(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.lively()))
	t.extended(lease, t.ttl(long))
	t.pass(t.lively() * 3 / 2)
	t.untouched(lease, b)
	t.release(lease)
	t.free(b, lease.Key())
}

func extendRenewed(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), forTTL(t.ttl(long)))
	t.extended(lease, t.lively())
	for until := time.Now().Add(2 * lease.TTL()); time.Now().Before(until); t.pass(10 * time.Millisecond) {
		if d := time.Until(lease.Deadline()); d > lease.TTL() || lease.TTL() > t.lively()+t.g.TTLStep+2*time.Second {
			t.Fatalf("after Extend to %v Deadline is %v away and the TTL %v", t.lively(), d, lease.TTL())
		}
	}
	t.untouched(lease, b)
	t.extended(lease, t.ttl(long))
	t.pass(t.lively())
	t.untouched(lease, b)
	t.release(lease)
	t.free(b, lease.Key())
}

func extendConcurrently(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.ttl(long)))
	var extends sync.WaitGroup
	for range 8 {
		extends.Go(func() {
			for range 10 {
				if err := lease.Extend(t.ctx, t.ttl(long/2)+rand.N(long)); err != nil {
					t.Errorf("Extend beside others: %v", err)
				}
			}
		})
	}
	extends.Wait()
	t.untouched(lease, b)
	t.extended(lease, t.brief())
	t.entersAfter(lease, b, lease.TTL()+t.g.TTLStep+soon)
}

func extendEnded(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), forTTL(t.ttl(long)))
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	deadline := lease.Deadline()
	t.is(lease.Extend(ctx, t.brief()), context.Canceled)
	if lease.Deadline().Before(deadline) {
		t.Error("an Extend that was never sent lowered Deadline")
	}
	t.untouched(lease, b)
	t.release(lease)
	t.is(lease.Extend(t.ctx, t.ttl(long)), paddock.ErrReleased)
	t.free(b, lease.Key())
}

func maxHold(t *trial) {
	a, b := t.open(), t.open()
	for _, renewed := range []bool{true, false} {
		opts := &paddock.Options{TTL: t.lively(), MaxHold: t.lively() * 3 / 2, NoRenew: !renewed}
		lease := t.acquire(a, t.key(), opts)
		last := time.Now().Add(opts.MaxHold) // it was granted before that
		t.extended(lease, t.ttl(long))
		if over := lease.Deadline().Sub(last); over > 0 {
			t.Errorf("Deadline is %v past MaxHold", over)
		}
		t.entersAfter(lease, b, opts.MaxHold+t.g.TTLStep+soon)
		if over := lease.Deadline().Sub(last); over > 0 {
			t.Errorf("Deadline is %v past MaxHold", over)
		}
		t.lost(lease)
	}
}
