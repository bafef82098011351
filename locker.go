// Package paddock gives out leases on keys: exclusive, expiring, fenced ownership, from Redis, a quorum of Redis nodes, etcd,
// ZooKeeper or the process itself, all behind one [Locker].
//
//	locker, err := redislock.New(client, nil)
//	...
//	err = paddock.Do(ctx, locker, "invoice/4711", nil, func(ctx context.Context, lease *paddock.Lease) error {
//		return charge(ctx, lease.Fence())
//	})
//
// # What a lease is
//
// A lock that a crashed process holds for ever is of no use, so a distributed lock is a lease: the server gives the key to
// one holder for a time, the TTL, and takes it back when the time is over. The holder renews it while it works, and gives it
// back when it is done. A holder that dies is out of the way one TTL later.
//
// # The trust window
//
// The server counts the TTL from the moment that it handles the request. The holder cannot see that moment; all that it
// knows is when it sent the request. So a [Lease] counts from just before the sending, on the monotonic clock, and takes
// off a margin for clocks that run at different rates. What is left is the trust window: until [Lease.Deadline] the server
// gives the key to nobody else, whatever the network does. When a reply takes longer than the window, the grant is none.
//
// The monotonic clock of most systems stands still while the machine is suspended, so the wall clock is looked at too, at
// each renewal and in [Lease.Err]: the lease is over when either of them says so. A wall clock that is set forward by more
// than the window therefore ends leases; one that is set back does nothing.
//
// # Renewal
//
// A lease is renewed every third of its TTL, together with the other leases of its Locker. One call may take a sixth of the
// TTL; a call that fails is repeated until the window closes. A renewal is only ever a hint of success to come: what counts
// is the window, and that moves only when the server has answered. [Options.NoRenew] switches renewal off, [Options.MaxHold]
// bounds it, so that a holder that hangs does not hold its key for ever.
//
// # Loss
//
// When the window closes, or the server says that the key is gone, the lease is lost: its context ends, with a cause that is
// [ErrLost], once. Work on that context should stop. What the server may still hold is released in the background.
//
// A process that is paused (by its garbage collector, its hypervisor, SIGSTOP) past the end of its window learns so only
// when it runs again; [Lease.Err] then says it at once. But no check can help between the check and the write that follows.
//
// # What fencing adds
//
// Every lease has a token that is larger than those of all leases on the key before it ([Lease.Token]). A resource that
// remembers the largest token it was shown, and refuses smaller ones, is safe from every holder that was deposed without
// noticing. Package fencing has guards that do so. Where a second holder would corrupt data, use one: the lock makes
// collisions rare, the guard makes them harmless.
//
// # What no lock can give
//
// No lease makes work happen exactly once: a holder may die between the work and the record of it. No lease on a single
// server survives that server losing its memory; no lease at all survives clocks that run at wildly different rates.
// [Guarantees] says what a Locker's promises rest on, so that code can refuse a Locker that promises too little.
package paddock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// The errors of this package, for errors.Is; the backend's own error is in the chain as well. A wait that ends because its
// context does returns that context's error, joined with its cause.
var (
	ErrHeld        = errors.New("paddock: held by another")          // as *HeldError
	ErrLost        = errors.New("paddock: lease lost")               // it ended by itself: expired, taken, or past MaxHold
	ErrReleased    = errors.New("paddock: lease released")           // by its holder
	ErrFree        = errors.New("paddock: nobody holds the key")     // from Inspect
	ErrUnavailable = errors.New("paddock: lock service unavailable") // silent, refusing, or failing
	ErrInvalid     = errors.New("paddock: invalid")                  // a value that can never work; nothing was sent
	ErrClosed      = errors.New("paddock: locker closed")            // by its Close
	errNoInspect   = fmt.Errorf("paddock: Inspect: %w", errors.ErrUnsupported)
)

// HeldError is the ErrHeld that a try returns.
type HeldError struct {
	Key        string
	RetryAfter time.Duration // when the present lease ends if it is not renewed; zero: not known
}

// Error says who is in the way and for how long.
func (e *HeldError) Error() string {
	if e.RetryAfter > 0 {
		return fmt.Sprintf("paddock: key %q is held by another, for %v if not renewed", e.Key, e.RetryAfter)
	}
	return fmt.Sprintf("paddock: key %q is held by another", e.Key)
}

// Is makes it an ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Locker grants leases: exclusive, expiring, fenced ownership of a key. All methods may be called concurrently.
//
// A key is any non-empty valid UTF-8 of at most 1,024 bytes; distinct keys never meet. Anything else, and a TTL below
// Guarantees.MinTTL, is ErrInvalid before any I/O. There is no re-entrancy: the same process, and the same goroutine, is a
// stranger to itself.
//
// Implementations are made over package backend and held to package conformance. The interface will never grow a method;
// extras are optional interfaces, reached through functions (such as [Inspect]) that see through wrappers: a Locker that
// wraps another has a method Unwrap() Locker.
type Locker interface {
	// Acquire waits until it holds key. The context bounds the wait and never the hold: the lease lives until it is
	// released or lost, however soon ctx ends.
	//
	// When ctx ends first, Acquire returns ctx's error joined with its cause, at once, and whatever the attempt may have
	// left on the server is removed in the background. When the backend has answered nothing for one TTL (at least 5 s), or
	// answers that it never will (no permission, wrong type), the error is ErrUnavailable. A ctx that descends from a live
	// lease of this Locker on key is ErrInvalid: it would wait for itself. After Close it is ErrClosed.
	Acquire(ctx context.Context, key string, opts *Options) (*Lease, error)

	// TryAcquire makes one attempt and does not wait for another holder: a key held by another is ErrHeld, as
	// *HeldError, and a backend that does not answer in time is ErrUnavailable. Otherwise it is as Acquire.
	TryAcquire(ctx context.Context, key string, opts *Options) (*Lease, error)

	// Guarantees says what this Locker promises; constant over its life.
	Guarantees() Guarantees

	// Close refuses new calls and ends waiting ones with ErrClosed, cleans up after those in flight, and ends the
	// contexts of all leases with ErrClosed. It deletes no key of a holder: that is for the holder's own Release, which
	// still works, or for the TTL. When clean-up takes longer than the backend's CloseWait, Close returns an
	// ErrUnavailable that says how many keys are left to expire. A second Close returns what the first did.
	Close() error
}

// Options of one acquisition; nil is the zero Options.
type Options struct {
	// TTL is how long the lease outlives a holder that dies. It is rounded up to Guarantees.TTLStep; Lease.TTL says what
	// the server made of it. Defaults to 15 s, or MinTTL if that is more.
	TTL time.Duration
	// NoRenew switches automatic renewal off: the lease ends TTL after the grant unless Extend is called. The server
	// sees to it; on ZooKeeper, where it cannot, the process does while it lives. Defaults to renewal.
	NoRenew bool
	// MaxHold ends the lease, as ErrLost, at the latest this long after the grant. Extend does not pass it. Defaults to
	// no limit.
	MaxHold time.Duration
	// Note is shown by Inspect: at most 256 bytes of UTF-8. Defaults to "host/pid".
	Note string
}

// Exclusion says what has to fail before two hold one key, from weak to strong.
type Exclusion int

const (
	ProcessOnly  Exclusion = iota // excludes only within this process
	SingleServer                  // until the one server loses its data or fails over
	Quorum                        // until a majority of servers loses its data or its clocks
	Consensus                     // decided by a replicated log
)

// String returns what the constant stands for, in lower case.
func (e Exclusion) String() string {
	switch e {
	case ProcessOnly:
		return "process only"
	case SingleServer:
		return "single server"
	case Quorum:
		return "quorum"
	case Consensus:
		return "consensus"
	}
	return fmt.Sprintf("Exclusion(%d)", int(e))
}

// Guarantees is what a Locker promises.
type Guarantees struct {
	Backend   string           // "memory", "redis", "redlock", "etcd", "zookeeper", or a foreign backend's own name
	Exclusion Exclusion        // as long as what Assumes names holds
	Fencing   fencing.Strength // of the order of the tokens
	Fair      bool             // waiters are served first come, first served, across processes
	MinTTL    time.Duration    // the shortest TTL; on ZooKeeper the session timeout
	TTLStep   time.Duration    // TTLs are rounded up to a multiple of it
	Assumes   string           // what exclusion and tokens rest on, in a sentence or two
}

// Holder is what Inspect sees of a lease.
type Holder struct {
	Owner     string        // Lease.Owner of the holder
	Note      string        // Options.Note of the holder
	Token     fencing.Token // Lease.Token of the holder; 0 where the backend cannot say
	Since     time.Time     // when it was granted, by the server's clock; zero where the backend cannot say
	ExpiresIn time.Duration // until the lease ends if it is not renewed; 0 where the backend cannot say
}

// Inspector is the optional interface behind [Inspect].
type Inspector interface {
	Inspect(ctx context.Context, key string) (Holder, error)
}

// Inspect says who holds key, as of some moment during the call. The error is ErrFree when nobody does, and is
// errors.ErrUnsupported when neither l nor what it wraps can tell.
func Inspect(ctx context.Context, l Locker, key string) (Holder, error) {
	for {
		if i, ok := l.(Inspector); ok {
			return i.Inspect(ctx, key)
		}
		w, ok := l.(interface{ Unwrap() Locker })
		if !ok {
			return Holder{}, errNoInspect
		}
		l = w.Unwrap()
	}
}
