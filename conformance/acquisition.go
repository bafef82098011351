package conformance

import (
	"github.com/paddock-go/paddock"
)

const (
	ruleOne        = "the owner is fresh each time; Release and Extend touch that acquisition alone, however late or repeated."
	ruleIdempotent = "a client's silent retry of a request whose reply was lost cannot conflict with itself."
)

var acquisition = []check{
	{name: "Rule06/OwnersAreFresh", rule: ruleOne, run: freshOwners},
	{name: "Rule06/LateReleaseTouchesNobody", rule: ruleOne, run: lateRelease},
	{name: "Rule06/RepeatedReleaseTouchesNobody", rule: ruleOne, run: repeatedRelease},
	{name: "Rule06/LostReplyOfAcquire", rule: ruleIdempotent, run: lostAcquireReply},
	{name: "Rule06/LostReplyOfRelease", rule: ruleIdempotent, run: lostReleaseReply},
}

func freshOwners(t *trial) {
	seen := map[string]bool{}
	key := t.key()
	for _, l := range t.fleet(2) {
		for range 20 {
			lease := t.acquire(l, key, nil)
			if o := lease.Owner(); len(o) != 36 || seen[o] {
				t.Errorf("owner %q; want a UUID that was not seen before", o)
			}
			if f := lease.Fence(); f.Owner != lease.Owner() || f.Token != lease.Token() {
				t.Errorf("fence %v of a lease with owner %s and token %d", f, lease.Owner(), lease.Token())
			}
			if lease.Key() != key {
				t.Errorf("Key is %q; want %q", lease.Key(), key)
			}
			seen[lease.Owner()] = true
			t.release(lease)
		}
	}
}

// untouched checks that lease is held, by its own account and the service's.
func (t *trial) untouched(lease *paddock.Lease, other paddock.Locker) {
	t.Helper()
	if err := lease.Err(); err != nil {
		t.Errorf("the lease that is held has ended: %v", err)
	}
	t.refused(other, lease.Key())
}

func lateRelease(t *trial) {
	a, b, c := t.open(), t.open(), t.open()
	key := t.key()
	old := t.acquire(a, key, unrenewed(t.brief()))
	next := t.acquire(b, key, forTTL(t.ttl(long))) // waits for the old one to run out
	for range 3 {
		t.is(old.Release(t.ctx), paddock.ErrLost)
		t.untouched(next, c)
		t.is(old.Extend(t.ctx, t.ttl(long)), paddock.ErrLost)
		t.untouched(next, c)
	}
	t.pass(t.short()) // what the old holder's Locker may do in the background
	t.untouched(next, c)
	t.untouched(next, a)
	t.release(next)
}

func repeatedRelease(t *trial) {
	a, b, c := t.open(), t.open(), t.open()
	key := t.key()
	for _, l := range []paddock.Locker{a, b} { // the next holder has the same Locker, or another
		old := t.acquire(a, key, forTTL(t.ttl(long)))
		t.release(old)
		next := t.acquireSoon(l, key, forTTL(t.ttl(long)))
		for range 3 {
			t.release(old) // says again what the first came to
			t.untouched(next, c)
			t.is(old.Extend(t.ctx, t.ttl(long)), paddock.ErrReleased)
			t.untouched(next, c)
		}
		t.is(old.Err(), paddock.ErrReleased)
		t.release(next)
	}
}

func lostAcquireReply(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	t.free(a, t.key()) // warm
	key := t.key()
	link.loseReplies()
	waiter := acquiring(t.ctx, a, key, forTTL(t.ttl(long)))
	t.pass(t.short())
	link.pass()
	lease, _ := t.granted(waiter, soon, "Acquire after the reply of its first request was lost")
	t.untouched(lease, b)
	t.release(lease)
	t.free(b, key)
}

func lostReleaseReply(t *trial) {
	a, link := t.spoilable()
	b := t.open()
	lease := t.acquire(a, t.key(), forTTL(t.ttl(long)))
	link.loseReplies()
	released := make(chan error, 1)
	go func() { released <- lease.Release(t.ctx) }()
	t.pass(t.short())
	link.pass()
	if err := await(t, released, soon, "Release whose reply was lost"); err != nil {
		t.is(err, paddock.ErrUnavailable)
	}
	t.free(b, lease.Key())
	t.release(lease)
}
