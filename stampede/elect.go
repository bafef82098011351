package stampede

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/paddock-go/paddock"
)

// run tries for the lock until it has it or somebody else has loaded.
func (f *flight[V]) run() {
	defer f.end()
	var w *watch
	for {
		if d := f.detour(); d != nil {
			f.bypass(*d)
			return
		}
		if f.p.Locker == nil {
			f.lead(nil, nil)
			return
		}
		if err := f.p.lockerDown(); err != nil {
			f.unlocked(err)
			return
		}
		if f.c.heldFor(f.key) <= 0 {
			begun := time.Now()
			lease, err := f.try()
			if err == nil {
				f.lead(lease, nil)
				return
			}
			if !errors.Is(err, paddock.ErrHeld) {
				if f.patience.Err() != nil {
					f.unanswered(begun, err)
				}
				if f.detour() != nil { // which ended the try
					continue
				}
				f.lockerDown(err)
				return
			}
			var held paddock.HeldError
			if h := (*paddock.HeldError)(nil); errors.As(err, &h) {
				held = *h
			}
			f.c.hold(f.key, held.RetryAfter)
		}
		if !f.contend() {
			return
		}
		if w == nil {
			w = f.watch()
		}
		if f.pause(w) {
			return
		}
	}
}

func (f *flight[V]) try() (*paddock.Lease, error) {
	defer f.batch.slot()()
	return f.p.Locker.TryAcquire(f.patience, f.c.lockKey(f.key), &paddock.Options{
		TTL: f.p.LockTTL, NoRenew: f.p.NoRenew,
		MaxHold: f.p.LoadTimeout + f.p.LockTTL + 2*f.c.o.StoreTimeout, // a load that hangs does not hold on for ever
	})
}

func (f *flight[V]) detour() *detour {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	return f.forced
}

// watch is a flight's way to learn that the load it waits for has ended.
type watch struct {
	ready  chan struct{} // closed when hints are there, or are known not to come; set to nil when that was seen
	hints  <-chan struct{}
	looked bool // since the last try
}

// watch begins to watch, which may take a while.
func (f *flight[V]) watch() *watch {
	w := &watch{ready: make(chan struct{})}
	go func() {
		defer close(w.ready)
		ctx, cancel := context.WithCancel(f.ctx)
		limit := time.AfterFunc(f.c.o.StoreTimeout, cancel)
		hints, err := f.c.store.Watch(ctx, f.c.storeKey(f.key))
		if limit.Stop() && err == nil {
			w.hints = hints // until f.ctx ends
			return
		}
		cancel()
		if f.ctx.Err() == nil {
			f.c.storeDown(f.key, fmt.Errorf("%w: watch: %w", ErrStoreDown, errors.Join(err, ctx.Err())))
		}
	}()
	return w
}

const minPoll = 50 * time.Millisecond

// pause waits for a hint, or for the time to look or to try again. It reports whether the flight is over.
func (f *flight[V]) pause(w *watch) (over bool) {
	d := minPoll + rand.N(minPoll)
	if h := f.c.heldFor(f.key); h > 0 && h < d {
		d = h + rand.N(minPoll/5)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	var hints <-chan struct{}
	if w.ready == nil {
		hints = w.hints
	}
	select {
	case <-w.ready: // what happens from now on is hinted at; what has happened before, this finds
		w.ready = nil
		return f.look()
	case <-hints:
		f.c.unhold(f.key)
		return f.look()
	case <-t.C: // a hint may have been missed: look and try in turn
		try := f.c.heldFor(f.key) <= 0
		look := !try || !w.looked
		w.looked = !try
		return look && f.look()
	case <-f.patience.Done():
		if f.ctx.Err() == nil {
			return false
		}
		f.fail(context.Cause(f.ctx))
		return true
	}
}

// look reads the store, and publishes what it says if that is an answer.
func (f *flight[V]) look() (over bool) {
	before := f.advance()
	got := f.c.fetch(context.WithoutCancel(f.ctx), f.key, time.Time{})
	switch {
	case got.err != nil:
		if f.p.OnStoreDown == Fail {
			f.fail(got.err)
			return true
		}
		f.c.mu.Lock()
		defer f.c.mu.Unlock()
		f.take(&detour{cause: got.err, storeless: true})
		return false
	case f.known(got, before):
		return true
	case f.ctx.Err() != nil:
		f.fail(context.Cause(f.ctx))
		return true
	}
	return false
}

// known publishes what got says, if it makes a load unnecessary.
func (f *flight[V]) known(got *found[V], before int) bool {
	switch fresh := got.Fresh() && (f.seen == "" || got.Writer != f.seen); {
	case fresh && got.Kind == Value:
		f.publish(before, got.result(Waited), nil)
	case fresh:
		f.publish(before, Result[V]{}, fmt.Errorf("%w: %q", ErrNotFound, f.key))
	case got.Failure != "" && !f.insist:
		f.publish(before, Result[V]{}, &RemoteError{Key: f.key, Message: got.Failure})
	default:
		return false
	}
	return true
}

// lockerDown is what follows when the lock could not be tried for.
func (f *flight[V]) lockerDown(err error) {
	if f.ctx.Err() != nil {
		f.fail(context.Cause(f.ctx))
		return
	}
	err = f.outage(err)
	if errors.Is(err, paddock.ErrInvalid) {
		f.fail(err)
		return
	}
	f.unlocked(err)
}

// outage notes that the lock could not be tried for.
func (f *flight[V]) outage(err error) error {
	err = fmt.Errorf("%w: %w", ErrLockerDown, err)
	if f.c.obs.LockerDown != nil {
		f.c.obs.LockerDown(f.key, err)
	}
	if !errors.Is(err, paddock.ErrInvalid) { // that is of this key, not of the service
		f.p.outage.Store(&outage{until: time.Now().Add(outagePause), err: err})
	}
	return err
}

// silentTry is how long a Locker may take to answer a try before it counts as one that does not.
const silentTry = 1500 * time.Millisecond

// unanswered notes a try that was sent at begun and ended because nobody had the patience to wait for its answer.
func (f *flight[V]) unanswered(begun time.Time, err error) {
	if took := time.Since(begun); took >= silentTry {
		_ = f.outage(fmt.Errorf("no answer for %v: %w", took.Round(time.Millisecond), err))
	}
}

// unlocked is what the policy says to do without the Locker.
func (f *flight[V]) unlocked(err error) {
	if f.p.OnLockerDown == Fail {
		f.fail(err)
		return
	}
	f.bypass(detour{cause: err})
}

// bypass loads without the lock, when there is room for one more such load.
func (f *flight[V]) bypass(d detour) {
	back := f.right()
	switch {
	case back != nil:
		defer back()
		f.lead(nil, &d)
	case f.ctx.Err() != nil:
		f.fail(context.Cause(f.ctx))
	default:
		f.fail(fmt.Errorf("%w: %q: %d loads without the lock are running: %w", ErrWaitTimeout, f.key, cap(f.p.bypass), d.cause))
	}
}
