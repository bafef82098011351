package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
)

// trial is one case under way.
type trial struct {
	*testing.T
	b     *Backend
	g     paddock.Guarantees
	check *check
	ctx   context.Context // ends with the case, or when it has taken far too long
	gone  bool            // a Locker was closed while the service could not be reached, which its Close may say
}

const (
	// long is a TTL that no case waits for.
	long = time.Minute
	// soon is the limit for what should happen at once. A machine may well be that slow; nothing that waits for a TTL
	// of a minute is that fast.
	soon = 10 * time.Second
	// poll is the longest that a waiter may sleep between two tries.
	poll = 5 * time.Second
)

// ttl is d, or the shortest TTL that the backend has if that is more.
func (t *trial) ttl(d time.Duration) time.Duration { return max(d, t.g.MinTTL) }

// brief is the TTL of leases that have to run out.
func (t *trial) brief() time.Duration { return t.ttl(400 * time.Millisecond) }

// lively is the TTL of leases that have to be renewed in time, also by a process that does not get to run for a while.
func (t *trial) lively() time.Duration { return t.ttl(1500 * time.Millisecond) }

// short is the delay that a link may add without anything running out.
func (t *trial) short() time.Duration { return min(300*time.Millisecond, t.lively()/5) }

func (t *trial) skip(lacks string) {
	t.Helper()
	t.Skipf("%s needs Backend.%s. The rule: %s", t.check.name, lacks, t.check.rule)
}

// key is new, and shows its case.
func (t *trial) key() string { return path.Base(t.check.name) + "-" + strings.ToLower(rand.Text()[:8]) }

// open returns a Locker that is closed with the case.
func (t *trial) open() paddock.Locker {
	t.Helper()
	l := t.b.Open(t.T)
	t.closing(l)
	return l
}

func (t *trial) closing(l paddock.Locker) {
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !(t.gone && errors.Is(err, paddock.ErrUnavailable)) {
			t.Errorf("Close at the end of the case: %v", err)
		}
	})
}

// spoilable returns a Locker behind a link of its own.
func (t *trial) spoilable() (paddock.Locker, *link) {
	t.Helper()
	if t.b.Faults == nil || t.b.Faults.Open == nil {
		t.skip("Faults.Open")
	}
	l, k := t.b.Faults.Open(t.T)
	t.closing(l)
	if k.Pass == nil {
		t.Fatal("conformance: Faults.Open returned a Link without Pass")
	}
	t.Cleanup(k.Pass)
	return l, &link{t, k}
}

// link is a Link whose missing faults skip the case.
type link struct {
	t *trial
	k Link
}

func (l *link) delayRequests(d time.Duration) {
	l.need(l.k.DelayRequests != nil, "DelayRequests")
	l.k.DelayRequests(d)
}

func (l *link) delayReplies(d time.Duration) {
	l.need(l.k.DelayReplies != nil, "DelayReplies")
	l.k.DelayReplies(d)
}

func (l *link) loseReplies() { l.need(l.k.LoseReplies != nil, "LoseReplies"); l.k.LoseReplies() }
func (l *link) silence()     { l.need(l.k.Silence != nil, "Silence"); l.k.Silence() }
func (l *link) cut()         { l.need(l.k.Cut != nil, "Cut"); l.k.Cut() }
func (l *link) pass()        { l.k.Pass() }

func (l *link) need(ok bool, name string) {
	if !ok {
		l.t.skip("Faults.Open with a Link." + name)
	}
}

// forTTL are options with this TTL.
func forTTL(ttl time.Duration) *paddock.Options { return &paddock.Options{TTL: ttl} }

// unrenewed are options of a lease that runs out after ttl.
func unrenewed(ttl time.Duration) *paddock.Options { return &paddock.Options{TTL: ttl, NoRenew: true} }

// acquire must succeed.
func (t *trial) acquire(l paddock.Locker, key string, opts *paddock.Options) *paddock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.ctx, key, opts)
	if err != nil || lease == nil {
		t.Fatalf("Acquire(%q) = %v, %v; want a lease", key, lease, err)
	}
	return lease
}

// acquireSoon must succeed without waiting for a TTL to run out.
func (t *trial) acquireSoon(l paddock.Locker, key string, opts *paddock.Options) *paddock.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, soon)
	defer cancel()
	lease, err := l.Acquire(ctx, key, opts)
	if err != nil {
		t.Fatalf("Acquire(%q) = %v; the key should be free at once", key, err)
	}
	return lease
}

// release must succeed.
func (t *trial) release(lease *paddock.Lease) {
	t.Helper()
	if err := lease.Release(t.ctx); err != nil {
		t.Errorf("Release of %q: %v", lease.Key(), err)
	}
}

// refused checks that l finds key held by another.
func (t *trial) refused(l paddock.Locker, key string) {
	t.Helper()
	lease, err := l.TryAcquire(t.ctx, key, forTTL(t.ttl(long)))
	if err == nil {
		lease.Release(t.ctx)
		t.Fatalf("TryAcquire(%q) got a lease; the key should be held by another", key)
	}
	t.is(err, paddock.ErrHeld)
}

// free checks that l can have key at once.
func (t *trial) free(l paddock.Locker, key string) {
	t.Helper()
	t.release(t.acquireSoon(l, key, forTTL(t.ttl(long))))
}

// is checks that err is want and none of the contract's other errors.
func (t *trial) is(err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %q (%T); want %q", err, err, want)
	}
	for _, other := range sentinels {
		driver := want == paddock.ErrUnavailable && (other == context.Canceled || other == context.DeadlineExceeded)
		if other != want && !driver && errors.Is(err, other) { // a driver's own error may be a timeout
			t.Errorf("the error %q is both %q and %q", err, want, other)
		}
	}
}

var sentinels = []error{
	paddock.ErrHeld, paddock.ErrLost, paddock.ErrReleased, paddock.ErrFree, paddock.ErrUnavailable, paddock.ErrInvalid,
	paddock.ErrClosed, context.Canceled, context.DeadlineExceeded,
}

// outcome is what an acquisition came to.
type outcome struct {
	lease *paddock.Lease
	err   error
	at    time.Time
}

// acquiring calls Acquire on a goroutine of its own.
func acquiring(ctx context.Context, l paddock.Locker, key string, opts *paddock.Options) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		lease, err := l.Acquire(ctx, key, opts)
		out <- outcome{lease, err, time.Now()}
	}()
	return out
}

// await returns what comes out of c, which must be within d.
func await[T any](t *trial, c <-chan T, d time.Duration, what string) T {
	t.Helper()
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case v := <-c:
		return v
	case <-limit.C:
		t.Fatalf("%s: not within %v", what, d)
		panic("unreachable")
	}
}

// granted is await for a lease.
func (t *trial) granted(c <-chan outcome, d time.Duration, what string) (*paddock.Lease, time.Time) {
	t.Helper()
	o := await(t, c, d, what)
	if o.err != nil {
		t.Fatalf("%s: %v", what, o.err)
	}
	return o.lease, o.at
}

// eventually polls ok until it is true, which must be within d.
func (t *trial) eventually(d time.Duration, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(d); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, d)
		}
	}
}

// pass lets time pass. Either time itself is what the rule is about, or it gives what is under way the chance to go wrong.
func (t *trial) pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
		t.Fatalf("the case has taken far too long")
	}
}

// nothingLeft checks that the backend holds nothing any more, save what the TTLs of a crash case still have to end.
func (t *trial) nothingLeft() {
	t.Helper()
	if t.b.Left == nil || t.Skipped() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), soon+3*t.lively())
	defer cancel()
	for {
		left, err := t.b.Left(ctx)
		if err == nil && len(left) == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Errorf("left behind: %q, %v. Rule 19: %s", left, err, ruleNoKey)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
