package zklock

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
)

// BenchmarkRatio compares taking and giving up a lock with the least that ZooKeeper can be asked for in its place: to create
// and delete an ephemeral node. It alternates between them in blocks of random order, since a machine of two cores has
// two speeds, and reports medians and what they are to each other.
func BenchmarkRatio(b *testing.B) {
	for name, nodes := range map[string]int{"Single": 1, "Ensemble": 3} {
		b.Run(name, func(b *testing.B) {
			benchmarkRatio(b, servers.ZooKeeper(b, nodes, "forceSync=yes").Endpoints())
		})
	}
}

func benchmarkRatio(b *testing.B, addrs []string) {
	o := Options{SessionTimeout: 20 * time.Second, TickTime: 200 * time.Millisecond}
	l := locker(b, addrs, o)
	opts := &paddock.Options{TTL: time.Minute, Note: "bench"}
	locked := func(ctx context.Context, key string) error {
		lease, err := l.Acquire(ctx, key, opts)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
	if err := locked(b.Context(), "warm"); err != nil {
		b.Fatal(err)
	}
	// On the same connection, so to the same member of the ensemble.
	conn := l.ensemble.session.conn
	bare := "/bare-" + uuid.NewString()
	pairs := map[string]func(context.Context) error{
		"bare": func(context.Context) error {
			if _, err := conn.Create(bare, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
				return err
			}
			return conn.Delete(bare, -1)
		},
		"same":  func(ctx context.Context) error { return locked(ctx, "warm") },
		"fresh": func(ctx context.Context) error { return locked(ctx, uuid.NewString()) },
	}
	names := []string{"bare", "same", "fresh"}
	took := map[string][]time.Duration{}
	for b.Loop() {
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			for range 20 {
				begun := time.Now()
				if err := pairs[name](b.Context()); err != nil {
					b.Fatal(err)
				}
				took[name] = append(took[name], time.Since(begun))
			}
		}
	}
	median := func(name string) float64 {
		slices.Sort(took[name])
		return float64(took[name][len(took[name])/2])
	}
	b.ReportMetric(median("bare"), "bare-ns")
	b.ReportMetric(median("same")/median("bare"), "same/bare")
	b.ReportMetric(median("fresh")/median("bare"), "fresh/bare")
}
