// Package bridge is the one door between the root package, whose documentation should hold what users of a lock need and
// nothing else, and package backend, which makes and ends leases. The root sets the functions when it is initialised.
package bridge

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Holder is what a lease asks of the Keeper that granted it.
type Holder interface {
	// Extend asks the server for ttl, now and at all later renewals.
	Extend(ctx context.Context, ttl time.Duration) error
	// Release gives the key back, once; later calls wait for the first and return the same. The lease has ended, and not
	// by loss.
	Release(ctx context.Context) error
	// Lost is called once, without locks, when the lease ended by itself; err is ErrLost.
	Lost(err error)
}

// Spec is a lease to be made.
type Spec struct {
	Locker  any // who granted it, to recognise an Acquire that would wait for itself
	Key     string
	Fence   fencing.Fence
	TTL     time.Duration
	End     time.Time // of its own window; zero: only the session's
	Session *Window   // shared with other leases; nil: none
	Holder  Holder
}

// Lease is the Keeper's side of a *paddock.Lease.
type Lease interface {
	// Public is the *paddock.Lease itself.
	Public() any
	// Err looks at both clocks, as the public Err does.
	Err() error
	Deadline() time.Time
	// Raise records what the server granted, and moves the end of the lease's own window later, never earlier.
	Raise(ttl time.Duration, end time.Time)
	// Lower moves the end of the lease's own window earlier, never later.
	Lower(end time.Time)
	// Move puts the lease under another session (nil: none), with this end of its own window.
	Move(session *Window, ttl time.Duration, end time.Time)
	// Lose ends the lease with an error that is ErrLost and reason.
	Lose(reason error)
	// Close ends the lease because its Locker was closed.
	Close()
}

// Set by the root package.
var (
	// NewLease makes a lease whose context carries ctx's values.
	NewLease func(ctx context.Context, spec Spec) Lease
	// Holds reports whether ctx descends from a live lease of locker on key.
	Holds func(ctx context.Context, locker any, key string) bool
)

// Past reports whether end lies behind now on either clock. The monotonic clock stands still while a machine is suspended;
// the wall clock does not.
func Past(now, end time.Time) bool {
	return !now.Before(end) || !now.Round(0).Before(end.Round(0))
}

// Window is the end of a trust window that several leases share. Safe for concurrent use.
type Window struct{ end atomic.Pointer[time.Time] }

// NewWindow returns a window that closes at end.
func NewWindow(end time.Time) *Window {
	w := &Window{}
	w.Set(end)
	return w
}

// End is when the window closes, as known now.
func (w *Window) End() time.Time { return *w.end.Load() }

// Set moves the end.
func (w *Window) Set(end time.Time) { w.end.Store(&end) }
