package stampede

import (
	"context"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Store keeps entries for a Cache, shared by all processes that use the same one. All methods may be called concurrently and by
// many processes; each is atomic for each of its keys. Package storetest holds a Store to what is said here.
//
// Beside its entry a key has a ticket, which is what keeps a slow load from bringing back what was invalidated while it ran,
// and the failure of its last load. A Store may forget any of the three at any time, as caches do under pressure: forgetting
// a ticket only makes the loads that hold it unfit to store.
//
// Freshness is decided by the store's clock alone: it counts down what is left of an entry, and no time of day passes between
// a Store and a Cache.
type Store interface {
	// Get returns what is known of each key, in their order, in one round trip for all of them. What is not there, or is not there any
	// more, is the zero Entry; what another program has put in its place is of kind Foreign.
	Get(ctx context.Context, keys ...string) ([]Entry, error)

	// Begin is called before a load: it returns the key's present entry and its ticket. When there is no ticket it makes
	// one. id is fresh for every call and may be a part of the ticket's ID; but a request that a client has sent twice, with the same id,
	// may arrive the second time after an invalidation, and must not make the ticket again that the invalidation has dropped.
	// The ticket is kept for at least the time keep from now.
	// The turns of a ticket count the calls that it was returned by, so that they rise.
	Begin(ctx context.Context, key, id string, keep time.Duration) (Entry, Ticket, error)

	// Put stores the result of a load that began with t, and tells the key's watchers that a load has ended. It is
	//
	//   - Invalidated, and stores nothing, when the key's ticket is not t any more;
	//   - Superseded, and stores nothing, when the result of a later load was stored with t: one whose fence has the same
	//     domain and a higher token, or, when the domains differ or there is none, one with a later turn;
	//   - Stored otherwise. A value, and the answer that there is none, take the place of the entry and of the failure. A
	//     failure is kept beside the entry, for its TTL. An absent entry stores nothing and is for the watchers only.
	//
	// Repeating a Put that was Stored stores it again, unless it is refused by now.
	Put(ctx context.Context, key string, t Ticket, e Entry) (Outcome, error)

	// Set stores e whatever loads are under way, removes the failure, drops the ticket that there was, and tells the watchers. One
	// that was given up must not undo an invalidation by arriving late. Of several at the same time any may be what is left, or none.
	Set(ctx context.Context, key string, e Entry) error

	// Invalidate removes ticket, entry and failure of each key, and tells the watchers. When it returns nil, no load that
	// began before can store its result any more.
	Invalidate(ctx context.Context, keys ...string) error

	// Watch returns a channel on which there is something to receive soon after the watchers of key were told something.
	// Hints may be missed, doubled or late; several at once may be one. When Watch returns, what happens from then on is
	// watched. The channel is abandoned, not closed, when ctx ends.
	Watch(ctx context.Context, key string) (<-chan struct{}, error)
}

// Kind says what an Entry is.
type Kind uint8

// The kinds of entries.
const (
	Absent   Kind = iota // nothing is known
	Value                // a value, encoded
	NotFound             // the answer that there is no such thing
	Failed               // for Put only: the load failed; Entry.Failure says how
	Foreign              // from Get and Begin only: something that the store cannot read
)

// String returns the kind's name, in lower case.
func (k Kind) String() string {
	return name(int(k), "absent", "value", "not found", "failed", "foreign")
}

// Entry is what a Store keeps for a key.
type Entry struct {
	Kind  Kind
	Value []byte // of kind Value; not to be modified by who reads it

	// TTL is how long the entry is fresh from the moment it is stored, and StaleFor how long it is kept after that. Stores
	// may round both up to their step.
	TTL      time.Duration
	StaleFor time.Duration
	// LoadTime is how long the load took, in whole microseconds.
	LoadTime time.Duration
	// Fence is what the entry was loaded under; zero when there was no lock.
	Fence fencing.Fence
	// Writer is an identity that is fresh for every load and every Set.
	Writer string

	// Left is what the store says is left of TTL: zero or less for an entry in its stale window. Set by the Store.
	Left time.Duration
	// Failure is how the last load failed, as long as that is remembered; "" when there is nothing to remember. Set by
	// the Store, but for entries of kind Failed.
	Failure string
}

// Fresh reports whether e is an answer within its TTL.
func (e *Entry) Fresh() bool { return (e.Kind == Value || e.Kind == NotFound) && e.Left > 0 }

// Stale reports whether e is a value within its stale window.
func (e *Entry) Stale() bool { return e.Kind == Value && e.Left <= 0 && e.Left > -e.StaleFor }

// Age is how long ago e was stored, by the store's clock.
func (e *Entry) Age() time.Duration { return max(0, e.TTL-e.Left) }

// Ticket is what a load may store its result with.
type Ticket struct {
	ID   string
	Turn int64 // rises with every Begin that returns this ID
}

// Outcome is what became of a Put.
type Outcome uint8

// The outcomes of Put.
const (
	Stored      Outcome = iota + 1
	Superseded          // the result of a later load is there
	Invalidated         // the key was invalidated, set or forgotten since Begin
)

// String returns the outcome's name, in lower case.
func (o Outcome) String() string {
	return name(int(o), "unknown", "stored", "superseded", "invalidated")
}
