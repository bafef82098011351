package memlock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/fencing"
)

// TestConformance has Lockers as users do, whose calls are made inline.
func TestConformance(t *testing.T) {
	n := newNetwork()
	b := n.backend()
	b.Open = func(testing.TB) paddock.Locker {
		return open(Options{Shared: n.server}, func(b backend.Backend) backend.Backend { return counted{b, &n.sent} }, true)
	}
	conformance.Run(t, b)
}

// TestConformanceByNetwork has every Locker behind a link, whose calls may be abandoned.
func TestConformanceByNetwork(t *testing.T) {
	n := newNetwork()
	b := n.backend()
	b.Open = func(tb testing.TB) paddock.Locker {
		l, _ := n.open(tb)
		return l
	}
	conformance.Run(t, b)
}

func BenchmarkConformance(b *testing.B) {
	n := newNetwork()
	conformance.Benchmark(b, conformance.Backend{Open: func(testing.TB) paddock.Locker { return New(&Options{Shared: n.server}) }})
}

// Below are the things that only memlock has. Time is that of a bubble.

func (l *Locker) hold(t *testing.T, key string, opts *paddock.Options) *paddock.Lease {
	t.Helper()
	lease, err := l.Acquire(t.Context(), key, opts)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func (l *Locker) end(t *testing.T) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	<-l.Done()
}

// outcome is what an acquisition in the background came to, and when.
type outcome struct {
	lease *paddock.Lease
	err   error
	at    time.Time
}

func (l *Locker) waiting(t *testing.T, key string, opts *paddock.Options) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), key, opts)
		out <- outcome{lease, err, time.Now()}
	}()
	synctest.Wait()
	return out
}

func TestExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil)
		other := New(&Options{Shared: l})
		if l.Expire("k") {
			t.Error("Expire of a free key found a lease")
		}
		lease := l.hold(t, "k", nil)
		waiter := other.waiting(t, "k", nil)
		if !other.Expire("k") {
			t.Error("Expire found no lease")
		}
		next := <-waiter
		if next.err != nil || next.lease.Token() <= lease.Token() {
			t.Fatalf("the waiter got %v, %v after token %d", next.lease, next.err, lease.Token())
		}
		synctest.Wait()
		if cause := context.Cause(lease.Context()); !errors.Is(cause, paddock.ErrLost) {
			t.Errorf("the cause of the expired lease's context is %v; want ErrLost", cause)
		}
		if err := lease.Release(t.Context()); !errors.Is(err, paddock.ErrLost) {
			t.Errorf("Release of the expired lease: %v; want ErrLost", err)
		}
		time.Sleep(time.Minute)
		if err := next.lease.Release(t.Context()); err != nil {
			t.Errorf("Release of the next holder: %v", err)
		}
		l.end(t)
		other.end(t)
	})
}

func TestCutHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil)
		other := New(&Options{Shared: l})
		lease := l.hold(t, "k", nil)
		l.Cut()
		waiter := other.waiting(t, "k", nil)
		next := <-waiter
		if next.err != nil || next.at.Before(lease.Deadline()) || lease.Err() == nil {
			t.Errorf("the next holder entered at %v: %v; the Deadline was %v, Err is %v", next.at, next.err, lease.Deadline(), lease.Err())
		}
		if _, err := l.TryAcquire(t.Context(), "free", nil); !errors.Is(err, paddock.ErrUnavailable) {
			t.Errorf("TryAcquire of one that is cut off: %v; want ErrUnavailable", err)
		}
		if _, err := l.Inspect(t.Context(), "k"); !errors.Is(err, paddock.ErrUnavailable) {
			t.Errorf("Inspect of one that is cut off: %v; want ErrUnavailable", err)
		}
		l.Cut() // again
		l.Restore()
		l.Restore()
		if h, err := l.Inspect(t.Context(), "k"); err != nil || h.Owner != next.lease.Owner() {
			t.Errorf("Inspect after Restore: %+v, %v", h, err)
		}
		if err := next.lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		l.end(t)
		other.end(t)
	})
}

// TestCutWaiter: a waiter that is cut off gets neither the key nor stuck.
func TestCutWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil)
		other := New(&Options{Shared: l})
		lease := other.hold(t, "k", nil)
		waiter := l.waiting(t, "k", &paddock.Options{TTL: time.Second})
		time.Sleep(time.Hour)
		l.Cut()
		cut := time.Now()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		o := <-waiter
		if !errors.Is(o.err, paddock.ErrUnavailable) {
			t.Errorf("a waiter that is cut off: %v, %v; want ErrUnavailable", o.lease, o.err)
		}
		if took := o.at.Sub(cut); took < 5*time.Second || took > 8*time.Second {
			t.Errorf("a waiter that is cut off gave up after %v; want 5 s and little more", took)
		}
		if next := <-other.waiting(t, "k", nil); next.err != nil {
			t.Errorf("the next waiter: %v", next.err)
		} else if err := next.lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		l.Restore()
		l.end(t)
		other.end(t)
		if left := l.memory.table.left(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

func TestAcquireWhileCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil)
		l.Cut()
		waiter := l.waiting(t, "k", nil)
		time.Sleep(10 * time.Second)
		l.Restore()
		o := <-waiter
		if o.err != nil {
			t.Fatalf("an Acquire that outlives the cut: %v", o.err)
		}
		if err := o.lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		l.Cut()
		begun := time.Now()
		if o := <-l.waiting(t, "k", nil); !errors.Is(o.err, paddock.ErrUnavailable) || o.at.Sub(begun) < 15*time.Second {
			t.Errorf("an Acquire that does not: %v after %v; want ErrUnavailable after the TTL of 15 s", o.err, o.at.Sub(begun))
		}
		l.Restore()
		l.end(t)
	})
}

func TestAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(nil)
		ttl := 15 * time.Second
		renewed, fixed := l.hold(t, "renewed", &paddock.Options{TTL: ttl}), l.hold(t, "fixed", &paddock.Options{TTL: ttl, NoRenew: true})
		l.Advance(8 * time.Second)
		time.Sleep(6 * time.Second)
		if err := errors.Join(renewed.Err(), fixed.Err()); err != nil {
			t.Fatalf("14 s of 15 have passed: %v", err)
		}
		l.Advance(2 * time.Second)
		if renewed.Err() != nil || !errors.Is(fixed.Err(), paddock.ErrLost) {
			t.Errorf("16 s have passed: renewed %v, not renewed %v; want ErrLost for the latter", renewed.Err(), fixed.Err())
		}
		waiter := l.waiting(t, "renewed", nil)
		l.Advance(ttl)
		if !errors.Is(renewed.Err(), paddock.ErrLost) {
			t.Errorf("a whole TTL has passed at once: %v; want ErrLost", renewed.Err())
		}
		if o := <-waiter; o.err != nil {
			t.Error(o.err)
		} else if err := o.lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		l.end(t)
	})
}

func TestFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := New(nil)
		lockers := []*Locker{first, New(&Options{Shared: first}), New(&Options{Shared: first})}
		lease := first.hold(t, "k", nil)
		var waiters []<-chan outcome
		for i := range 99 {
			waiters = append(waiters, lockers[i%3].waiting(t, "k", nil))
		}
		for i, w := range waiters {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			select {
			case o := <-w:
				if lease = o.lease; o.err != nil {
					t.Fatal(o.err)
				}
			default:
				t.Fatalf("waiter %d is not served in its turn", i)
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		for _, l := range lockers {
			l.end(t)
		}
	})
}

// TestTenThousandLeases: they are renewed in batches, by a number of goroutines that does not depend on theirs.
func TestTenThousandLeases(t *testing.T) {
	const leases = 10_000
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		l := open(Options{}, func(b backend.Backend) backend.Backend { return counted{b, &sent} }, false)
		l.hold(t, "warm", nil)
		synctest.Wait()
		before := runtime.NumGoroutine()
		held := make([]*paddock.Lease, leases)
		for i := range held {
			held[i] = l.hold(t, fmt.Sprint(i), nil)
		}
		begun := sent.Load()
		for range 20 {
			time.Sleep(time.Second)
			synctest.Wait()
			if n := runtime.NumGoroutine() - before; n > 20 {
				t.Fatalf("%d leases have %d goroutines", leases, n)
			}
		}
		// 20 s are 4 periods of 5 s, less a tenth.
		batches := int64((leases + 255) / 256)
		if n := sent.Load() - begun; n < 3*batches || n > 10*batches {
			t.Errorf("%d leases were renewed by %d calls in 20 s; want about %d", leases, n, 4*batches)
		}
		for _, lease := range held {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatalf("one of %d leases: %v", leases, err)
			}
		}
		l.end(t)
	})
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(&Options{Latency: time.Millisecond})
		begun := time.Now()
		lease := l.hold(t, "k", nil)
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took != 2*time.Millisecond {
			t.Errorf("two commands of 1 ms took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond/2)
		defer cancel()
		if _, err := l.TryAcquire(ctx, "k", nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 2500*time.Microsecond {
			t.Errorf("a ctx of half a command: %v after %v", err, time.Since(begun))
		}
		l.end(t)
	})
}

func TestPrefixAndDomain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(&Options{Prefix: "a"})
		b := New(&Options{Prefix: "b", Domain: "elsewhere", Shared: a})
		for l, domain := range map[*Locker]string{a: "memory", b: "elsewhere"} {
			lease := l.hold(t, "k", nil) // or they would meet
			if got := lease.Fence().Domain; got != domain {
				t.Errorf("the domain is %q; want %q", got, domain)
			}
			if now := fencing.Token(time.Now().UnixMicro()); lease.Token() < now {
				t.Errorf("token %d lies behind the clock, %d: after a restart of the process it would be used again", lease.Token(), now)
			}
			defer l.end(t)
			defer lease.Release(t.Context())
		}
	})
}

func TestURL(t *testing.T) {
	l, err := paddock.Open(t.Context(), "memory:?prefix=a&domain=d&close_wait=2s", nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := paddock.Open(t.Context(), "memory:", nil)
	if err != nil {
		t.Fatal(err)
	}
	for l, domain := range map[paddock.Locker]string{l: "d", other: "memory"} {
		lease, err := l.TryAcquire(t.Context(), "k", nil)
		if err != nil || lease.Fence().Domain != domain {
			t.Fatalf("TryAcquire = %v, %v; want the domain %q", lease, err, domain)
		}
		if err := errors.Join(lease.Release(t.Context()), l.Close()); err != nil {
			t.Error(err)
		}
	}
	for _, u := range []string{
		"memory://host", "memory:///path", "memory://user@", "memory:?prefix=", "memory:?prefix=a&prefix=b", "memory:?close_wait=soon",
		"memory:?latency=1s", "memory:?prefix=%zz",
	} {
		if l, err := paddock.Open(t.Context(), u, nil); !errors.Is(err, paddock.ErrInvalid) {
			t.Errorf("Open(%q) = %v, %v; want ErrInvalid", u, l, err)
		}
	}
}
