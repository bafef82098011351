package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/paddock-go/paddock"
)

const ruleWindow = "Deadline is counted from before the sending of the request that the server counts the TTL from, with the TTL that it " +
	"granted; a grant whose Deadline has passed when it arrives is none."

var window = []check{
	{name: "Rule07/NobodyEntersBeforeDeadline", rule: ruleWindow, run: nobodyBefore},
	{name: "Rule07/ContextEndsAtDeadline", rule: ruleWindow, run: endsAtDeadline},
	{name: "Rule07/CountedFromTheSending", rule: ruleWindow, run: fromTheSending},
	{name: "Rule07/LateGrantIsNone", rule: ruleWindow, run: lateGrant},
}

func nobodyBefore(t *trial) {
	a, b := t.open(), t.open()
	for _, opts := range []*paddock.Options{unrenewed(t.brief()), {TTL: t.lively(), MaxHold: t.brief()}} {
		lease := t.acquire(a, t.key(), opts)
		if d := time.Until(lease.Deadline()); d > lease.TTL() {
			t.Errorf("Deadline is %v away; the TTL is %v", d, lease.TTL())
		}
		waiter := acquiring(t.ctx, b, lease.Key(), forTTL(t.ttl(long)))
		next, at := t.granted(waiter, lease.TTL()+t.g.TTLStep+soon, "a waiter after the lease ran out")
		if early := lease.Deadline().Sub(at); early > 0 {
			t.Errorf("the next holder entered %v before Deadline", early)
		}
		t.is(lease.Err(), paddock.ErrLost)
		t.release(next)
	}
}

func endsAtDeadline(t *trial) {
	l := t.open()
	lease := t.acquire(l, t.key(), unrenewed(t.brief()))
	begun, deadline := time.Now(), lease.Deadline()
	if d := deadline.Sub(begun); d > lease.TTL() {
		t.Fatalf("Deadline is %v away; the TTL is %v", d, lease.TTL())
	}
	for {
		d := lease.Deadline() // a session's moves, also for a lease that is not renewed itself
		if lease.Err() != nil {
			break // d may have moved after the end
		}
		deadline = d
		if late := time.Since(deadline); late > 0 && lease.Err() == nil && lease.Deadline().Equal(deadline) {
			t.Fatalf("Err is nil %v after Deadline", late)
		}
		time.Sleep(time.Millisecond)
	}
	wall := deadline.Round(0).Sub(time.Now().Round(0)) // either clock ends a lease, and the two may drift apart
	if early := min(time.Until(deadline), wall); early > 0 {
		t.Errorf("the lease ended %v before its Deadline, %v after the grant: %v", early, time.Since(begun), lease.Err())
	}
	await(t, lease.Context().Done(), soon, "the end of the lease's context after Deadline")
	t.is(context.Cause(lease.Context()), paddock.ErrLost)
	t.is(lease.Release(t.ctx), paddock.ErrLost)
}

// fromTheSending delays every reply by d. Whatever is granted then was asked for at least d ago.
func fromTheSending(t *trial) {
	l, link := t.spoilable()
	t.free(l, t.key()) // warm
	ttl := t.lively()
	d := min(ttl/12, 100*time.Millisecond) // a renewal may take ttl/6
	link.delayReplies(d)
	begun := time.Now()
	lease, err := l.TryAcquire(t.ctx, t.key(), forTTL(ttl))
	if err != nil {
		t.Fatalf("TryAcquire with replies %v late: %v", d, err)
	}
	if over := lease.Deadline().Sub(begun) - lease.TTL(); over > 0 {
		t.Errorf("Deadline is %v more than the TTL after the call", over)
	}
	for until := begun.Add(2 * lease.TTL()); time.Now().Before(until); time.Sleep(time.Millisecond) {
		now := time.Now()
		if over := lease.Deadline().Sub(now) - (lease.TTL() - d); over > 0 {
			t.Fatalf("Deadline is %v later than the renewal, whose reply took %v, allows", over, d)
		}
	}
	link.pass()
	_ = lease.Release(t.ctx) // a slow machine may have lost it, or needs another try
	t.free(t.open(), lease.Key())
}

func lateGrant(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	t.free(a, t.key()) // warm
	ttl := t.brief()
	tried, waited := t.key(), t.key()
	link.delayReplies(2 * ttl)
	lease, err := a.TryAcquire(t.ctx, tried, forTTL(ttl))
	if lease != nil {
		t.Errorf("TryAcquire returned a lease whose reply took two TTLs; Err: %v", lease.Err())
	} else {
		t.is(err, paddock.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(t.ctx, 3*ttl)
	defer cancel()
	lease, err = a.Acquire(ctx, waited, forTTL(ttl))
	if lease != nil {
		t.Errorf("Acquire returned a lease whose reply took two TTLs; Err: %v", lease.Err())
	} else if !errors.Is(err, paddock.ErrUnavailable) { // where the delay looks like silence for long enough
		t.is(err, context.DeadlineExceeded)
	}
	link.pass()
	t.free(b, tried)
	t.free(b, waited)
}
