package conformance

import (
	"context"
	"crypto/rand"
	"sync/atomic"
	"testing"

	"github.com/paddock-go/paddock"
)

// Benchmark measures the Lockers that be opens: an uncontended acquisition with its release, a refused try, and the
// hand-off of one key between waiters.
func Benchmark(b *testing.B, be Backend) {
	key := func(b *testing.B) string { return b.Name() + "-" + rand.Text()[:8] }
	open := func(b *testing.B) paddock.Locker {
		l := be.Open(b)
		b.Cleanup(func() {
			if err := l.Close(); err != nil {
				b.Errorf("Close: %v", err)
			}
		})
		return l
	}
	opts := &paddock.Options{TTL: long}

	b.Run("Uncontended", func(b *testing.B) {
		l, key := open(b), key(b)
		for b.Loop() {
			pair(b, l, key, opts)
		}
	})
	b.Run("Refused", func(b *testing.B) {
		l, key := open(b), key(b)
		lease, err := open(b).Acquire(b.Context(), key, opts)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := l.TryAcquire(b.Context(), key, opts); err == nil {
				b.Fatal("TryAcquire of a held key was granted")
			}
		}
		if err := lease.Release(context.Background()); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("HandOff", func(b *testing.B) {
		fleet := []paddock.Locker{open(b), open(b)}
		key := key(b)
		var next atomic.Int64
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			l := fleet[next.Add(1)%int64(len(fleet))]
			for pb.Next() {
				pair(b, l, key, opts)
			}
		})
	})
}

func pair(b *testing.B, l paddock.Locker, key string, opts *paddock.Options) {
	lease, err := l.Acquire(context.Background(), key, opts)
	if err != nil {
		b.Error(err)
		return
	}
	if err := lease.Release(context.Background()); err != nil {
		b.Error(err)
	}
}
