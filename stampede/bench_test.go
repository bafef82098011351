package stampede_test

import (
	"context"
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

// BenchmarkHit is what the cache itself adds to a hit.
func BenchmarkHit(b *testing.B) {
	cache, err := stampede.New[int](memstore.New(nil), stampede.Policies{{Pattern: "*", TTL: time.Hour}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer cache.Close()
	load := func(context.Context) (int, error) { return 42, nil }
	b.ReportAllocs()
	for b.Loop() {
		if _, err := cache.Get(b.Context(), "hit", load); err != nil {
			b.Fatal(err)
		}
	}
}
