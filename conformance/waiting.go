package conformance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleWait = "Acquire returns soon after the key is free: woken where the backend can, and always with a timer as well, since a " +
		"notification is a hint."
	ruleFair = "where Guarantees say Fair, waiters are served first come, first served, across processes."
)

var waiting = []check{
	{name: "Rule03/WokenAfterRelease", rule: ruleWait, run: wokenAfterRelease},
	{name: "Rule03/WokenAfterExpiry", rule: ruleWait, run: wokenAfterExpiry},
	{name: "Rule03/HintLost", rule: ruleWait, run: hintLost},
	{name: "Rule03/EveryWaiterIsServed", rule: ruleWait, run: everyWaiterIsServed},
	{name: "Rule03/LeaversTakeNoHintAlong", rule: ruleWait, run: leavers},
	{name: "Rule03/FirstComeFirstServed", rule: ruleFair, run: firstCome,
		only: func(g paddock.Guarantees) bool { return g.Fair }},
}

// queued is a time in which an Acquire that was just begun will have asked the server and be waiting. No check relies on it.
const queued = 100 * time.Millisecond

func wokenAfterRelease(t *trial) {
	a, b := t.open(), t.open()
	for name, l := range map[string]paddock.Locker{"the holder's Locker": a, "another Locker": b} {
		key := t.key()
		held := t.acquire(a, key, forTTL(t.ttl(long)))
		waiter := acquiring(t.ctx, l, key, forTTL(t.ttl(long)))
		t.pass(queued)
		t.release(held)
		next, _ := t.granted(waiter, soon, "a waiter of "+name+" after the release")
		t.release(next)
	}
}

func wokenAfterExpiry(t *trial) {
	a, b := t.open(), t.open()
	for name, l := range map[string]paddock.Locker{"the holder's Locker": a, "another Locker": b} {
		key := t.key()
		held := t.acquire(a, key, unrenewed(t.brief()))
		waiter := acquiring(t.ctx, l, key, forTTL(t.ttl(long)))
		next, at := t.granted(waiter, held.TTL()+t.g.TTLStep+soon, "a waiter of "+name+" after the lease ran out")
		if early := held.Deadline().Sub(at); early > 0 {
			t.Errorf("a waiter of %s was in %v before the holder's Deadline", name, early)
		}
		t.release(next)
	}
}

// hintLost releases while the waiter can hear nothing of it.
func hintLost(t *trial) {
	a := t.open()
	b, link := t.spoilable()
	for name, spoil := range map[string]func(){"silent": link.silence, "cut": link.cut} {
		key := t.key()
		held := t.acquire(a, key, forTTL(t.ttl(long)))
		waiter := acquiring(t.ctx, b, key, forTTL(t.ttl(long)))
		t.pass(queued)
		spoil()
		t.release(held)
		t.pass(queued)
		link.pass()
		next, _ := t.granted(waiter, poll+soon, "a waiter whose link was "+name+" when the key was released")
		t.release(next)
	}
}

func everyWaiterIsServed(t *trial) {
	const perLocker = 8
	key := t.key()
	fleet := t.fleet(3)
	held := t.acquire(fleet[0], key, forTTL(t.ttl(long)))
	var waiters sync.WaitGroup
	for _, l := range fleet {
		for range perLocker {
			waiters.Go(func() {
				lease, err := l.Acquire(t.ctx, key, forTTL(t.ttl(long)))
				if err != nil {
					t.Errorf("a waiter was not served: %v", err)
					return
				}
				if err := lease.Release(t.ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			})
		}
	}
	t.pass(queued)
	t.release(held)
	served := make(chan struct{})
	go func() { waiters.Wait(); close(served) }()
	await(t, served, 3*poll+soon, "24 waiters of 3 Lockers, each of whom releases at once")
}

// leavers has waiters give up in the moment of the release: the one who stays must not miss it.
func leavers(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	for range 20 {
		held := t.acquire(a, key, forTTL(t.ttl(long)))
		ctx, leave := context.WithCancel(t.ctx)
		leaving := []<-chan outcome{acquiring(ctx, a, key, nil), acquiring(ctx, b, key, nil), acquiring(ctx, b, key, nil)}
		t.pass(queued / 10)
		staying := acquiring(t.ctx, b, key, forTTL(t.ttl(long)))
		t.pass(queued / 10)
		go leave()
		t.release(held)
		for _, c := range leaving {
			if o := await(t, c, soon, "Acquire after its context has ended"); o.err == nil {
				t.release(o.lease)
			}
		}
		next, _ := t.granted(staying, poll+soon, "the waiter who stayed")
		t.release(next)
	}
}

// firstCome lets waiters of three Lockers line up one after the other. Whether one stands in line cannot be seen from
// here, so it gives each a while; when that was too short for the machine, it tries again with more.
func firstCome(t *trial) {
	const waiters = 9
	var order []int
	for _, apart := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second} {
		fleet, key := t.fleet(3), t.key()
		held := t.acquire(fleet[0], key, forTTL(t.ttl(long)))
		var mu sync.Mutex
		var line sync.WaitGroup
		order = nil
		for i := range waiters {
			line.Go(func() {
				lease, err := fleet[i%len(fleet)].Acquire(t.ctx, key, forTTL(t.ttl(long)))
				if err != nil {
					t.Errorf("waiter %d: %v", i, err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				if err := lease.Release(t.ctx); err != nil {
					t.Errorf("waiter %d: Release: %v", i, err)
				}
			})
			t.pass(apart)
		}
		t.release(held)
		line.Wait()
		if slices.IsSorted(order) {
			return
		}
		t.Logf("with %v between them, waiters were served in the order %v", apart, order)
	}
	t.Errorf("waiters were served in the order %v", order)
}
