package stampede

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// visit is one call for one key.
type visit[V any] struct {
	c     *Cache[V]
	ctx   context.Context
	key   string
	p     *rule
	load  func(context.Context) (V, error)
	begun time.Time

	batch *batch[V] // that a flight which this visit starts is a part of
	quits bool      // it does not wait for others' loads, whatever the policy says
	anew  bool      // what the store has will not do: see Refresh
	first string    // with anew: the writer of the entry that was there when the call began

	stale   *found[V] // what may be served if nothing better comes
	patient bool      // MaxWait was over once, and the load that followed is waited for to its end
}

// serve finds an answer. It goes round again when a load that it joined turned out to be of no use to it. now is the time, or zero: to ask
// for it is a good part of what a hit costs.
func (v *visit[V]) serve(now time.Time) (Result[V], error) {
	for ; ; now = (time.Time{}) {
		m, r, err := v.approach(now)
		if m == nil {
			return r, err
		}
		r, err, again := v.await(m)
		if !again {
			return r, err
		}
	}
}

// approach joins a flight, unless the store has the answer.
func (v *visit[V]) approach(now time.Time) (*member[V], Result[V], error) {
	for ; ; now = (time.Time{}) {
		if !v.anew {
			if m := v.c.joinBlocking(v); m != nil {
				return m, Result[V]{}, nil
			}
		}
		f, lead, err := v.c.read(v.ctx, v.key, !v.anew, now)
		if err != nil {
			return nil, Result[V]{}, err
		}
		var m *member[V]
		var r Result[V]
		if f != nil {
			m, r, err = v.decide(f)
		}
		if lead {
			v.c.next(v.key)
		}
		if f != nil {
			return m, r, err
		}
	}
}

// decide says what follows from what the store has: an answer, or a flight to wait for.
func (v *visit[V]) decide(f *found[V]) (*member[V], Result[V], error) {
	if f.err != nil {
		if v.p.OnStoreDown == Fail {
			return nil, Result[V]{}, f.err
		}
		m, err := v.c.join(v, &detour{cause: f.err, storeless: true})
		return m, Result[V]{}, err
	}
	if v.anew {
		return v.renew(f)
	}
	if r, err, ok := v.answer(f, Fresh); ok {
		if r.Status == Fresh && v.c.early(v.p, f) && v.c.refresh(v, f.Writer) {
			r.Status = Early
		}
		return nil, r, err
	}
	v.stale = nil
	if f.Stale() {
		v.stale = f
	}
	if v.stale != nil && v.p.OnContention == ServeStale {
		if v.p.Refresh == Background {
			v.c.refresh(v, "")
		} else if m := v.c.lead(v); m != nil {
			return m, Result[V]{}, nil
		}
		return nil, f.result(Stale), nil
	}
	m, err := v.c.join(v, nil)
	return m, Result[V]{}, err
}

// answer is what f alone says: a fresh value, that there is none, or that the last load failed.
func (v *visit[V]) answer(f *found[V], s Status) (r Result[V], err error, ok bool) {
	switch {
	case f.Fresh() && f.Kind == Value:
		return f.result(s), nil, true
	case f.Fresh():
		return r, fmt.Errorf("%w: %q", ErrNotFound, v.key), true
	case f.Failure != "" && f.Stale():
		r = f.result(Stale)
		r.Cause = &RemoteError{Key: v.key, Message: f.Failure}
		return r, nil, true
	case f.Failure != "":
		return r, &RemoteError{Key: v.key, Message: f.Failure}, true
	}
	return r, nil, false
}

// await waits for the flight that m is in, for as long as the policy and the caller let it.
func (v *visit[V]) await(m *member[V]) (r Result[V], err error, again bool) {
	var limit <-chan time.Time
	if !v.patient {
		t := time.NewTimer(v.p.MaxWait - time.Since(v.begun))
		defer t.Stop()
		limit = t.C
	}
	for {
		select {
		case o := <-m.out:
			r, err = v.settle(o)
			return r, err, o.verdict == roundAgain || o.verdict == contended && v.waits() || v.anew && err == nil && r.writer == v.first
		case <-v.ctx.Done():
			m.leave()
			return r, ended(v.ctx, v.key), false
		case <-limit:
			if limit = nil; m.own() { // LoadTimeout is what bounds it
				continue
			}
			m.leave()
			return v.late()
		}
	}
}

// waits reports whether v waits for another process after all, since what it was to serve meanwhile is too old by now.
func (v *visit[V]) waits() bool {
	return !v.quits && v.p.OnContention == ServeStale && (v.stale == nil || !v.stale.usable())
}

// settle makes a result of what the flight said.
func (v *visit[V]) settle(o outcome[V]) (Result[V], error) {
	if o.verdict == taken && o.err == nil {
		return o.res, nil
	}
	if o.verdict == contended {
		o.err = fmt.Errorf("%w: %q", ErrContended, v.key)
	}
	if v.stale == nil || !v.stale.usable() || errors.Is(o.err, ErrNotFound) || errors.Is(o.err, ErrClosed) ||
		(o.verdict == contended && v.p.OnContention == Fail) {
		return Result[V]{}, o.err
	}
	r := v.stale.result(Stale)
	if o.verdict != contended {
		r.Cause = o.err
	}
	return r, nil
}

// reread reads the store, whatever flight there is.
func (v *visit[V]) reread() (*found[V], error) {
	for {
		f, lead, err := v.c.read(v.ctx, v.key, false, time.Time{})
		if lead {
			v.c.next(v.key)
		}
		if f != nil || err != nil {
			return f, err
		}
	}
}

// late is what follows when MaxWait is over.
func (v *visit[V]) late() (r Result[V], err error, again bool) {
	f, err := v.reread()
	if err != nil {
		return r, err, false
	}
	timeout := fmt.Errorf("%w: %q: MaxWait is %v", ErrWaitTimeout, v.key, v.p.MaxWait)
	if f.err == nil && !(v.anew && f.Writer == v.first) {
		if r, err, ok := v.answer(f, Waited); ok {
			return r, err, false
		}
		if f.Stale() {
			r = f.result(Stale)
			r.Cause = timeout
			return r, nil, false
		}
	}
	if v.p.AfterMaxWait == Fail {
		return r, timeout, false
	}
	v.patient = true
	m, err := v.c.join(v, &detour{cause: timeout})
	if err != nil {
		return r, err, false
	}
	r, err, again = v.await(m)
	v.patient = false // the next flight may be one that waits for another process
	return r, err, again
}
