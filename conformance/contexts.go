package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const (
	ruleContexts = "ctx bounds the wait, never the hold. The lease's context carries ctx's values, not its end."
	ruleTimeout  = "a timeout of Acquire is ctx's error, joined with its cause, and not ErrHeld."
)

var contexts = []check{
	{name: "Rule04/ContextEndsNotTheHold", rule: ruleContexts, run: ctxNotTheHold},
	{name: "Rule04/ContextEndsTheWait", rule: ruleTimeout, run: ctxEndsTheWait},
	{name: "Rule04/TTLBoundsNotTheWait", rule: ruleContexts, run: ttlNotTheWait},
	{name: "Rule04/EndedContext", rule: ruleContexts, run: endedContext},
	{name: "Rule04/LeaseContext", rule: ruleContexts, run: leaseContext},
}

func ctxNotTheHold(t *trial) {
	a, b := t.open(), t.open()
	ctx, cancel := context.WithTimeout(t.ctx, soon)
	lease, err := a.Acquire(ctx, t.key(), forTTL(t.lively()))
	if err != nil {
		t.Fatal(err)
	}
	tried, err := a.TryAcquire(ctx, t.key(), forTTL(t.lively()))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	t.pass(2 * t.lively())
	for _, l := range []*paddock.Lease{lease, tried} {
		if err := l.Err(); err != nil {
			t.Fatalf("the context of the acquisition has ended, and so has the lease: %v", err)
		}
		if err := l.Context().Err(); err != nil {
			t.Errorf("the context of the acquisition has ended, and so has the lease's: %v", context.Cause(l.Context()))
		}
		t.refused(b, l.Key())
		t.release(l)
	}
}

func ctxEndsTheWait(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	held := t.acquire(a, key, forTTL(t.ttl(long)))
	cause := errors.New("the caller lost interest")
	for _, l := range []paddock.Locker{a, b} {
		ctx, cancel := context.WithTimeoutCause(t.ctx, queued, cause)
		defer cancel()
		o := await(t, acquiring(ctx, l, key, nil), soon, "Acquire after its timeout")
		t.ended(o, context.DeadlineExceeded, cause)

		ctx, stop := context.WithCancelCause(t.ctx)
		waiter := acquiring(ctx, l, key, nil)
		t.pass(queued)
		stop(cause)
		t.ended(await(t, waiter, soon, "Acquire after its context was cancelled"), context.Canceled, cause)
	}
	t.release(held)
	t.free(b, key)
}

// ended checks the end of an acquisition whose context ended.
func (t *trial) ended(o outcome, want, cause error) {
	t.Helper()
	if o.lease != nil {
		t.Errorf("Acquire returned a lease with the error %v", o.err)
	}
	t.is(o.err, want)
	if !errors.Is(o.err, cause) {
		t.Errorf("the error %q does not have the cause of its context in its chain. Rule 15: %s", o.err, ruleTimeout)
	}
}

func ttlNotTheWait(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	held := t.acquire(a, key, forTTL(t.ttl(long)))
	waiter := acquiring(t.ctx, b, key, forTTL(t.brief()))
	t.pass(3 * t.brief())
	select {
	case o := <-waiter:
		t.Fatalf("Acquire with a TTL of %v ended after %v of waiting: %v, %v", t.brief(), 3*t.brief(), o.lease, o.err)
	default:
	}
	t.release(held)
	next, _ := t.granted(waiter, soon, "a waiter that has waited for longer than its own TTL")
	t.release(next)
}

func endedContext(t *trial) {
	l := t.open()
	key, cause := t.key(), errors.New("too late")
	ctx, cancel := context.WithCancelCause(t.ctx)
	cancel(cause)
	lease, err := l.Acquire(ctx, key, forTTL(t.ttl(long)))
	t.ended(outcome{lease: lease, err: err}, context.Canceled, cause)
	lease, err = l.TryAcquire(ctx, key, forTTL(t.ttl(long)))
	t.ended(outcome{lease: lease, err: err}, context.Canceled, cause)
	t.free(t.open(), key)
}

func leaseContext(t *trial) {
	type name struct{}
	l := t.open()
	ctx, cancel := context.WithTimeout(context.WithValue(t.ctx, name{}, "the caller's"), soon)
	defer cancel()
	lease, err := l.Acquire(ctx, t.key(), forTTL(t.ttl(long)))
	if err != nil {
		t.Fatal(err)
	}
	if got := lease.Context().Value(name{}); got != "the caller's" {
		t.Errorf("the lease's context has the value %v; want the acquiring context's", got)
	}
	if d, ok := lease.Context().Deadline(); ok {
		t.Errorf("the lease's context has the deadline %v; it has none, since a lease's moves", time.Until(d))
	}
	if f, ok := fencing.FromContext(lease.Context()); !ok || f != lease.Fence() {
		t.Errorf("the lease's context carries the fence %v, %v; want %v", f, ok, lease.Fence())
	}
	t.release(lease)
	if cause := context.Cause(lease.Context()); !errors.Is(cause, paddock.ErrReleased) {
		t.Errorf("after Release the cause of the lease's context is %v; want ErrReleased", cause)
	}
}
