package bench

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/redislock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/redisstore"
)

// raw is a codec that does nothing, so that the round trip is measured and not JSON.
type raw struct{}

func (raw) Encode(s string) ([]byte, error) { return []byte(s), nil }
func (raw) Decode(b []byte) (string, error) { return string(b), nil }

func cache(b *testing.B, c redis.UniversalClient, ttl time.Duration) *stampede.Cache[string] {
	l, err := redislock.New(c, nil)
	keep(b, l, err)
	store, err := redisstore.New(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	cache, err := stampede.New(store, stampede.Policies{{Pattern: "*", Locker: l, TTL: ttl, Jitter: -1, OnContention: stampede.Wait}},
		&stampede.Options[string]{Codec: raw{}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cache.Close() })
	return cache
}

// A value that is there, beside a bare GET of as many bytes: the store's one round trip, of a PTTL and a GET, and the whole call. No side
// decodes anything.
func BenchmarkCacheHit(b *testing.B) {
	ctx := context.Background()
	c := client(b, servers.SharedRedis(b))
	value := strings.Repeat("v", 1024)
	cached := cache(b, c, time.Hour)
	if err := cached.Set(ctx, "hit", value); err != nil {
		b.Fatal(err)
	}
	store, err := redisstore.New(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Set(ctx, "bare-hit", value, 0).Err(); err != nil {
		b.Fatal(err)
	}
	compare(b,
		variant{"bare", func() error { return c.Get(ctx, "bare-hit").Err() }},
		variant{"store", func() error {
			_, err := store.Get(ctx, "default/hit")
			return err
		}},
		variant{"paddock", func() error {
			_, err := cached.Get(ctx, "hit", func(context.Context) (string, error) { return value, nil })
			return err
		}},
	)
}

// post is what services cache.
type post struct {
	ID            int
	Title, Author string
	Tags          []string
	Votes         map[string]int
}

// The same with values that are JSON, which whoever GETs them by himself has to decode as well.
func BenchmarkCacheHitJSON(b *testing.B) {
	ctx := context.Background()
	c := client(b, servers.SharedRedis(b))
	store, err := redisstore.New(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	cached, err := stampede.New[[]post](store, stampede.Policies{{Pattern: "*", TTL: time.Hour}}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cached.Close() })
	var posts []post
	for i := range 10 {
		posts = append(posts, post{i, strings.Repeat("title ", 5), "author", []string{"a", "b"}, map[string]int{"up": i, "down": 2}})
	}
	load := func(context.Context) ([]post, error) { return posts, nil }
	if err := cached.Set(ctx, "hit-json", posts); err != nil {
		b.Fatal(err)
	}
	encoded, err := json.Marshal(posts)
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Set(ctx, "bare-hit-json", encoded, 0).Err(); err != nil {
		b.Fatal(err)
	}
	compare(b,
		variant{"bare", func() error {
			found, err := c.Get(ctx, "bare-hit-json").Bytes()
			if err != nil {
				return err
			}
			var posts []post
			return json.Unmarshal(found, &posts)
		}},
		variant{"paddock", func() error { _, err := cached.Get(ctx, "hit-json", load); return err }},
	)
}

// 1,000 goroutines on a key that has just been invalidated, with a load of 20 ms: how long after the load the last of them is done.
func BenchmarkCacheHerd(b *testing.B) {
	const load = 20 * time.Millisecond
	ctx := context.Background()
	cached := cache(b, client(b, servers.SharedRedis(b)), time.Hour)
	var loads atomic.Int64
	var late []time.Duration
	for range b.N {
		if err := cached.Invalidate(ctx, "herd"); err != nil {
			b.Fatal(err)
		}
		begun := time.Now()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, err := cached.Get(ctx, "herd", func(context.Context) (string, error) {
					loads.Add(1)
					time.Sleep(load)
					return "value", nil
				}); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		late = append(late, time.Since(begun)-load)
	}
	b.ReportMetric(float64(loads.Load())/float64(b.N), "loads/herd")
	b.ReportMetric(float64(median(late).Microseconds())/1000, "late-ms")
}
