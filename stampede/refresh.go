package stampede

import "context"

// Refresh has key loaded anew, although what the store has may be fresh, and returns what was loaded. If another process, or
// another call, begins to load it meanwhile, that will do. A failure that is remembered does not keep it from trying.
func (c *Cache[V]) Refresh(ctx context.Context, key string, load func(ctx context.Context) (V, error)) (Result[V], error) {
	return c.observed(ctx, key, func(v *visit[V]) (Result[V], error) {
		v.load, v.anew = load, true
		return v.serve(v.begun)
	})
}

// renew joins a flight that replaces what was there when the call began.
func (v *visit[V]) renew(f *found[V]) (*member[V], Result[V], error) {
	switch {
	case v.first == "":
		v.first = f.Writer
	case f.Fresh() && f.Kind == Value && f.Writer != v.first:
		return nil, f.result(Waited), nil
	}
	m, err := v.c.join(v, nil)
	return m, Result[V]{}, err
}
