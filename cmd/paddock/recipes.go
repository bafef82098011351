package main

import (
	"context"
	"crypto/rand"
	"time"
)

const (
	recomputeTime = 200 * time.Millisecond
	valueTTL      = 10 * time.Second       // of what a recompute stores: longer than a row takes
	shortTTL      = 100 * time.Millisecond // of a lock: shorter than a recompute
	ampleTTL      = 5 * time.Second        // of a lock: longer than a row takes
	pollEvery     = 20 * time.Millisecond  // those who did not get a lock of the rows without paddock
)

// recipe answers one request of a row without paddock: from the cached value, or by a recompute.
type recipe func(ctx context.Context, c *caller) (trending, error)

// caller is one request of such a row.
type caller struct {
	commands
	valueKey, lockKey string
	loader            loader
	notes             *notes
}

// cached is the cached value.
func (c *caller) cached(ctx context.Context) (trending, bool, error) {
	stored, found, err := c.get(ctx, c.valueKey)
	if err != nil || !found {
		return trending{}, false, err
	}
	v, err := decode(stored)
	return v, err == nil, err
}

// recompute computes the value and caches it.
func (c *caller) recompute(ctx context.Context) (trending, error) {
	v, err := c.loader(ctx)
	if err != nil {
		return trending{}, err
	}
	return v, c.set(ctx, c.valueKey, encode(v), valueTTL)
}

// none: whoever finds nothing computes it.
func none(ctx context.Context, c *caller) (trending, error) {
	if v, found, err := c.cached(ctx); found || err != nil {
		return v, err
	}
	return c.recompute(ctx)
}

// checkThenSet looks whether the lock is there, and sets it if it is not. All who look before the first has set it go on.
func checkThenSet(ctx context.Context, c *caller) (trending, error) {
	for {
		if v, found, err := c.cached(ctx); found || err != nil {
			return v, err
		}
		locked, err := c.exists(ctx, c.lockKey)
		if err != nil {
			return trending{}, err
		}
		if !locked {
			if err := c.set(ctx, c.lockKey, "1", ampleTTL); err != nil {
				return trending{}, err
			}
			v, err := c.recompute(ctx)
			if err != nil {
				return trending{}, err
			}
			_, err = c.del(ctx, c.lockKey)
			return v, err
		}
		if err := pause(ctx, pollEvery); err != nil {
			return trending{}, err
		}
	}
}

// plainDel takes the lock in one command, but the lock is gone before the work is done, and its release deletes whatever lock
// is there by then.
func plainDel(ctx context.Context, c *caller) (trending, error) {
	return setNXThen(ctx, c, func(_ string, expired bool) error {
		deleted, err := c.del(ctx, c.lockKey)
		if deleted && expired {
			c.notes.stolen()
		}
		return err
	})
}

// tokenNoRenewal deletes its own lock only. The lock is gone before the work is done all the same.
func tokenNoRenewal(ctx context.Context, c *caller) (trending, error) {
	return setNXThen(ctx, c, func(token string, _ bool) error {
		deleted, err := c.compareAndDel(ctx, c.lockKey, token)
		if err == nil && !deleted {
			c.notes.late()
		}
		return err
	})
}

// setNXThen recomputes under a lock taken with SET NX PX. release is told whether the lock's TTL was surely over when it was called.
func setNXThen(ctx context.Context, c *caller, release func(token string, expired bool) error) (trending, error) {
	token := rand.Text()
	for {
		if v, found, err := c.cached(ctx); found || err != nil {
			return v, err
		}
		locked, err := c.setNX(ctx, c.lockKey, token, shortTTL)
		if err != nil {
			return trending{}, err
		}
		if locked {
			since := time.Now() // later than the server's own count
			v, err := c.recompute(ctx)
			if err != nil {
				return trending{}, err
			}
			return v, release(token, time.Since(since) > shortTTL)
		}
		if err := pause(ctx, pollEvery); err != nil {
			return trending{}, err
		}
	}
}
