package storetest

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
)

func cacheSchedules(tb testing.TB, s Store) {
	lock := memlock.New(nil)
	tb.Cleanup(func() { lock.Close() })
	key, name := freshKey("k"), "storetest"
	var caches []*stampede.Cache[int64]
	for range 3 {
		locker := memlock.New(&memlock.Options{Shared: lock})
		tb.Cleanup(func() { locker.Close() })
		c, err := stampede.New(s.Open(tb), stampede.Policies{{
			Pattern: "*", Locker: locker, TTL: 50 * time.Millisecond, StaleFor: 100 * time.Millisecond, LockTTL: time.Second,
			MaxWait: 10 * time.Second,
		}}, &stampede.Options[int64]{Name: name})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { c.Close() })
		caches = append(caches, c)
	}
	var src source
	var served [7]atomic.Int64
	crowd(tb, map[string]func(*rand.Rand) error{
		"get": func(r *rand.Rand) error {
			pause(r, 5*time.Millisecond)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if r.IntN(10) == 0 { // one that leaves early
				cancel()
				ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.Int64N(int64(5*time.Millisecond))))
			}
			defer cancel()
			seed := r.Uint64()
			floor := src.floor.Load()
			res, err := caches[r.IntN(len(caches))].Lookup(ctx, key, func(context.Context) (int64, error) {
				v := src.version.Load()
				pause(rand.New(rand.NewPCG(seed, 0)), 20*time.Millisecond)
				return v, nil
			})
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			served[res.Status].Add(1)
			if res.Value < floor {
				tb.Errorf("served version %d (%v, %v old) after version %d was acknowledged", res.Value, res.Status, res.Age, floor)
			}
			return nil
		},
		"change": func(r *rand.Rand) error {
			pause(r, 40*time.Millisecond)
			return src.change(func() error { return caches[r.IntN(len(caches))].Invalidate(context.Background(), key) })
		},
		"evict": func(r *rand.Rand) error {
			pause(r, 20*time.Millisecond)
			if s.EvictEntry != nil && s.EvictTicket != nil {
				if r.IntN(2) == 0 {
					s.EvictEntry(tb, name+"/"+key)
				} else {
					s.EvictTicket(tb, name+"/"+key)
				}
			}
			return nil
		},
		"expire": func(r *rand.Rand) error { // a holder that is deposed while it loads
			pause(r, 30*time.Millisecond)
			lock.Expire("cache/" + name + "/" + key)
			return nil
		},
	}, map[string]int{"get": 12, "change": 1, "evict": 1, "expire": 1})
	for status := range served {
		if n := served[status].Load(); n > 0 {
			tb.Logf("%v: %d", stampede.Status(status), n)
		}
	}
}
