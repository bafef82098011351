package redisstore_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/stampede"
)

// raw is no work, as for who GETs a string.
type raw struct{}

func (raw) Encode(s string) ([]byte, error) { return []byte(s), nil }
func (raw) Decode(b []byte) (string, error) { return string(b), nil }

// BenchmarkHit makes cache hits and bare GETs of the same value in turn, in blocks of random order, and reports how their
// medians compare. To decode a value, which who GETs it has to do as well, is not counted.
func BenchmarkHit(b *testing.B) {
	client, ctx := redis.NewClient(&redis.Options{Addr: servers.SharedRedis(b), ContextTimeoutEnabled: true}), b.Context()
	defer client.Close()
	value := strings.Repeat("x", 512)
	store := open(b, client)
	cache, err := stampede.New[string](store, stampede.Policies{{Pattern: "*", TTL: time.Hour}}, &stampede.Options[string]{Codec: raw{}})
	if err != nil {
		b.Fatal(err)
	}
	defer cache.Close()
	load := func(context.Context) (string, error) { return value, nil }
	if _, err := cache.Get(ctx, "hit", load); err != nil {
		b.Fatal(err)
	}
	if err := client.Set(ctx, "bare", value, time.Hour).Err(); err != nil {
		b.Fatal(err)
	}
	calls := []struct {
		name string
		call func() error
		took []time.Duration
	}{
		{name: "cache", call: func() error { _, err := cache.Get(ctx, "hit", load); return err }},
		{name: "store", call: func() error { _, err := store.Get(ctx, "default/hit"); return err }},
		{name: "get", call: func() error { return client.Get(ctx, "bare").Err() }},
	}
	for b.Loop() {
		for _, i := range rand.Perm(len(calls)) {
			for range 20 {
				begun := time.Now()
				if err := calls[i].call(); err != nil {
					b.Fatal(err)
				}
				calls[i].took = append(calls[i].took, time.Since(begun))
			}
		}
	}
	median := func(took []time.Duration) float64 {
		slices.Sort(took)
		return float64(took[len(took)/2])
	}
	bare := median(calls[2].took)
	b.ReportMetric(bare, "ns/bare-GET")
	b.ReportMetric(median(calls[0].took)/bare, "x-bare/cache")
	b.ReportMetric(median(calls[1].took)/bare, "x-bare/store")
}
