package conformance

import (
	"context"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleSilence = "when nothing was answered for one TTL (at least 5 s) Acquire returns ErrUnavailable; TryAcquire never repeats."
	ruleRepeat  = "a failed attempt of Acquire is repeated with backoff."
)

var silence = []check{
	{name: "Rule17/TryAcquireOnACutLink", rule: ruleSilence, run: tryUnavailable(func(l *link) { l.cut() })},
	{name: "Rule17/TryAcquireOnASilentLink", rule: ruleSilence, run: tryUnavailable(func(l *link) { l.silence() })},
	{name: "Rule17/AcquireOnACutLink", rule: ruleSilence, run: acquireUnavailable(func(l *link) { l.cut() })},
	{name: "Rule17/AcquireOnASilentLink", rule: ruleSilence, run: acquireUnavailable(func(l *link) { l.silence() })},
	{name: "Rule17/WaiterOnACutLink", rule: ruleSilence, run: waiterUnavailable(func(l *link) { l.cut() })},
	{name: "Rule17/WaiterOnASilentLink", rule: ruleSilence, run: waiterUnavailable(func(l *link) { l.silence() })},
	{name: "Rule17/AcquireOutlivesAShortCut", rule: ruleRepeat, run: outlives(func(l *link) { l.cut() })},
	{name: "Rule17/AcquireOutlivesAShortSilence", rule: ruleRepeat, run: outlives(func(l *link) { l.silence() })},
	{name: "Rule17/ServiceRestarts", rule: ruleRepeat, alone: true, run: restarts},
}

// silent is the silence that ends an Acquire with ttl.
func silent(ttl time.Duration) time.Duration { return max(ttl, 5*time.Second) }

func tryUnavailable(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		l, link := t.spoilable()
		t.free(l, t.key()) // warm
		spoil(link)
		begun := time.Now()
		lease, err := l.TryAcquire(t.ctx, t.key(), forTTL(t.lively()))
		if lease != nil {
			t.Fatal("TryAcquire was granted a key on a link that is gone")
		}
		t.is(err, paddock.ErrUnavailable)
		if took, most := time.Since(begun), t.lively()+soon/2; took > most {
			t.Errorf("TryAcquire with a TTL of %v took %v; it makes one attempt, which is of no use after its TTL", t.lively(), took)
		}
		link.pass()
		t.free(l, t.key())
	}
}

func acquireUnavailable(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		l, link := t.spoilable()
		t.free(l, t.key()) // warm
		spoil(link)
		begun, key := time.Now(), t.key()
		o := await(t, acquiring(t.ctx, l, key, forTTL(t.lively())), silent(t.lively())+t.lively()+soon, "Acquire on a link that is gone")
		if o.lease != nil {
			t.Fatal("Acquire was granted a key on a link that is gone")
		}
		t.is(o.err, paddock.ErrUnavailable)
		if took, least := o.at.Sub(begun), silent(t.lively())*9/10; took < least {
			t.Errorf("Acquire gave up after %v; the service may be silent for %v", took, silent(t.lively()))
		}
		link.pass()
		t.free(t.open(), key)
		t.free(l, key)
	}
}

// waiterUnavailable loses the link when the wait has begun.
func waiterUnavailable(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		a := t.open()
		b, link := t.spoilable()
		held := t.acquire(a, t.key(), forTTL(t.ttl(long)))
		waiter := acquiring(t.ctx, b, held.Key(), forTTL(t.lively()))
		t.pass(2 * queued)
		spoil(link)
		o := await(t, waiter, poll+silent(t.lively())+t.lively()+soon, "a waiter whose link is gone")
		if o.lease != nil {
			t.Fatal("a waiter whose link is gone was granted a key that is held")
		}
		t.is(o.err, paddock.ErrUnavailable)
		link.pass()
		t.untouched(held, b)
		t.release(held)
		t.free(a, held.Key())
		t.free(b, held.Key())
	}
}

func outlives(spoil func(*link)) func(*trial) {
	return func(t *trial) {
		l, link := t.spoilable()
		t.free(l, t.key()) // warm
		spoil(link)
		waiter := acquiring(t.ctx, l, t.key(), forTTL(t.ttl(long)))
		t.pass(time.Second)
		link.pass()
		lease, _ := t.granted(waiter, soon, "an Acquire that began a second before the link was back")
		t.release(lease)
	}
}

// restarts has a holder, a waiter and a newcomer live through a restart. What the service keeps of the lease is its own
// affair; everybody must get on with what there is.
func restarts(t *trial) {
	if t.b.Faults == nil || t.b.Faults.Restart == nil {
		t.skip("Faults.Restart")
	}
	a, b := t.open(), t.open()
	c, _ := t.spoilable()
	lease := t.acquire(c, t.key(), forTTL(t.ttl(5*time.Second)))
	waiter := acquiring(t.ctx, a, lease.Key(), forTTL(t.ttl(long)))
	t.pass(queued)
	t.b.Faults.Restart(t.T)
	t.free(b, t.key())
	if err := lease.Release(t.ctx); err != nil {
		t.Logf("Release after a restart: %v", err)
	}
	next, _ := t.granted(waiter, t.crashed(lease.TTL())+soon, "a waiter after a restart")
	if err := next.Release(t.ctx); err != nil {
		t.Errorf("Release: %v", err)
	}
	for _, l := range []paddock.Locker{a, b, c} {
		ctx, cancel := context.WithTimeout(t.ctx, soon)
		err := paddock.Do(ctx, l, t.key(), nil, func(context.Context, *paddock.Lease) error { return nil })
		cancel()
		if err != nil {
			t.Errorf("Do after a restart: %v", err)
		}
	}
}
