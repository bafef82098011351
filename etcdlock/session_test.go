package etcdlock

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// What takes a minute, or the hands of the package itself, to see from outside.

func newTestLocker(t *testing.T) (*Locker, *clientv3.Client) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: servers.SharedEtcd(t), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	l, err := New(client, &Options{Prefix: "test-" + uuid.NewString()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, client
}

func eventually(t *testing.T, what string, ok func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for !ok(ctx) {
		if ctx.Err() != nil {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// only returns the one shared lease of l.
func only(t *testing.T, l *Locker) *lease {
	t.Helper()
	p := l.server.sessions
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ids) != 1 {
		t.Fatalf("%d shared leases; want 1", len(p.ids))
	}
	for _, on := range p.ids {
		return on
	}
	return nil
}

// A shared lease ends when nothing has hung on it for a while, and not before.
func TestIdleLeaseEnds(t *testing.T) {
	t.Parallel()
	l, client := newTestLocker(t)
	l.server.sessions.after = time.Millisecond
	held, err := l.Acquire(t.Context(), "held", &paddock.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	on := only(t, l)
	for range 20 { // more than three times the TTL, with and without other keys on it
		lease, err := l.Acquire(t.Context(), "k", &paddock.Options{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := held.Err(); err != nil || only(t, l) != on {
		t.Fatalf("a lease that was in use has ended: %v", err)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of an unused lease", func(ctx context.Context) bool {
		resp, err := client.TimeToLive(ctx, on.id)
		return err == nil && resp.TTL < 0
	})
	p := l.server.sessions
	p.mu.Lock()
	leases, owners := len(p.ids), len(p.owners)
	p.mu.Unlock()
	if leases != 0 || owners != 0 {
		t.Errorf("%d shared leases and %d owners are remembered; want none", leases, owners)
	}
	lease, err := l.Acquire(t.Context(), "k", &paddock.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A key that hangs on a lease which is kept alive, and that nobody knows of, would be held for ever.
func TestStraysAreDeleted(t *testing.T) {
	t.Parallel()
	l, client := newTestLocker(t)
	held, err := l.Acquire(t.Context(), "held", &paddock.Options{TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	own, err := l.Acquire(t.Context(), "own", &paddock.Options{TTL: time.Minute, NoRenew: true})
	if err != nil {
		t.Fatal(err)
	}
	stray := l.server.dir("stray") + uuid.NewString()
	p := l.server.sessions
	p.mu.Lock()
	on := p.shelves[1].leases[0]
	p.mu.Unlock()
	if _, err := client.Put(t.Context(), stray, "", clientv3.WithLease(on.id)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deletion of a stray", func(ctx context.Context) bool {
		resp, err := client.Get(ctx, stray)
		return err == nil && len(resp.Kvs) == 0
	})
	for _, lease := range []*paddock.Lease{held, own} {
		if err := lease.Err(); err != nil {
			t.Errorf("beside a stray: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// What the watch has missed it finds out when it begins again.
func TestWatchBeginsAgain(t *testing.T) {
	t.Parallel()
	l, client := newTestLocker(t)
	gone, err := l.Acquire(t.Context(), "gone", &paddock.Options{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	on := only(t, l)
	p := l.server.sessions
	p.mu.Lock()
	delete(p.ids, on.id) // so that the event says nothing
	p.mu.Unlock()
	if _, err := client.Revoke(t.Context(), on.id); err != nil {
		t.Fatal(err)
	}
	kept, err := l.Acquire(t.Context(), "kept", &paddock.Options{TTL: 2 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.ids[on.id] = on
	p.mu.Unlock()
	rev, err := p.reread()
	if err != nil || rev <= int64(kept.Token()) {
		t.Errorf("reread as of %d, %v; the last revision was %d", rev, err, kept.Token())
	}
	if gone.Err() == nil || kept.Err() != nil {
		t.Errorf("a lease that has ended: %v; one that has not: %v", gone.Err(), kept.Err())
	}
	if err := kept.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// One lease serves so many markers, and for so long, that late requests find theirs.
func TestMarkerLeases(t *testing.T) {
	t.Parallel()
	l, _ := newTestLocker(t)
	m := l.server.markers
	first, err := m.lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range perMarker {
		now, err := m.lease(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := i < perMarker-1; (now == first) != want {
			t.Fatalf("marker %d on the first lease: %v", i+2, !want)
		}
	}
	second, err := m.lease(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second.until = time.Now().Add(markerTTL/2 - time.Second)
	third, err := m.lease(t.Context())
	if err != nil || third == second {
		t.Fatalf("a marker on a lease that ends too soon, %v", err)
	}
	m.lost(third)
	if fourth, err := m.lease(t.Context()); err != nil || fourth == third {
		t.Fatalf("a marker on a lease that has ended, %v", err)
	}
}
