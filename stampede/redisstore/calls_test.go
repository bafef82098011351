package redisstore_test

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// What a process of a race does.

type lookup func(ctx context.Context, key string, load func(context.Context) (int64, error)) (stampede.Result[int64], error)

func (r *racer) call(ctx context.Context, rnd *rand.Rand, lookup lookup) error {
	time.Sleep(moment(rnd, 10*time.Millisecond))
	if rnd.IntN(10) == 0 { // one that leaves early
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, moment(rnd, 50*time.Millisecond))
		defer cancel()
	}
	key := r.keys()[rnd.IntN(2)]
	begin, err := r.draw(ctx)
	if err != nil {
		return err
	}
	res, err := lookup(ctx, key, r.load(moment(rnd, 60*time.Millisecond)))
	if err == nil {
		r.saw(key, begin, res.Value, res.Status)
	}
	return err
}

func (r *racer) get(ctx context.Context, rnd *rand.Rand) error {
	return r.call(ctx, rnd, r.cache.Lookup)
}

func (r *racer) refresh(ctx context.Context, rnd *rand.Rand) error {
	time.Sleep(moment(rnd, 100*time.Millisecond))
	return r.call(ctx, rnd, r.cache.Refresh)
}

func (r *racer) getMany(ctx context.Context, rnd *rand.Rand) error {
	time.Sleep(moment(rnd, 50*time.Millisecond))
	begin, err := r.draw(ctx)
	if err != nil {
		return err
	}
	takes := moment(rnd, 60*time.Millisecond)
	rs, err := r.cache.LookupMany(ctx, r.keys(), func(ctx context.Context, keys []string) (map[string]int64, error) {
		v, err := r.load(takes)(ctx)
		values := map[string]int64{}
		for _, key := range keys {
			values[key] = v
		}
		return values, err
	})
	for key, res := range rs {
		r.saw(key, begin, res.Value, res.Status)
	}
	return err
}

// change makes a new version, and invalidates what is older or puts it in its place. One process at a time: what is set is the newest.
func (r *racer) change(ctx context.Context, rnd *rand.Rand) error {
	time.Sleep(moment(rnd, 400*time.Millisecond))
	writer := r.Key + "/writer"
	for {
		free, err := r.bare.SetNX(ctx, writer, "", 0).Result()
		if err != nil {
			return err
		}
		if free {
			break
		}
		time.Sleep(time.Millisecond)
	}
	defer r.bare.Del(context.Background(), writer)
	v, err := r.bare.Incr(ctx, r.Key+"/version").Result()
	if err != nil {
		return err
	}
	var key string
	if rnd.IntN(4) == 0 {
		key = r.keys()[rnd.IntN(2)]
		err = r.cache.Set(ctx, key, v)
	} else {
		err = r.cache.Invalidate(ctx, r.keys()...)
	}
	if err != nil {
		return err // it may have been done or not, so it says nothing
	}
	end, err := r.draw(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Changes = append(r.seen.Changes, change{key, v, end})
	return nil
}
