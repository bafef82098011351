package conformance

import (
	"context"
	"errors"
	"slices"

	"github.com/paddock-go/paddock"
)

const (
	ruleErrors = "each failure is one error by errors.Is: ErrHeld, ErrLost, ErrReleased, ErrFree, ErrUnavailable, ErrInvalid, ErrClosed, or " +
		"ctx's joined with its cause."
	ruleChain = "the driver's own error is still in the chain."
)

var sentinelCases = []check{
	{name: "Rule15/EachFailureIsOneError", rule: ruleErrors, run: eachFailure},
	{name: "Rule15/DriversErrorIsInTheChain", rule: ruleChain, run: driversError},
}

func eachFailure(t *trial) {
	a, b := t.open(), t.open()
	held := t.acquire(a, t.key(), forTTL(t.ttl(long)))
	lost := t.acquire(a, t.key(), unrenewed(t.brief()))
	await(t, lost.Context().Done(), lost.TTL()+soon, "the end of a lease that is not renewed")
	cause := errors.New("the caller's reason")
	late, cancel := context.WithTimeoutCause(t.ctx, queued, cause)
	defer cancel()

	_, err := b.TryAcquire(t.ctx, held.Key(), nil)
	t.is(err, paddock.ErrHeld)
	_, err = b.Acquire(late, held.Key(), nil)
	t.ended(outcome{err: err}, context.DeadlineExceeded, cause)
	_, err = b.Acquire(t.ctx, "", nil)
	t.is(err, paddock.ErrInvalid)
	_, err = a.Acquire(held.Context(), held.Key(), nil)
	t.is(err, paddock.ErrInvalid)
	t.is(lost.Err(), paddock.ErrLost)
	t.is(lost.Extend(t.ctx, t.ttl(long)), paddock.ErrLost)
	t.is(lost.Release(late), paddock.ErrLost)
	t.ended(outcome{err: held.Extend(late, t.ttl(long))}, context.DeadlineExceeded, cause)
	if _, err := paddock.Inspect(t.ctx, b, t.key()); !errors.Is(err, errors.ErrUnsupported) {
		t.is(err, paddock.ErrFree)
	}
	t.release(held)
	t.is(held.Err(), paddock.ErrReleased)
	t.is(held.Extend(t.ctx, t.ttl(long)), paddock.ErrReleased)
	t.close(b)
	_, err = b.TryAcquire(t.ctx, held.Key(), nil)
	t.is(err, paddock.ErrClosed)
}

// driversError needs a failure that the driver has an error for: a connection that is refused.
func driversError(t *trial) {
	l, link := t.spoilable()
	t.free(l, t.key()) // warm
	link.cut()
	_, err := l.TryAcquire(t.ctx, t.key(), forTTL(t.ttl(long)))
	t.is(err, paddock.ErrUnavailable)
	if !slices.ContainsFunc(leaves(err), func(e error) bool { return !slices.Contains(sentinels, e) }) {
		t.Errorf("the error %q has only %q in its chain; want the driver's as well", err, leaves(err))
	}
	link.pass()
}

// leaves are the errors in err's chain that wrap no other.
func leaves(err error) []error {
	switch w := err.(type) {
	case interface{ Unwrap() error }:
		if below := w.Unwrap(); below != nil {
			return leaves(below)
		}
	case interface{ Unwrap() []error }:
		var all []error
		for _, below := range w.Unwrap() {
			all = append(all, leaves(below)...)
		}
		return all
	}
	return []error{err}
}
