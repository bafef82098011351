package stampede_test

import (
	"context"
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

// raw is a Codec that does nothing.
type raw struct{}

func (raw) Encode(int) ([]byte, error) { return nil, nil }
func (raw) Decode([]byte) (int, error) { return 0, nil }

// BenchmarkHit is what the cache itself adds to a hit.
func BenchmarkHit(b *testing.B) {
	cache, err := stampede.New[int](memstore.New(nil), stampede.Policies{{Pattern: "*", TTL: time.Hour}},
		&stampede.Options[int]{Codec: raw{}})
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
