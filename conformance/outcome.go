package conformance

import (
	"context"
	"time"

	"github.com/paddock-go/paddock"
)

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
