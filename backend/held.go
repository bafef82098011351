package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/bridge"
)

// held is the Keeper's side of a lease: what the server was asked for, and what is still to be asked.
type held struct {
	keeper  *Keeper
	a       *Attempt
	lease   bridge.Lease
	granted time.Time     // when the grant was asked for
	last    time.Time     // the end of MaxHold; zero: none
	turn    chan struct{} // has room for one: renewals and Extends take turns
	task    task          // in the plan

	mu      sync.Mutex
	ttl     time.Duration // that renewals ask for
	session *Session
	// A shorter Extend that nobody answered may reach the server at any later time, and leave bound from then. Until the
	// server has proved that it cannot, no window is longer than that.
	doubts int
	bound  time.Duration
	proven int  // how often it has
	unsure bool // an unanswered Extend may have moved the lock to another session: ask again

	vanished  bool          // the server has said that the lock is gone
	out       *time.Timer   // after Close: sets ranOut
	ranOut    bool          // the TTL was over after Close
	releasing chan struct{} // closed when released is known; nil before Release
	released  error
}

// window is the end of the lease's own trust window when the server granted ttl to a request sent at sent. Zero: only the
// session's counts. The caller holds h.mu, or nobody else has h yet.
func (h *held) window(sent time.Time, ttl time.Duration, s *Session) time.Time {
	var end time.Time
	switch {
	case s == nil:
		if h.doubts > 0 {
			ttl = min(ttl, h.bound)
		}
		end = sent.Add(ttl - h.keeper.o.Margin(ttl))
	case h.a.NoRenew: // the server cannot end it by itself, so the process does
		end = sent.Add(h.ttl - h.keeper.o.Margin(h.ttl))
	}
	if !h.last.IsZero() && (end.IsZero() || h.last.Before(end)) {
		end = h.last
	}
	return end
}

// least is the TTL that the server keeps after a renewal, whatever else may still reach it.
func (h *held) least() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.doubts > 0 {
		return min(h.ttl, h.bound)
	}
	return h.ttl
}

// within takes off ttl what MaxHold does not allow any more.
func (h *held) within(ttl time.Duration, now time.Time) time.Duration {
	if h.last.IsZero() {
		return ttl
	}
	return min(ttl, max(h.keeper.g.MinTTL, h.keeper.roundUp(h.last.Sub(now))))
}

// renewal is what to ask for now.
func (h *held) renewal(now time.Time) Renewal {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Renewal{Attempt: h.a, TTL: h.within(h.ttl, now), Shorten: h.unsure}
}

// renewed takes in the server's answer to what was sent at sent.
func (h *held) renewed(sent time.Time, r *Renewal) {
	granted := r.Granted
	if granted == 0 {
		granted = r.TTL
	}
	h.mu.Lock()
	if r.Ordered {
		h.doubts = 0
		h.proven++
	}
	h.unsure = false
	was := h.session
	h.session = r.Session
	end := h.window(sent, granted, r.Session)
	h.mu.Unlock()

	switch {
	case r.Session == nil && was == nil && !r.Shorten:
		h.lease.Raise(granted, end)
	case r.Session == nil:
		h.lease.Move(nil, granted, end)
	default:
		if r.Session != was && !r.Session.add(h) {
			h.gone(errSessionEnded)
			return
		}
		h.lease.Move(r.Session.window, granted, end)
	}
	if was != nil && was != r.Session {
		was.remove(h)
	}
	if obs := h.keeper.obs.Renewed; obs != nil && h.lease.Err() == nil {
		obs(h.public(), time.Since(sent))
	}
}

func (h *held) public() *paddock.Lease { return h.lease.Public().(*paddock.Lease) }

// Extend is that of paddock.Lease.
func (h *held) Extend(ctx context.Context, ttl time.Duration) error {
	k, key := h.keeper, h.a.Key
	ttl, err := k.checkTTL(ttl)
	if err != nil {
		return fmt.Errorf("extend %q: %w", key, err)
	}
	if ctx.Err() != nil {
		return ended(ctx, "extend", key)
	}
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return ended(ctx, "extend", key)
	}
	defer func() { <-h.turn }()

	sent := time.Now()
	r := Renewal{Attempt: h.a, TTL: h.within(ttl, sent)}
	end := sent.Add(r.TTL - k.o.Margin(r.TTL))
	wait := max(h.least()/6, min(h.least()/3, minExtendWait))
	var proven int
	if r.Shorten = end.Before(h.lease.Deadline()); r.Shorten {
		h.mu.Lock()
		proven = h.proven
		if h.doubts++; h.doubts == 1 || r.TTL < h.bound {
			h.bound = r.TTL
		}
		h.mu.Unlock()
		h.lease.Lower(end)
	}

	callCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	batch := []Renewal{r}
	answered := k.call(callCtx, ctx, func() {
		k.b.Renew(callCtx, batch)
		if e := batch[0].Err; r.Shorten && (e == nil || errors.Is(e, paddock.ErrLost)) {
			h.mu.Lock()             // perhaps long after the call was abandoned: it is under way no more
			if h.proven == proven { // else it is not among the present doubts
				h.doubts = max(0, h.doubts-1)
			}
			h.mu.Unlock()
		}
	})
	if answered {
		r = batch[0]
	} else {
		r.Err = errSilent
	}
	r.Err = notOurs(r.Err, callCtx, ctx)
	switch {
	case r.Err == nil:
		h.mu.Lock()
		h.ttl = ttl
		h.mu.Unlock()
		h.renewed(sent, &r)
	case errors.Is(r.Err, paddock.ErrLost):
		h.gone(r.Err)
	default:
		h.doubt(r.Session)
	}
	k.reschedule(h, sent, r.Err == nil)
	if err := h.lease.Err(); err != nil {
		return err
	}
	if r.Err != nil && ctx.Err() != nil {
		return ended(ctx, "extend", key)
	}
	if r.Err != nil {
		return fmt.Errorf("%w: extend %q to %v: %w", paddock.ErrUnavailable, key, ttl, r.Err)
	}
	return nil
}

// doubt follows an Extend of unknown outcome. The lock may hang on its old session or on the new one, if there are any, so
// the lease trusts neither for longer than it does now, until a renewal has been answered.
func (h *held) doubt(maybe *Session) {
	h.mu.Lock()
	s := h.session
	h.unsure = s != nil || maybe != nil
	h.mu.Unlock()
	for _, s := range []*Session{s, maybe} {
		if s != nil {
			h.lease.Lower(s.Deadline())
		}
	}
}

// Release is that of paddock.Lease, after the lease has ended.
func (h *held) Release(ctx context.Context) error {
	k, key := h.keeper, h.a.Key
	h.mu.Lock()
	first := h.releasing == nil
	if first {
		h.releasing = make(chan struct{})
		if h.out != nil {
			h.out.Stop()
		}
	}
	h.mu.Unlock()
	if !first {
		select {
		case <-h.releasing:
			return h.released
		default:
		}
		select {
		case <-h.releasing:
			return h.released
		case <-ctx.Done():
			return ended(ctx, "release", key)
		}
	}
	h.retire()
	h.mu.Lock()
	ranOut := h.ranOut
	h.mu.Unlock()
	if ranOut {
		return h.settle(fmt.Errorf("%w: key %q: it ran out after its Locker was closed", paddock.ErrLost, key))
	}
	if ctx.Err() != nil {
		return h.later(ended(ctx, "release", key))
	}
	sent := time.Now()
	callCtx, cancel := context.WithTimeout(ctx, k.callWait(h.least()))
	defer cancel()
	answer := new(error) // not to be read once abandoned
	err := errSilent
	if k.call(callCtx, ctx, func() { *answer = k.b.Release(callCtx, h.a) }) {
		err = notOurs(*answer, callCtx, ctx)
	}
	switch {
	case err == nil:
		return h.settle(nil)
	case errors.Is(err, paddock.ErrLost):
		if k.slow(sent) { // its client repeated what had succeeded: the window was open a moment ago
			return h.settle(nil)
		}
		return h.settle(fmt.Errorf("%w: release %q: %w", paddock.ErrLost, key, err))
	case ctx.Err() != nil:
		return h.later(ended(ctx, "release", key))
	}
	return h.later(fmt.Errorf("%w: release %q goes on in the background: %w", paddock.ErrUnavailable, key, err))
}

// notOurs hides from the caller that the end of a context was that of the Keeper's own for the call: it would look like the
// caller's.
func notOurs(err error, call, caller context.Context) error {
	if err != nil && !errors.Is(err, paddock.ErrLost) && call.Err() != nil && caller.Err() == nil {
		return unanswered(err)
	}
	return err
}

// settle records what the release came to.
func (h *held) settle(err error) error {
	h.released = err
	close(h.releasing)
	h.drop()
	h.keeper.Wake(h.a.Key)
	h.observeRelease(err)
	return err
}

// later hands the release to the background.
func (h *held) later(err error) error {
	h.keeper.clean.release(h)
	h.observeRelease(err)
	return err
}

func (h *held) observeRelease(err error) {
	if obs := h.keeper.obs.Released; obs != nil {
		obs(h.public(), time.Since(h.granted), err)
	}
}

// Lost is called by the lease when it ends by itself.
func (h *held) Lost(err error) {
	h.retire()
	if obs := h.keeper.obs.Lost; obs != nil {
		obs(h.public(), time.Since(h.granted), err)
	}
	h.mu.Lock()
	vanished := h.vanished
	h.mu.Unlock()
	if vanished {
		h.drop()
		h.keeper.Wake(h.a.Key)
		return
	}
	h.keeper.clean.release(h)
}

// gone ends the lease because the server has said that the lock is not there any more.
func (h *held) gone(cause error) {
	h.mu.Lock()
	h.vanished = true
	h.mu.Unlock()
	h.lease.Lose(cause)
}

// retire takes the lease out of all renewal.
func (h *held) retire() {
	k := h.keeper
	k.mu.Lock()
	k.plan.remove(&h.task)
	k.mu.Unlock()
	h.mu.Lock()
	s := h.session
	h.mu.Unlock()
	if s != nil {
		s.remove(h)
	}
}

// drop forgets the lease: nothing of it is on the server, as far as that can be known.
func (h *held) drop() {
	k := h.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.leases[h]; ok {
		delete(k.leases, h)
		k.unref()
	}
}

// close ends the lease because the Keeper was closed. The key is left to its holder's Release, or else to its TTL.
func (h *held) close() {
	h.retire()
	left := max(0, time.Until(h.lease.Deadline()))
	slack := 2*h.keeper.o.Margin(h.least()) + h.keeper.g.TTLStep
	h.lease.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.releasing != nil {
		return
	}
	h.out = time.AfterFunc(left+slack, func() {
		h.mu.Lock()
		h.ranOut = h.releasing == nil
		out := h.ranOut
		h.mu.Unlock()
		if out {
			h.drop()
		}
	})
}

// minExtendWait is what an Extend may take even if the TTL is short.
const minExtendWait = 50 * time.Millisecond

var errSessionEnded = errors.New("the session that the lock hangs on has ended")
