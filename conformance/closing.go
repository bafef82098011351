package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleClose  = "after Close new calls, waiters and attempts in flight get ErrClosed, and the contexts of leases end with ErrClosed."
	ruleHolder = "Close deletes no key: that is for its holder's own Release, which still works, or for its TTL."
	ruleInTime = "Close returns when clean-up is done, or after CloseWait with ErrUnavailable."
)

var closing = []check{
	{name: "Rule18/EndsEverything", rule: ruleClose, run: closeEnds},
	{name: "Rule18/HolderInside", rule: ruleHolder, run: holderInside},
	{name: "Rule18/HolderNeverReleases", rule: ruleHolder, run: holderNeverReleases},
	{name: "Rule18/AttemptsInFlight", rule: ruleClose, alone: true, run: inFlight},
	{name: "Rule18/LinkSilent", rule: ruleInTime, run: closeSilent},
}

func (t *trial) close(l paddock.Locker) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func closeEnds(t *trial) {
	a, b := t.open(), t.open()
	held := t.acquire(b, t.key(), forTTL(t.ttl(long)))
	var waiters []<-chan outcome
	for range 5 {
		waiters = append(waiters, acquiring(t.ctx, a, held.Key(), nil))
	}
	t.pass(queued)
	t.close(a)
	for _, w := range waiters {
		t.is(await(t, w, soon, "a waiter when its Locker was closed").err, paddock.ErrClosed)
	}
	for range 2 {
		_, err := a.Acquire(t.ctx, t.key(), nil)
		t.is(err, paddock.ErrClosed)
		_, err = a.TryAcquire(t.ctx, held.Key(), nil)
		t.is(err, paddock.ErrClosed)
		t.close(a) // again
	}
	if a.Guarantees() != t.g {
		t.Errorf("Guarantees changed to %+v", a.Guarantees())
	}
	t.untouched(held, t.open())
	t.release(held)
	t.free(b, held.Key())
}

func holderInside(t *trial) {
	a, b := t.open(), t.open()
	leases := []*paddock.Lease{t.acquire(a, t.key(), forTTL(t.ttl(long))), t.acquire(a, t.key(), unrenewed(t.ttl(long)))}
	t.close(a)
	for _, lease := range leases {
		t.is(lease.Err(), paddock.ErrClosed)
		await(t, lease.Context().Done(), soon, "the end of a lease's context at Close")
		t.is(context.Cause(lease.Context()), paddock.ErrClosed)
		t.is(lease.Extend(t.ctx, t.ttl(long)), paddock.ErrClosed)
		t.refused(b, lease.Key())
		t.release(lease)
		t.free(b, lease.Key())
		t.release(lease)
	}
}

func holderNeverReleases(t *trial) {
	a, b := t.open(), t.open()
	lease := t.acquire(a, t.key(), forTTL(t.lively()))
	t.pass(lease.TTL() / 2)
	deadline := lease.Deadline()
	t.close(a)
	next, at := t.granted(acquiring(t.ctx, b, lease.Key(), forTTL(t.ttl(long))), t.crashed(lease.TTL())+soon,
		"a waiter behind a holder whose Locker was closed")
	if early := deadline.Sub(at); early > 0 {
		t.Errorf("Close gave the key away %v before the holder's Deadline", early)
	}
	if err := lease.Release(t.ctx); err != nil {
		t.is(err, paddock.ErrLost)
	}
	t.untouched(next, t.open())
	t.release(next)
}

func inFlight(t *trial) {
	b := t.open()
	for round := range 5 {
		a := t.open()
		prefix := t.key()
		var mu sync.Mutex
		var leases []*paddock.Lease
		var running sync.WaitGroup
		for w := range 16 {
			running.Go(func() {
				for i := 0; ; i++ {
					acquire := a.Acquire
					if i%2 == 1 {
						acquire = a.TryAcquire
					}
					lease, err := acquire(t.ctx, fmt.Sprintf("%s/%d/%d", prefix, w, i), forTTL(t.ttl(long)))
					if err != nil {
						if !isClosed(err) {
							t.Errorf("an attempt in flight at Close: %v", err)
						}
						return
					}
					mu.Lock()
					leases = append(leases, lease)
					mu.Unlock()
				}
			})
		}
		t.pass(time.Duration(5+round) * time.Millisecond)
		t.close(a)
		running.Wait()
		for _, lease := range leases {
			t.is(lease.Err(), paddock.ErrClosed)
			if err := lease.Release(t.ctx); err != nil {
				t.Fatalf("Release after Close: %v", err)
			}
		}
		if len(leases) > 0 {
			t.free(b, leases[len(leases)-1].Key())
		}
	}
}

func closeSilent(t *trial) {
	a, link := t.spoilable()
	t.free(a, t.key()) // warm
	link.silence()
	attempt := acquiring(t.ctx, a, t.key(), forTTL(t.brief()))
	t.pass(queued)
	t.gone = true
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	t.is(await(t, attempt, soon, "an attempt in flight at Close").err, paddock.ErrClosed)
	if err := await(t, closed, 3*soon, "Close on a silent link"); err != nil {
		t.is(err, paddock.ErrUnavailable)
	}
	link.pass()
}
