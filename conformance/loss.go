package conformance

import (
	"context"
	"time"

	"github.com/paddock-go/paddock"
)

const ruleLoss = "loss ends the lease's context with a cause that is ErrLost, once, never after Release; Release of a lost lease returns " +
	"ErrLost and touches nobody else's lock."

const ruleLostHere = "what is lost here but may live on the server is still released in the background."

var loss = []check{
	{name: "Rule09/CutOffBeforeTheNextEnters", rule: ruleLoss, run: cutOff(func(l *link) { l.cut() })},
	{name: "Rule09/SilentBeforeTheNextEnters", rule: ruleLoss, run: cutOff(func(l *link) { l.silence() })},
	{name: "Rule09/LostHereIsReleasedThere", rule: ruleLostHere, run: lostHere},
	{name: "Rule09/LossIsFinal", rule: ruleLoss, run: lossIsFinal},
	{name: "Rule09/NeverAfterRelease", rule: ruleLoss, run: neverAfterRelease},
	{name: "Rule09/ServerForgets", rule: ruleLoss, alone: true, run: serverForgets},
}

// lost checks that lease is, also by its context and Release.
func (t *trial) lost(lease *paddock.Lease) {
	t.Helper()
	t.is(lease.Err(), paddock.ErrLost)
	await(t, lease.Context().Done(), soon, "the end of the lease's context")
	t.is(context.Cause(lease.Context()), paddock.ErrLost)
	t.is(lease.Release(t.ctx), paddock.ErrLost)
	t.is(lease.Err(), paddock.ErrLost)
}

// cutOff takes the holder's link away for as long as it takes another to get the key.
func cutOff(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		a, link := t.spoilable()
		b, c := t.open(), t.open()
		lease := t.acquire(a, t.key(), forTTL(t.lively()))
		t.pass(lease.TTL() / 2) // so that it was renewed
		waiter := acquiring(t.ctx, b, lease.Key(), forTTL(t.ttl(long)))
		t.pass(queued)
		spoil(link)
		next, at := t.granted(waiter, t.crashed(lease.TTL())+soon, "the waiter behind a holder that was cut off")
		if early := lease.Deadline().Sub(at); early > 0 {
			t.Errorf("the next holder entered %v before the Deadline of one that is cut off", early)
		}
		t.is(lease.Err(), paddock.ErrLost)
		link.pass()
		t.lost(lease)
		t.pass(t.short()) // what the old holder's Locker may do in the background
		t.untouched(next, c)
		t.release(next)
		t.free(a, lease.Key())
	}
}

// lostHere has renewals arrive whose answers do not: the holder must give up a key that the server would go on to hold.
func lostHere(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	lease := t.acquire(a, t.key(), forTTL(t.lively()))
	link.loseReplies()
	await(t, lease.Context().Done(), 2*lease.TTL()+soon, "the loss of a lease whose renewals are not answered")
	if early := time.Until(lease.Deadline()); early > 0 {
		t.Logf("lost %v before Deadline: %v", early, lease.Err())
	}
	link.pass()
	t.lost(lease)
	t.free(b, lease.Key())
	t.free(a, lease.Key())
}

func lossIsFinal(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), unrenewed(t.brief()))
	await(t, lease.Context().Done(), lease.TTL()+soon, "the end of a lease that is not renewed")
	first := lease.Err()
	t.lost(lease)
	t.is(lease.Extend(t.ctx, t.ttl(long)), paddock.ErrLost)
	t.lost(lease)
	if again := lease.Err(); again != first {
		t.Errorf("Err was %v and is %v", first, again)
	}
	t.free(b, lease.Key())
}

func neverAfterRelease(t *trial) {
	l := t.open()
	renewed, fixed := t.acquire(l, t.key(), forTTL(t.lively())), t.acquire(l, t.key(), unrenewed(t.lively()))
	for _, lease := range []*paddock.Lease{renewed, fixed} {
		t.release(lease)
	}
	t.pass(t.lively() * 3 / 2)
	for _, lease := range []*paddock.Lease{renewed, fixed} {
		t.is(lease.Err(), paddock.ErrReleased)
		t.is(context.Cause(lease.Context()), paddock.ErrReleased)
		t.release(lease)
	}
}

func serverForgets(t *trial) {
	if t.b.Faults == nil || t.b.Faults.Forget == nil {
		t.skip("Faults.Forget")
	}
	a, b, c := t.open(), t.open(), t.open()
	lease := t.acquire(a, t.key(), forTTL(t.lively()))
	t.b.Faults.Forget(t.T)
	next := t.acquireSoon(b, lease.Key(), forTTL(t.ttl(long)))
	await(t, lease.Context().Done(), lease.TTL()+soon, "the loss of a lease that the server has forgotten")
	t.lost(lease)
	t.untouched(next, c)
	t.release(next)
	t.free(a, lease.Key())
}
