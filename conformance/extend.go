package conformance

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleExtend  = "Extend sets the TTL for this and all later renewals; Extends and renewals of one lease serialise."
	ruleShorter = "if Extend may end the lease sooner, Deadline is lowered before it is sent; after one of unknown outcome every later " +
		"window is at most that TTL from its sending, until the server has proved the order."
	ruleRaise   = "only Extend may lower the server's TTL; renewals and repeated grants raise it."
	ruleMaxHold = "with MaxHold the lease ends, as ErrLost, at the latest that long after the grant; Extend does not pass it."
)

var extend = []check{
	{name: "Rule16/Longer", rule: ruleExtend, run: extendLonger},
	{name: "Rule16/Shorter", rule: ruleShorter, run: extendShorter},
	{name: "Rule16/LaterRenewals", rule: ruleExtend, run: extendRenewed},
	{name: "Rule16/Concurrent", rule: ruleExtend, run: extendConcurrently},
	{name: "Rule16/LowersDeadlineBeforeTheAnswer", rule: ruleShorter, run: lowersFirst},
	{name: "Rule16/ShorterReplyLost", rule: ruleShorter, run: shorterLost},
	{name: "Rule16/ShorterOvertaken", rule: ruleShorter, run: shorterOvertaken},
	{name: "Rule16/RenewalOvertaken", rule: ruleRaise, run: renewalOvertaken},
	{name: "Rule16/EndedLease", rule: ruleExtend, run: extendEnded},
	{name: "Rule16/MaxHold", rule: ruleMaxHold, run: maxHold},
}

// extended must succeed.
func (t *trial) extended(lease *paddock.Lease, ttl time.Duration) {
	t.Helper()
	if err := lease.Extend(t.ctx, ttl); err != nil {
		t.Fatalf("Extend to %v: %v", ttl, err)
	}
	if d := time.Until(lease.Deadline()); d > lease.TTL() {
		t.Errorf("after Extend to %v Deadline is %v away; the TTL is %v", ttl, d, lease.TTL())
	}
}

// entersAfter waits until another holder gets the key of lease, which must be after its window.
func (t *trial) entersAfter(lease *paddock.Lease, l paddock.Locker, within time.Duration) {
	t.Helper()
	next, at := t.granted(acquiring(t.ctx, l, lease.Key(), forTTL(t.ttl(long))), within, "another holder after the lease")
	if early := lease.Deadline().Sub(at); early > 0 {
		t.Errorf("another holder entered %v before Deadline", early)
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

func extendShorter(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.ttl(long)))
	t.extended(lease, t.brief())
	t.entersAfter(lease, b, lease.TTL()+t.g.TTLStep+soon)
	t.lost(lease)
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
				if err := lease.Extend(t.ctx, t.ttl(2*time.Second)+rand.N(long)); err != nil {
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

// lowersFirst extends on a link that answers nothing.
func lowersFirst(t *trial) {
	l, link := t.spoilable()
	lease := t.acquire(l, t.key(), forTTL(t.ttl(long)))
	link.silence()
	ctx, cancel := context.WithTimeout(t.ctx, soon)
	defer cancel()
	begun, done := time.Now(), make(chan error, 1)
	go func() { done <- lease.Extend(ctx, t.lively()) }()
	t.eventually(soon/2, "a lower Deadline, while Extend is under way", func() bool {
		return lease.Deadline().Before(begun.Add(t.lively() + soon/2))
	})
	select {
	case err := <-done:
		t.Errorf("Extend on a silent link returned %v before Deadline was seen to be lower", err)
	default:
	}
	cancel()
	if err := await(t, done, soon, "Extend after its context has ended"); err == nil {
		t.Error("Extend on a silent link succeeded")
	}
	link.pass()
	_ = lease.Release(t.ctx) // lost or not: it is told late, and both are right
	t.free(t.open(), lease.Key())
}

// trusted waits until either another holder enters, which must be after the window of lease, or time is up.
func (t *trial) trusted(lease *paddock.Lease, l paddock.Locker, d time.Duration) {
	t.Helper()
	waiter := acquiring(t.ctx, l, lease.Key(), forTTL(t.ttl(long)))
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case o := <-waiter:
		if o.err != nil {
			t.Fatal(o.err)
		}
		if early := lease.Deadline().Sub(o.at); early > 0 || lease.Err() == nil {
			t.Errorf("another holder entered %v before Deadline; Err: %v", early, lease.Err())
		}
		t.lost(lease)
		t.release(o.lease)
	case <-timer.C:
		_ = lease.Release(t.ctx) // held to the end, or lost just now
		next, _ := t.granted(waiter, soon, "a waiter after the release")
		t.release(next)
	}
}

func shorterLost(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.ttl(long)))
	link.loseReplies()
	ctx, cancel := context.WithTimeout(t.ctx, t.brief()/2)
	defer cancel()
	if err := lease.Extend(ctx, t.brief()); err == nil {
		t.Error("Extend succeeded though its reply was lost")
	}
	link.pass()
	t.trusted(lease, b, 3*t.brief())
}

// shorterOvertaken sends a shorter Extend that comes late, and a longer one that is answered before it comes.
func shorterOvertaken(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.ttl(long)))
	shorter, delay := t.brief(), t.brief()*3/4
	link.delayRequests(delay)
	ctx, cancel := context.WithTimeout(t.ctx, delay/4)
	defer cancel()
	if err := lease.Extend(ctx, shorter); err == nil {
		t.Error("Extend succeeded before its request came")
	}
	link.delayRequests(0)
	_ = lease.Extend(t.ctx, t.ttl(long)) // answered, or lost just now
	t.trusted(lease, b, delay+3*shorter)
}

// renewalOvertaken lets a longer Extend be answered before renewals that were sent earlier come.
func renewalOvertaken(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	t.free(a, t.key()) // warm
	lease := t.acquire(a, t.key(), forTTL(t.lively()))
	ttl := lease.TTL()
	t.pass(ttl / 5)
	link.delayRequests(ttl / 2)
	t.pass(ttl / 3)
	link.delayRequests(0)
	_ = lease.Extend(t.ctx, t.ttl(long)) // answered, or lost just now
	t.trusted(lease, b, 2*ttl)
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
