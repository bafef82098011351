package zklock

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

func locker(tb testing.TB, addrs []string, o Options) *Locker {
	tb.Helper()
	if o.SessionTimeout == 0 {
		o.SessionTimeout, o.TickTime = 2*time.Second, 200*time.Millisecond
	}
	l, err := New(addrs, &o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			tb.Error(err)
		}
	})
	return l
}

func TestSmoke(t *testing.T) {
	addrs := servers.SharedZooKeeper(t)
	l := locker(t, addrs, Options{Logger: tlog{t}})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	key := "smoke/" + uuid.NewString()
	for range 3 {
		begun := time.Now()
		lease, err := l.Acquire(ctx, key, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(lease.Token(), lease.TTL(), time.Until(lease.Deadline()), time.Since(begun))
		if _, err := l.TryAcquire(ctx, key, nil); err == nil {
			t.Fatal("two")
		} else {
			t.Log(err)
		}
		h, err := paddock.Inspect(ctx, l, key)
		t.Log(h, err)
		go func() {
			time.Sleep(3 * time.Second)
			t.Log(time.Until(lease.Deadline()), lease.Err())
			lease.Release(ctx)
		}()
		next, err := l.Acquire(ctx, key, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(time.Until(next.Deadline()))
		if err := next.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

type tlog struct{ t *testing.T }

func (l tlog) Printf(f string, a ...any) { l.t.Logf(f, a...) }
