package conformance

import (
	"context"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleShorter = "if Extend may end the lease sooner, Deadline is lowered before it is sent; after one of unknown outcome every later " +
		"window is at most that TTL from its sending, until the server has proved the order."
	ruleRaise = "only Extend may lower the server's TTL; renewals and repeated grants raise it."
)

var shorten = []check{
	{name: "Rule16/Shorter", rule: ruleShorter, run: extendShorter},
	{name: "Rule16/ShorterOnTheServer", rule: ruleExtend, run: shorterThere},
	{name: "Rule16/LowersDeadlineBeforeTheAnswer", rule: ruleShorter, run: lowersFirst},
	{name: "Rule16/ShorterReplyLost", rule: ruleShorter, run: shorterLost},
	{name: "Rule16/ShorterOvertaken", rule: ruleShorter, run: shorterOvertaken},
	{name: "Rule16/RenewalOvertaken", rule: ruleRaise, run: renewalOvertaken},
}

func extendShorter(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.ttl(long)))
	t.extended(lease, t.brief())
	t.entersAfter(lease, b, lease.TTL()+t.g.TTLStep+soon)
	t.lost(lease)
}

// shorterThere cuts the holder off, so that nobody but the server can end the lease.
func shorterThere(t *trial) {
	a, link := t.spoilable()
	lease := t.acquire(a, t.key(), unrenewed(t.ttl(long)))
	t.extended(lease, t.brief())
	link.silence()
	t.entersAfter(lease, t.open(), lease.TTL()+t.g.TTLStep+soon)
	link.pass()
	t.lost(lease)
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

// trusted tries until either another holder enters, which must be after the window of lease, or d is over.
func (t *trial) trusted(lease *paddock.Lease, l paddock.Locker, d time.Duration) {
	t.Helper()
	if next := t.enters(lease, l, d); next != nil {
		t.lost(lease)
		t.release(next)
		return
	}
	_ = lease.Release(t.ctx) // held to the end, or lost just now
	t.free(l, lease.Key())
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
		t.Log("Extend succeeded: this process slept until its request had come")
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
