package stampede

import (
	"fmt"
	"time"

	"github.com/paddock-go/paddock"
)

// Policies say how keys are treated: the first whose pattern matches a key is the key's. A key that none matches is refused;
// end the list with the pattern "*" to have none of these.
type Policies []Policy

// Policy says how the keys of one pattern are treated. Durations are rounded up to whole milliseconds where a Store counts them.
type Policy struct {
	// Pattern is a glob over the whole key: '*' is any run of characters ('/' and ':' are nothing special), '?' any one,
	// "[a-f]" one of a set, "[^a-f]" one that is not in it, and '\' makes the next character an ordinary one. There is no
	// default.
	Pattern string

	// Cost is what it would cost if a load ran twice at the same time. It decides what Locker will do. Zero means
	// Wasteful if there is a Locker, else Harmless.
	Cost Cost
	// Locker elects the process that loads. Nil means no lock: each process loads for itself, once at a time.
	Locker paddock.Locker

	// TTL is how long an entry is fresh, from the moment it is stored. There is no default.
	TTL time.Duration
	// Jitter is the largest part of TTL that is added to it at random, so that entries stored together do not expire
	// together: at most 1. Zero means 0.1, a negative number none.
	Jitter float64
	// StaleFor is how long after TTL a value may still be served while it is replaced, or when it cannot be. Zero means
	// not at all.
	StaleFor time.Duration
	// Refresh is who replaces a stale value. Zero means Background: callers are served what there is, at once.
	Refresh Refresh

	// EarlyBeta makes a few calls replace an entry in the background before it expires, at random, the likelier the less is left and the longer
	// the load takes (XFetch): about one in three expiries is met more than EarlyBeta load times ahead. 1 is a good value. Zero means
	// off.
	EarlyBeta float64

	// OnContention is what happens to a call that finds the key being loaded elsewhere: ServeStale, Wait, or Fail with
	// ErrContended. Zero means ServeStale, which waits when there is nothing stale to serve.
	OnContention Recourse
	// MaxWait is how long a call waits for a load that it did not start itself, or for a Locker that does not answer. Zero
	// means a second more than LoadTimeout, so that the end of the load comes first.
	MaxWait time.Duration
	// AfterMaxWait is what follows when MaxWait is over and there is nothing stale to serve: Fail with ErrWaitTimeout, or
	// Load without the lock, once in this process and under MaxConcurrentLoads. Zero means Fail.
	AfterMaxWait Recourse

	// LockTTL is how long the lock outlives a process that dies while it loads; it is renewed for as long as the load
	// takes. Zero means 10 s, or the Locker's MinTTL if that is more; with NoRenew it means LoadTimeout + 5 s.
	LockTTL time.Duration
	// NoRenew switches the renewal of the lock off, so that LockTTL, which must exceed LoadTimeout, ends it in any case. Zero means renewal.
	NoRenew bool
	// LoadTimeout ends the context of a load, and everybody's wait for it. Zero means 30 s.
	LoadTimeout time.Duration

	// NotFoundTTL is how long the answer is remembered that there is no such thing (see ErrNotFound). Zero means 5 s or
	// TTL, whichever is less, a negative duration that it is not remembered.
	NotFoundTTL time.Duration
	// ErrorTTL is how long a failed load keeps others from trying. Meanwhile what is stale is served, and without that the error.
	// Zero means 1 s or TTL, whichever is less, a negative duration that errors are not remembered.
	ErrorTTL time.Duration

	// OnLockerDown is what follows when the Locker cannot be reached: Load without the lock, under MaxConcurrentLoads, or
	// Fail. Zero means Load, and Fail if Cost is Harmful.
	OnLockerDown Recourse
	// OnStoreDown is what follows when the Store cannot be reached: Load without lock or Store, under MaxConcurrentLoads,
	// or Fail. Zero means Load, and Fail if Cost is Harmful.
	OnStoreDown Recourse
	// MaxConcurrentLoads bounds the loads without the lock that this process runs at one time for all keys of the policy. Zero
	// means 4.
	MaxConcurrentLoads int
}

// Cost is what it costs if a load runs twice at the same time.
type Cost int

// The costs, from low to high.
const (
	// Harmless: nothing worth a lock. Each process loads for itself, once at a time. There must be no Locker.
	Harmless Cost = iota + 1
	// Wasteful: work done twice, no harm. Any Locker will do; what may go wrong with it costs a load.
	Wasteful
	// Harmful: running twice at the same time does damage. It needs a Locker with Exclusion of at least Quorum and Fencing of at
	// least Volatile, and no fallback that loads without the lock. A load whose lease was lost is refused. It does not
	// mean that a load runs once: a cache is no record of what has been done, and may forget at any time.
	Harmful
)

// String returns the cost's name, in lower case.
func (c Cost) String() string { return name(int(c), "unset", "harmless", "wasteful", "harmful") }

// Recourse is what follows when a call cannot go the regular way. Each field of a Policy takes some of them; zero is the field's
// own default.
type Recourse int

// The recourses.
const (
	ServeStale Recourse = iota + 1 // what is stale, at once; without that, as Wait
	Wait                           // for the load to end; what is stale is served after MaxWait
	Load                           // without what is missing, under MaxConcurrentLoads
	Fail                           // with an error, at once
)

// String returns the constant's meaning, in lower case.
func (r Recourse) String() string {
	return name(int(r), "default", "serve stale", "wait", "load", "fail")
}

// Refresh is who replaces a stale value.
type Refresh int

// The ways to replace a stale value.
const (
	Background Refresh = iota // nobody waits: all callers are served what there is
	Inline                    // the one call that loads it waits for it
)

// String returns the constant's meaning, in lower case.
func (r Refresh) String() string { return name(int(r), "background", "inline") }

func name(i int, names ...string) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("unknown (%d)", i)
	}
	return names[i]
}
