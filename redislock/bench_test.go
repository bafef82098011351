package redislock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/internal/rediswire"
	"github.com/paddock-go/paddock/internal/servers"
)

// pairs are the ways to take and give up a lock that the benchmarks compare.
func pairs(tb testing.TB) map[string]func(context.Context) error {
	client := redis.NewClient(&redis.Options{Addr: servers.SharedRedis(tb)})
	tb.Cleanup(func() { client.Close() })
	l, err := New(client, &Options{Prefix: "bench-" + uuid.NewString()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	opts := &paddock.Options{TTL: time.Minute, Note: "bench"}
	ttl := opts.TTL.Milliseconds()
	eval := func(ctx context.Context, c *rediswire.Call) error {
		_, err := l.server.eval(ctx, c)
		return err
	}
	plainSet := rediswire.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`)
	plainDel := rediswire.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	return map[string]func(context.Context) error{
		// What the library makes of it.
		"locked": func(ctx context.Context) error {
			lease, err := l.Acquire(ctx, "locked", opts)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		},
		// The same two scripts and nothing else.
		"bare": func(ctx context.Context) error {
			lock, fence := l.server.names("bare")
			owner := uuid.NewString()
			if err := eval(ctx, acquire.Call(ctx, "2", fence, lock, owner, ttl, opts.Note)); err != nil {
				return err
			}
			return eval(ctx, release.Call(ctx, "1", lock, owner, l.server.channel, l.server.message("bare")))
		},
		// The least that a lock needs, without fencing, notes and waiters.
		"plain": func(ctx context.Context) error {
			lock, _ := l.server.names("plain")
			owner := uuid.NewString()
			if err := eval(ctx, plainSet.Call(ctx, "1", lock, owner, ttl)); err != nil {
				return err
			}
			return eval(ctx, plainDel.Call(ctx, "1", lock, owner))
		},
	}
}

func BenchmarkPair(b *testing.B) {
	for name, pair := range pairs(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := pair(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRatio alternates between the pairs in blocks of random order, since a machine of two cores has two speeds, and
// reports medians and what they are to each other.
func BenchmarkRatio(b *testing.B) {
	pairs := pairs(b)
	names := []string{"plain", "bare", "locked"}
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
		d := took[name]
		slices.Sort(d)
		return float64(d[len(d)/2])
	}
	b.ReportMetric(median("plain"), "plain-ns")
	b.ReportMetric(median("bare"), "bare-ns")
	b.ReportMetric(median("locked"), "locked-ns")
	b.ReportMetric(median("locked")/median("bare"), "locked/bare")
	b.ReportMetric(median("bare")/median("plain"), "bare/plain")
}

// BenchmarkRenew renews a whole batch.
func BenchmarkRenew(b *testing.B) {
	f := shared(b, redis.Options{})
	batch := make([]backend.Renewal, 256)
	for i := range batch {
		a := attempt(fmt.Sprint("k", i), time.Hour)
		f.grant(b, a)
		batch[i] = backend.Renewal{Attempt: a, TTL: time.Hour}
	}
	b.ReportAllocs()
	for b.Loop() {
		f.server.Renew(b.Context(), batch)
		if err := batch[255].Err; err != nil {
			b.Fatal(err)
		}
	}
}
