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
	late  time.Duration   // how late the process got to run before the case
	gone  bool            // a Locker was closed while the service could not be reached, which its Close may say
}

const (
	// long is a TTL that no case waits for.
	long = time.Minute
	// poll is the longest that a waiter may sleep between two tries.
	poll = 5 * time.Second
)

// soon is the limit for what should happen at once. A machine may well be that slow; nothing that waits for a TTL of a minute
// is that fast.
var soon = 10 * time.Second

// ttl is d, or the shortest TTL that the backend has if that is more.
func (t *trial) ttl(d time.Duration) time.Duration { return max(d, t.g.MinTTL) }

// brief is the TTL of leases that have to run out.
func (t *trial) brief() time.Duration { return t.ttl(max(400*time.Millisecond, 4*t.late)) }

// lively is the TTL of leases that have to be renewed in time, also by a process that does not get to run for a while, and
// by servers which then have to elect a leader.
func (t *trial) lively() time.Duration {
	least := 1500 * time.Millisecond
	if t.g.Exclusion >= paddock.Quorum {
		least *= 2
	}
	return t.ttl(max(least, 15*t.late))
}

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
