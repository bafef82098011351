package stampede

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// ManyError is the error of GetMany and LookupMany: what went wrong for each key that they have no answer for.
type ManyError struct {
	Errors map[string]error
}

// Error has the errors in the order of their keys.
func (e *ManyError) Error() string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(e.Errors)) {
		lines = append(lines, fmt.Sprintf("%q: %v", key, e.Errors[key]))
	}
	return fmt.Sprintf("stampede: no answer for %d keys: %s", len(lines), strings.Join(lines, "; "))
}

// Unwrap is all of them.
func (e *ManyError) Unwrap() []error { return slices.Collect(maps.Values(e.Errors)) }

// GetMany is Get for several keys. What the store has of them costs one round trip. Of the others, those whose locks could be had at
// once are loaded by one call of load, on a context of its own, stored and released; only then are those waited for that
// others load, so that no lock is ever held while waiting for another's. When such a wait is in vain, load is called for that key alone.
// Loads without the lock take one place of MaxConcurrentLoads together; what has to wait for one is loaded by a call of its own.
//
// load returns a value for each of the keys it is given; a key without one is not found. What is not found is not in the result
// either, and is no error. Any other error of a key is in the *ManyError that is returned beside the values of the other keys.
// The fences are in load's context, see FenceOf.
func (c *Cache[V]) GetMany(ctx context.Context, keys []string, load func(ctx context.Context, keys []string) (map[string]V, error)) (map[string]V, error) {
	results, err := c.LookupMany(ctx, keys, load)
	values := make(map[string]V, len(results))
	for key, r := range results {
		values[key] = r.Value
	}
	return values, err
}

// LookupMany is GetMany with all that is known about the values.
func (c *Cache[V]) LookupMany(ctx context.Context, keys []string, load func(ctx context.Context, keys []string) (map[string]V, error)) (map[string]Result[V], error) {
	begun := time.Now()
	results, failed := map[string]Result[V]{}, map[string]error{}
	done := func(v *visit[V], r Result[V], err error) {
		r.Backend = v.p.backend
		c.observe(v.key, begun, r, err)
		switch {
		case err == nil:
			results[v.key] = r
		case !errors.Is(err, ErrNotFound):
			failed[v.key] = err
		}
	}
	visits, err := c.visits(ctx, keys, begun)
	if err != nil || len(visits) == 0 {
		return results, err
	}
	b := newBatch(ctx, load)
	waits := make([]*member[V], len(visits))
	for i, f := range c.fetchMany(ctx, visits) {
		v := visits[i]
		if f.err != nil && ctx.Err() != nil { // which is this caller's end, and no reason for others to do without the store
			done(v, Result[V]{}, ended(ctx, v.key))
			continue
		}
		v.batch, v.load = b, func(ctx context.Context) (V, error) { return part[V](ctx, v.key, v.p) }
		var r Result[V]
		if waits[i], r, err = v.decide(f); waits[i] == nil {
			done(v, r, err)
		}
	}
	b.seal()
	for i, m := range waits {
		if m == nil {
			continue
		}
		v := visits[i]
		r, err, again := v.await(m)
		if again {
			v.batch, v.load = nil, func(ctx context.Context) (V, error) { return b.alone(ctx, v.key) }
			r, err = v.serve(time.Time{})
		}
		done(v, r, err)
	}
	if len(failed) > 0 {
		return results, &ManyError{failed}
	}
	return results, nil
}

// visits is one for each key, in their order.
func (c *Cache[V]) visits(ctx context.Context, keys []string, begun time.Time) ([]*visit[V], error) {
	var visits []*visit[V]
	seen := map[string]bool{}
	for _, key := range keys {
		if seen[key] {
			continue
		}
		seen[key] = true
		p, err := c.check(ctx, key, true)
		if err != nil {
			return nil, err
		}
		if loads(ctx, c, key) {
			return nil, fmt.Errorf("%w: %q: %w", ErrInvalid, key, errOwnKey)
		}
		visits = append(visits, &visit[V]{c: c, ctx: ctx, key: key, p: p, begun: begun})
	}
	return visits, nil
}

// fetchMany reads all keys in one round trip.
func (c *Cache[V]) fetchMany(ctx context.Context, visits []*visit[V]) []*found[V] {
	fs, names := make([]*found[V], len(visits)), make([]string, len(visits))
	for i, v := range visits {
		names[i] = c.storeKey(v.key)
	}
	var es []Entry
	at := time.Now()
	err := c.silence.now(at)
	if err == nil {
		err = c.ask(ctx, visits[0].key, func(ctx context.Context) (err error) {
			es, err = c.store.Get(ctx, names...)
			return err
		})
		if err != nil && ctx.Err() == nil {
			c.silence.failed(at, c.o.StoreTimeout, err)
			c.storeDown(visits[0].key, err)
		}
	}
	for i, v := range visits {
		fs[i] = &found[V]{at: at, err: err}
		if err == nil {
			fs[i].take(c, v.key, &es[i])
		}
	}
	return fs
}
