// Package backend is for authors of backends, as database/sql/driver is: users of a lock do not need it.
//
// A [Backend] is four calls on a server: try to take a key, undo a try, release, renew. A [Keeper] makes those calls and turns
// them into a paddock.Locker: it checks arguments, names owners, bounds and abandons calls, queues waiters, counts the
// trust window, renews in batches, cleans up after what was abandoned, and closes. A Locker embeds its Keeper:
//
//	type Locker struct{ *backend.Keeper }
//
// Package conformance proves the result. docs/backend.md builds a complete one.
//
// # Who makes the calls
//
// The Keeper does, each with a context that ends when the call has to be over. A call that has not returned by then is
// abandoned: the Keeper goes on, and counts the call's outcome as unknown. So a call may still be under way on the server, or
// return, when the calls that follow it are made; Undo has to be right then too.
//
// # What a server has to be able to do
//
// Hold a key for an owner until a TTL is over, atomically refuse others meanwhile, and answer a repeated try of the same
// owner as the first. A repeated try and a renewal may raise the TTL that is left and never lower it; only a [Renewal] with
// Shorten set may. Remember the owners that were undone, for as long as a late try of theirs may arrive.
package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Backend is what differs between servers. All methods may be called concurrently, also for one Attempt.
type Backend interface {
	// Try asks the server for a.Key once. If a.Waits is set, which it is for a Keeper whose Guarantees say Fair, it may
	// queue until ctx ends; it then calls a.Contended whenever the server has answered, and returns an error when the server
	// falls silent.
	//
	// A *paddock.HeldError means that the key was refused and nothing of the attempt is on the server; an error made by
	// Permanent, that it always will be refused, likewise. After any other error, and after ctx's end, the outcome is
	// unknown: Undo follows.
	Try(ctx context.Context, a *Attempt) (Grant, error)
	// Undo removes what a Try of a may have left. Nil says that nothing of a.Owner is there, and that a Try of it which
	// arrives later will be refused. It is repeated until then, or until the server must have dropped the key by itself.
	Undo(ctx context.Context, a *Attempt) error
	// Release gives up a lease that was granted. Nil says that it is gone now, paddock.ErrLost that it was not a.Owner's
	// any more; after any other error it is repeated. If a.Slow is set, a duplicate of the Try may still be under way and
	// has to be refused as after Undo.
	Release(ctx context.Context, a *Attempt) error
	// Renew renews the leases of batch, in as few round trips as it can, and fills in each Renewal. It never creates a lock
	// that is gone.
	Renew(ctx context.Context, batch []Renewal)
}

// Attempt is one try to acquire a key and, once granted, the acquisition.
type Attempt struct {
	Key     string
	Owner   string        // fresh for every try
	Note    string        // for Inspect
	TTL     time.Duration // at least MinTTL and a multiple of TTLStep; never more than MaxHold needs
	MaxHold time.Duration // the server should end the lease at the latest this long after the grant; 0: no limit
	NoRenew bool          // the server should end the lease when the TTL is over
	Waits   bool          // Try may queue
	Slow    bool          // the request of the Try may be under way a second time: its client has repeated it (set by Try), or may have (by the Keeper)
	State   any           // the backend's own: what Try has learnt. Undo may run beside an abandoned Try that still writes it

	keeper *Keeper
	begun  time.Time

	mu        sync.Mutex
	contended bool
	answered  time.Time // the last Contended
	held      *held     // once granted
	lost      error     // before that
}

// Contended says that the server has answered that another holds the key, for another retryAfter if it is not renewed (0:
// not known), and that the attempt is waiting in line. Called by a Try that queues, again after every answer.
func (a *Attempt) Contended(retryAfter time.Duration) {
	a.mu.Lock()
	first := !a.contended
	a.contended, a.answered = true, time.Now()
	a.mu.Unlock()
	if first && a.keeper != nil && a.keeper.obs.Contended != nil {
		a.keeper.obs.Contended(a.Key, retryAfter)
	}
}

// standing is whether the attempt had to wait, and when the server last said so.
func (a *Attempt) standing() (contended bool, answered time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.contended, a.answered
}

// Lost tells the Keeper that the backend saw the lock go, also while Try has not returned yet. It ends the lease.
func (a *Attempt) Lost(cause error) {
	a.mu.Lock()
	h := a.held
	if h == nil && a.lost == nil {
		a.lost = cause
	}
	a.mu.Unlock()
	if h != nil {
		h.gone(cause)
	}
}

// Grant is the answer to a successful Try.
type Grant struct {
	Token  fencing.Token // may be zero only where Guarantees.Fencing is none
	Domain string        // that the token was drawn in
	// Sent is a moment before the request was sent from which the server counts the TTL. Defaults to the start of Try.
	Sent time.Time
	TTL  time.Duration // as the server granted it. Defaults to the attempt's
	// Session is the life that the lock shares with others, if it does: then Sent, TTL and renewal are the session's.
	Session *Session
}

// Renewal asks for a lease's TTL to be set anew. The backend fills in the fields below TTL and Shorten.
type Renewal struct {
	*Attempt
	TTL     time.Duration // to be left after the renewal
	Shorten bool          // what is left may be lowered to TTL; otherwise it is raised or stays

	Granted time.Duration // by the server. Defaults to TTL
	Session *Session      // that the lock now shares, if it does
	Ordered bool          // the server will refuse earlier renewals of this lease that are still under way
	Err     error         // paddock.ErrLost: not a.Owner's any more
}

// Permanent marks an error of Try as final: the server has refused and will refuse again (no permission, wrong type).
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

func isPermanent(err error) bool {
	var p *permanentError
	return errors.As(err, &p)
}

// ended is the error of a call whose context is over: that of ctx, joined with its cause.
func ended(ctx context.Context, what, key string) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || cause == err {
		return fmt.Errorf("paddock: %s %q: %w", what, key, err)
	}
	return fmt.Errorf("paddock: %s %q: %w: %w", what, key, err, cause)
}
