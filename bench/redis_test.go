package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/servers"
	"github.com/paddock-go/paddock/redislock"
	"github.com/paddock-go/paddock/redlock"
)

var (
	setNX = redis.NewScript(`return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])`)
	cad   = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

func client(tb testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}) // as the documentation recommends
	tb.Cleanup(func() { c.Close() })
	return c
}

func pair(l paddock.Locker, key string) func() error {
	ctx := context.Background()
	return func() error {
		lease, err := l.TryAcquire(ctx, key, nil)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}
}

func keep[L paddock.Locker](tb testing.TB, l L, err error) L {
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// One acquire and release, nobody else there. The bare calls are SET NX PX and compare-and-delete, each one EVALSHA.
func BenchmarkRedisUncontended(b *testing.B) {
	ctx := context.Background()
	addr := servers.SharedRedis(b)
	c := client(b, addr)
	l, err := redislock.New(c, nil)
	keep(b, l, err)
	peer := bsm.New(c)
	rs := redsync.New(goredis.NewPool(c))
	rl, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer rl.Close()
	compare(b,
		variant{"bare", func() error {
			owner := uuid.NewString()
			if err := setNX.EvalSha(ctx, c, []string{"bare"}, owner, 15000).Err(); err != nil {
				if err := setNX.Load(ctx, c).Err(); err != nil {
					return err
				}
				return cad.Load(ctx, c).Err()
			}
			return cad.EvalSha(ctx, c, []string{"bare"}, owner).Err()
		}},
		variant{"paddock", pair(l, "uncontended")},
		variant{"bsm-redislock", func() error {
			lock, err := peer.Obtain(ctx, "bsm", 15*time.Second, nil)
			if err != nil {
				return err
			}
			return lock.Release(ctx)
		}},
		variant{"redsync", func() error {
			m := rs.NewMutex("redsync", redsync.WithExpiry(15*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		}},
		variant{"rueidislock", func() error {
			_, cancel, err := rl.WithContext(ctx, "rueidislock")
			if err != nil {
				return err
			}
			cancel()
			return nil
		}},
	)
}

// 64 goroutines take turns on one key: the time of one hand-off. The bare one is a token that is passed by RPUSH and BLPOP.
func BenchmarkRedisHandOff(b *testing.B) {
	const goroutines = 64
	ctx := context.Background()
	addr := servers.SharedRedis(b)
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: goroutines + 4})
	defer c.Close()
	l, err := redislock.New(c, nil)
	keep(b, l, err)
	peer := bsm.New(c)
	rs := redsync.New(goredis.NewPool(c))
	crowd := func(turn func() error) func(*testing.B) {
		return func(b *testing.B) {
			turns := make(chan struct{}, b.N)
			for range b.N {
				turns <- struct{}{}
			}
			close(turns)
			var wg sync.WaitGroup
			for range goroutines {
				wg.Go(func() {
					for range turns {
						if err := turn(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		}
	}
	b.Run("blpop", func(b *testing.B) {
		key := "token/" + uuid.NewString()
		c.RPush(ctx, key, "token")
		crowd(func() error {
			if err := c.BLPop(ctx, 0, key).Err(); err != nil {
				return err
			}
			return c.RPush(ctx, key, "token").Err()
		})(b)
	})
	b.Run("paddock", crowd(func() error {
		lease, err := l.Acquire(ctx, "handoff", nil)
		if err != nil {
			return err
		}
		return lease.Release(ctx)
	}))
	b.Run("bsm-redislock", crowd(func() error {
		lock, err := peer.Obtain(ctx, "handoff-bsm", 15*time.Second, &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)})
		if err != nil {
			return err
		}
		return lock.Release(ctx)
	}))
	b.Run("redsync", crowd(func() error {
		m := rs.NewMutex("handoff-redsync", redsync.WithExpiry(15*time.Second), redsync.WithTries(10_000))
		if err := m.LockContext(ctx); err != nil {
			return err
		}
		_, err := m.UnlockContext(ctx)
		return err
	}))
}

// One acquire and release on five nodes, with and without the fence.
func BenchmarkRedlockUncontended(b *testing.B) {
	ctx := context.Background()
	var clients []redis.UniversalClient
	var pools []rsredis.Pool
	for _, addr := range servers.SharedRedlock(b) {
		c := client(b, addr)
		clients, pools = append(clients, c), append(pools, goredis.NewPool(c))
	}
	fenced, err := redlock.New(clients, nil)
	keep(b, fenced, err)
	plain, err := redlock.New(clients, &redlock.Options{NoFence: true, Prefix: "plain"})
	keep(b, plain, err)
	rs := redsync.New(pools...)
	compare(b,
		variant{"redsync", func() error {
			m := rs.NewMutex("redsync", redsync.WithExpiry(15*time.Second))
			if err := m.LockContext(ctx); err != nil {
				return err
			}
			_, err := m.UnlockContext(ctx)
			return err
		}},
		variant{"paddock-nofence", pair(plain, "uncontended")},
		variant{"paddock", pair(fenced, "uncontended")},
	)
}

// 1,000 leases held at once are renewed beside each other.
func BenchmarkRedisManyLeases(b *testing.B) {
	ctx := context.Background()
	l, err := redislock.New(client(b, servers.SharedRedis(b)), nil)
	keep(b, l, err)
	for range b.N {
		var leases []*paddock.Lease
		for i := range 1000 {
			lease, err := l.TryAcquire(ctx, fmt.Sprint("many/", i), &paddock.Options{TTL: 900 * time.Millisecond})
			if err != nil {
				b.Fatal(err)
			}
			leases = append(leases, lease)
		}
		time.Sleep(2 * time.Second)
		var errs []error
		for _, lease := range leases {
			errs = append(errs, lease.Release(ctx))
		}
		if err := errors.Join(errs...); err != nil {
			b.Fatal(err)
		}
	}
}
