package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleAbandon = "when ctx ends at any moment, nothing of the attempt stays in the backend: clean-up is owner-checked, on a context " +
		"of its own, and retried until the server confirms."
	ruleOvertaken = "clean-up also stops a request that arrives after it."
)

var abandon = []check{
	{name: "Rule05/AbandonedAttemptsLeaveNothing", rule: ruleAbandon, alone: true, run: abandonedAttempts},
	{name: "Rule05/AbandonedWaitsLeaveNothing", rule: ruleAbandon, alone: true, run: abandonedWaits},
	{name: "Rule05/RequestsDelayedPastCleanUp", rule: ruleOvertaken, run: requestsOvertaken},
	{name: "Rule05/RepliesLost", rule: ruleAbandon, run: spoiledAttempts(func(t *trial, l *link) { l.loseReplies() })},
	{name: "Rule05/RepliesDelayed", rule: ruleAbandon, run: spoiledAttempts(func(t *trial, l *link) { l.delayReplies(t.short()) })},
	{name: "Rule05/LinkSilent", rule: ruleAbandon, run: spoiledAttempts(func(t *trial, l *link) { l.silence() })},
	{name: "Rule05/LinkCut", rule: ruleAbandon, run: spoiledAttempts(func(t *trial, l *link) { l.cut() })},
}

// soonEnded returns a context that ends at a random moment within about twice d.
func soonEnded(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d > 200*time.Microsecond {
		return context.WithTimeout(ctx, rand.N(2*d))
	}
	ctx, cancel := context.WithCancel(ctx) // timers are too coarse for that
	go func() {
		for range rand.N(20) {
			runtime.Gosched()
		}
		cancel()
	}()
	return ctx, cancel
}

// usual is how long an acquisition takes here.
func (t *trial) usual(l paddock.Locker) time.Duration {
	t.Helper()
	least := time.Hour
	for range 10 {
		begun := time.Now()
		lease := t.acquire(l, t.key(), forTTL(t.ttl(long)))
		least = min(least, time.Since(begun))
		t.release(lease)
	}
	return least
}

func abandonedAttempts(t *trial) {
	const workers, enough, most = 8, 25, 500
	a, b := t.open(), t.open()
	prefix, opts, usual := t.key(), forTTL(t.ttl(long)), t.usual(a)
	until := time.Now().Add(2 * time.Second)
	var running sync.WaitGroup
	for w := range workers {
		running.Go(func() {
			key := fmt.Sprintf("%s/%d", prefix, w)
			for i := 0; !t.Failed() && (i < enough || (i < most && time.Now().Before(until))); i++ {
				acquire := a.Acquire
				if i%3 == 0 {
					acquire = a.TryAcquire
				}
				ctx, cancel := soonEnded(t.ctx, usual)
				lease, err := acquire(ctx, key, opts)
				switch {
				case err == nil:
					if err := lease.Release(t.ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				case i%3 == 0 && errors.Is(err, paddock.ErrHeld): // by the attempt before, whose clean-up is under way
				case ctx.Err() == nil || !errors.Is(err, ctx.Err()):
					t.Errorf("an attempt whose context ends: %v", err)
				}
				cancel()
				if i%25 == 0 {
					t.freeAtOnce(b, key)
				}
			}
			t.freeAtOnce(b, key)
		})
	}
	running.Wait()
}

// freeAtOnce is free for goroutines other than the case's own.
func (t *trial) freeAtOnce(l paddock.Locker, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, soon)
	defer cancel()
	lease, err := l.Acquire(ctx, key, forTTL(t.ttl(long)))
	if err != nil {
		t.Errorf("Acquire(%q) = %v; the key should be free at once", key, err)
		return
	}
	if err := lease.Release(t.ctx); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func abandonedWaits(t *trial) {
	const waiters, rounds = 16, 20
	a, b := t.open(), t.open()
	key, usual := t.key(), t.usual(a)
	held := t.acquire(a, key, forTTL(t.ttl(long)))
	var running sync.WaitGroup
	for i := range waiters {
		running.Go(func() {
			l := []paddock.Locker{a, b}[i%2]
			for range rounds {
				ctx, cancel := soonEnded(t.ctx, time.Duration(1+rand.N(10))*usual)
				lease, err := l.Acquire(ctx, key, forTTL(t.ttl(long)))
				if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
					t.Errorf("a wait for a held key whose context ends: %v, %v", lease, err)
				}
				cancel()
			}
		})
	}
	running.Wait()
	staying := acquiring(t.ctx, b, key, forTTL(t.ttl(long)))
	t.release(held)
	next, _ := t.granted(staying, soon, "a waiter after the abandoned ones")
	t.release(next)
	t.free(a, key)
}

// requestsOvertaken lets clean-up reach the service before the request that it cleans up after.
func requestsOvertaken(t *trial) {
	const attempts = 10
	a, link := t.spoilable()
	b := t.open()
	t.free(a, t.key()) // warm
	prefix, delay := t.key(), t.short()
	link.delayRequests(delay)
	ctx, cancel := context.WithTimeout(t.ctx, delay/4)
	defer cancel()
	var outcomes [attempts]<-chan outcome
	for i := range outcomes {
		outcomes[i] = acquiring(ctx, a, fmt.Sprintf("%s/%d", prefix, i), forTTL(t.ttl(long)))
	}
	<-ctx.Done()
	link.delayRequests(0)
	for i, c := range outcomes {
		o := await(t, c, soon, "Acquire after its context has ended")
		t.is(o.err, context.DeadlineExceeded)
		t.free(b, fmt.Sprintf("%s/%d", prefix, i))
	}
	t.pass(2 * delay) // until the requests have come
	for i := range outcomes {
		t.free(b, fmt.Sprintf("%s/%d", prefix, i))
	}
}

// spoiledAttempts abandons attempts on a link that was spoiled before.
func spoiledAttempts(spoil func(*trial, *link)) func(*trial) {
	return func(t *trial) {
		a, link := t.spoilable()
		b := t.open()
		t.free(a, t.key()) // warm
		keys := []string{t.key(), t.key(), t.key()}
		spoil(t, link)
		for _, key := range keys {
			ctx, cancel := context.WithTimeout(t.ctx, t.short()/3)
			o := await(t, acquiring(ctx, a, key, forTTL(t.ttl(long))), soon/2, "Acquire after its context has ended")
			cancel()
			t.is(o.err, context.DeadlineExceeded)
		}
		link.pass()
		for _, key := range keys {
			t.free(b, key)
			t.free(a, key)
		}
	}
}
