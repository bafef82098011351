package conformance

import (
	"sync"

	"github.com/paddock-go/paddock"
)

const (
	ruleCosts   = "an acquisition and a release cost the requests that the backend documents."
	ruleWaiters = "requests under contention are bounded per acquisition, whatever the number of goroutines that wait in a process."
)

var wire = []check{
	{name: "Wire/Costs", rule: ruleCosts, alone: true, run: costs},
	{name: "Wire/WaitingGoroutines", rule: ruleWaiters, alone: true, run: waitingGoroutines},
}

// counted is how many requests do makes, at the least of several times: there may be heartbeats in between.
func (t *trial) counted(do func()) int64 {
	t.Helper()
	if t.b.Commands == nil {
		t.skip("Commands")
	}
	least := int64(1 << 62)
	for range 10 {
		before := t.b.Commands()
		do()
		least = min(least, t.b.Commands()-before)
	}
	if least == 0 {
		t.Error("Backend.Commands counts nothing")
	}
	return least
}

func costs(t *trial) {
	a, b := t.open(), t.open()
	opts := forTTL(t.ttl(long))
	for _, l := range []paddock.Locker{a, b} { // warm
		for range 3 {
			t.free(l, t.key())
		}
	}
	var leases []*paddock.Lease
	acquire := t.counted(func() { leases = append(leases, t.acquire(a, t.key(), opts)) })
	refused := t.counted(func() { t.refused(b, leases[0].Key()) })
	release := t.counted(func() {
		t.release(leases[0])
		leases = leases[1:]
	})
	for what, n := range map[string][2]int64{
		"Acquire of a free key":    {acquire, t.b.Costs.Acquire},
		"TryAcquire of a held key": {refused, t.b.Costs.Contended},
		"Release":                  {release, t.b.Costs.Release},
	} {
		if got, want := n[0], max(1, n[1]); got > want {
			t.Errorf("%s costs %d requests; want %d", what, got, want)
		}
	}
}

// waitingGoroutines compares a few waiters with many: each is served once.
func waitingGoroutines(t *trial) {
	if t.b.Commands == nil {
		t.skip("Commands")
	}
	a, b := t.open(), t.open()
	each := func(waiters int) float64 {
		key := t.key()
		held := t.acquire(a, key, forTTL(t.ttl(long)))
		before := t.b.Commands()
		var running sync.WaitGroup
		for range waiters {
			running.Go(func() { t.freeAtOnce(b, key) })
		}
		t.pass(10 * queued)
		t.release(held)
		running.Wait()
		return float64(t.b.Commands()-before) / float64(waiters)
	}
	each(2) // warm
	few, many := each(4), each(64)
	t.Logf("requests for each acquisition: %.1f with 4 waiters, %.1f with 64", few, many)
	c := t.b.Costs
	if many > few+2*float64(max(1, c.Contended)) { // two tries more would be somebody's who was not at the head of the line
		t.Errorf("each of 64 waiting goroutines cost %.1f requests; with 4 it was %.1f", many, few)
	}
	if most := 3 + 2*float64(max(1, c.Acquire)+max(1, c.Contended)+max(1, c.Release)); many > most {
		t.Errorf("each of 64 goroutines that waited for less than %v cost %.1f requests; that is more than %v: somebody polls",
			soon/2, many, most)
	}
}
