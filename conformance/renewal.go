package conformance

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleRenewal = "a lease is renewed until it ends; owner and token never change."
	ruleSilent  = "one call of renewal is bounded, and repeated when it fails, so that one silent connection does not use up the window."
	ruleMany    = "many leases cost O(1) goroutines and batched round trips; none is lost."
)

var renewal = []check{
	{name: "Rule08/LivesManyTTLs", rule: ruleRenewal, run: livesOn},
	{name: "Rule08/SurvivesShortSilence", rule: ruleSilent, run: survives(func(l *link) { l.silence() })},
	{name: "Rule08/SurvivesShortCut", rule: ruleSilent, run: survives(func(l *link) { l.cut() })},
	{name: "Rule08/ManyLeases", rule: ruleMany, alone: true, run: manyLeases},
}

func livesOn(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), forTTL(2*t.lively()))
	owner, fence, deadline := lease.Owner(), lease.Fence(), lease.Deadline()
	for range 2 {
		t.pass(lease.TTL() * 5 / 4)
		t.untouched(lease, b)
		if d := lease.Deadline(); !d.After(deadline) {
			t.Errorf("Deadline did not move for a TTL")
		} else {
			deadline = d
		}
	}
	if lease.Owner() != owner || lease.Fence() != fence {
		t.Errorf("renewal changed %s, %v to %s, %v", owner, fence, lease.Owner(), lease.Fence())
	}
	t.release(lease)
	t.free(b, lease.Key())
}

// survives spoils the link while the first renewal is due, about a third of the TTL after the grant, for as long as one call may
// take.
func survives(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		a, link := t.spoilable()
		b := t.open()
		lease := t.acquire(a, t.key(), forTTL(2*t.lively()))
		t.pass(lease.TTL() / 4)
		spoil(link)
		t.pass(lease.TTL() / 6)
		link.pass()
		t.pass(lease.TTL())
		t.untouched(lease, b)
		t.release(lease)
		t.free(b, lease.Key())
	}
}

func manyLeases(t *trial) {
	const leases, acquirers, most = 1000, 16, 150
	l, other := t.open(), t.open()
	t.free(l, t.key()) // warm
	prefix := t.key()
	before := runtime.NumGoroutine()
	held := make([]*paddock.Lease, leases)
	var acquiring sync.WaitGroup
	for w := range acquirers {
		acquiring.Go(func() {
			for i := w; i < leases; i += acquirers {
				lease, err := l.Acquire(t.ctx, fmt.Sprintf("%s/%d", prefix, i), forTTL(2*t.lively()))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				held[i] = lease
			}
		})
	}
	acquiring.Wait()
	if t.Failed() {
		return
	}
	least := leases * leases // timers that fire together have a goroutine each for a moment; what stays is always there
	for until := time.Now().Add(held[0].TTL() * 3 / 2); time.Now().Before(until); t.pass(10 * time.Millisecond) {
		least = min(least, runtime.NumGoroutine()-before)
	}
	if least > most {
		t.Errorf("%d leases have %d goroutines: %v", leases, least, goroutines())
	}
	for i, lease := range held {
		if err := lease.Err(); err != nil {
			t.Errorf("one of %d renewed leases has ended: %v", leases, err)
		} else if i%100 == 0 {
			t.refused(other, lease.Key())
		}
	}
	var releasing sync.WaitGroup
	for w := range acquirers {
		releasing.Go(func() {
			for i := w; i < leases; i += acquirers {
				if err := held[i].Release(t.ctx); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	releasing.Wait()
}
