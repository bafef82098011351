package redisstore_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/redisstore"
)

// race is a child's part of a race: it calls, changes and invalidates for a while, with pauses of random lengths.
type race struct {
	Time   time.Duration
	Seed   uint64
	Broken string // what is wrong with its store, see broken; "": nothing
}

// seen is what it reports.
type seen struct {
	history
	Statuses map[string]int
	Loads    int
	Errors   map[string]int // of calls that came to none
	Last     string         // error of the call at the end, when all is quiet
}

// racer is a child of a race.
type racer struct {
	job
	bare  *redis.Client
	cache *stampede.Cache[int64]
	end   time.Time

	loads atomic.Int64
	mu    sync.Mutex
	seen  seen
}

func (j job) keys() []string { return []string{j.Key + "/a", j.Key + "/b"} }

func (j job) race() {
	client := redis.NewClient(&redis.Options{Addr: j.Addr, ContextTimeoutEnabled: true})
	good, err := redisstore.New(client, nil)
	check(err)
	var store stampede.Store = good
	if j.Race.Broken != "" {
		store = broken[j.Race.Broken](good)
	}
	r := &racer{job: j, bare: redis.NewClient(&redis.Options{Addr: j.Addr})}
	r.seen.Statuses, r.seen.Errors = map[string]int{}, map[string]int{}
	r.cache, err = stampede.New[int64](store, stampede.Policies{{
		Pattern: "*", Locker: lockers[j.Lock](new(atomic.Int64)), LockTTL: j.LockTTL, TTL: 60 * time.Millisecond, StaleFor: 200 * time.Millisecond,
		EarlyBeta: 1, MaxWait: 10 * time.Second,
	}}, nil)
	check(err)
	_, err = r.cache.Get(context.Background(), "warm/"+uuid.NewString(), func(context.Context) (int64, error) { return 0, nil })
	check(err)
	ready()
	r.end = time.Now().Add(j.Race.Time)
	var wg sync.WaitGroup
	for i, part := range []func(context.Context, *rand.Rand) error{r.get, r.get, r.get, r.get, r.getMany, r.refresh, r.change} {
		rnd := rand.New(rand.NewPCG(j.Race.Seed, uint64(i)))
		wg.Go(func() {
			for time.Now().Before(r.end) {
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				if err := part(ctx, rnd); err != nil {
					r.note(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, key := range j.keys() {
		if _, err := r.cache.Get(ctx, key, r.load(0)); err != nil {
			r.seen.Last = err.Error()
		}
	}
	r.seen.Loads = int(r.loads.Load())
	report(&r.seen)
}

func (r *racer) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for unwrapped := err; unwrapped != nil; unwrapped = errors.Unwrap(unwrapped) {
		err = unwrapped
	}
	r.seen.Errors[err.Error()]++
}

// draw draws a number for the history.
func (r *racer) draw(ctx context.Context) (int64, error) {
	return r.bare.Incr(ctx, r.Key+"/clock").Result()
}

func (r *racer) version(ctx context.Context) (int64, error) {
	v, err := r.bare.Get(ctx, r.Key+"/version").Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return v, err
}

// load reads the version, and returns it after a while.
func (r *racer) load(takes time.Duration) func(context.Context) (int64, error) {
	return func(ctx context.Context) (int64, error) {
		r.loads.Add(1)
		v, err := r.version(ctx)
		time.Sleep(takes)
		return v, err
	}
}

func (r *racer) saw(key string, begin, version int64, status stampede.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Statuses[status.String()]++
	r.seen.Served = append(r.seen.Served, served{key, begin, version, status.String()})
}
