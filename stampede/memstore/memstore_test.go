package memstore_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
	"github.com/paddock-go/paddock/stampede/storetest"
)

func TestStore(t *testing.T) {
	for name, latency := range map[string]time.Duration{"at once": 0, "over a network": 500 * time.Microsecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := memstore.New(&memstore.Options{Latency: latency})
			storetest.Run(t, storetest.Store{
				Open:        func(testing.TB) stampede.Store { return s },
				EvictEntry:  func(_ testing.TB, key string) { s.EvictEntry(key) },
				EvictTicket: func(_ testing.TB, key string) { s.EvictTicket(key) },
				Spoil: func(tb testing.TB, key string) {
					if err := s.Set(context.Background(), key, stampede.Entry{Kind: stampede.Foreign, TTL: time.Minute}); err != nil {
						tb.Fatal(err)
					}
				},
			})
		})
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := stampede.Entry{Kind: stampede.Value, Value: make([]byte, 100), TTL: time.Hour}
	for name, s := range map[string]*memstore.Store{
		"keys":  memstore.New(&memstore.Options{MaxKeys: 10}),
		"bytes": memstore.New(&memstore.Options{MaxBytes: 1010}),
	} {
		for i := range 100 {
			if err := s.Set(ctx, strconv.Itoa(i%10), e); err != nil {
				t.Fatal(err)
			}
			if err := s.Set(ctx, "x"+strconv.Itoa(i), e); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Get(ctx, "0"); err != nil { // used all the time
				t.Fatal(err)
			}
		}
		if n := s.Len(); n > 10 || n < 5 {
			t.Errorf("%s: %d keys, want at most 10", name, n)
		}
		if es, err := s.Get(ctx, "0"); err != nil || es[0].Kind != stampede.Value {
			t.Errorf("%s: what is used all the time was forgotten: %v, %v", name, es, err)
		}
	}
	s := memstore.New(&memstore.Options{MaxBytes: 50})
	if err := s.Set(ctx, "k", e); err != nil || s.Len() != 0 {
		t.Errorf("an entry beyond the bound: %v, %d keys", err, s.Len())
	}
}
