// Package fencing holds what a holder of a lock shows to the resource that the lock protects.
//
// A lock alone cannot stop a holder that was paused past the end of its lease: it wakes up, still believes, and writes. The
// resource itself can, when every write carries a number that grows with each grant and the resource refuses a number below
// the highest it has seen. That number is the fencing token (Gray and Cheriton's leases, 1989; the name and the use are
// Burrows' sequencers in Chubby, OSDI 2006, and Kleppmann's essay on distributed locking, 2016).
//
// Tokens of one lock service grow; tokens of two services do not compare. A [Fence] therefore names the Domain that its
// token was drawn in, and the Owner: a fresh identity for each acquisition, which tells one holder's repeated write from
// the write of another with an equal token.
//
// # Guards
//
// A [Guard] remembers the highest fence for each resource, and refuses what is lower. It is of use where it compares and writes in
// one step, so each belongs to a store: [Memory] to this process, and those of the packages redisguard, sqlguard and etcdguard to data
// in Redis, in SQL databases and in etcd. Package guardtest tests a guard of your own.
//
// A holder reads what its writes depend on after its fence has passed: before that a deposed holder may still write. With
// paddock.Guarded it passes before the work begins.
package fencing

import (
	"context"
	"fmt"
	"math"
)

// Token is a fencing token: strictly larger for every later acquisition of a key, as far as the [Strength] of its source
// goes. Valid tokens are 1 to [MaxToken]; zero is no token.
type Token uint64

// MaxToken is the largest valid token. SQL, etcd and ZooKeeper have no unsigned 64-bit integers.
const MaxToken Token = math.MaxInt64

// Valid reports whether t can be shown to a guard.
func (t Token) Valid() bool { return t >= 1 && t <= MaxToken }

// Fence is what a holder shows to a guard: the token, the domain that it was drawn in, and the acquisition that drew it.
// It is a plain value, to be copied and stored as one likes.
type Fence struct {
	Domain string // tokens of different domains do not compare
	Token  Token
	Owner  string // of the one acquisition
}

// String is for people and logs.
func (f Fence) String() string { return fmt.Sprintf("%s#%d (owner %s)", f.Domain, f.Token, f.Owner) }

// Strength says how far the order of a lock service's tokens can be trusted.
type Strength int

const (
	None     Strength = iota // no order: do not fence with these
	Volatile                 // in order, but may regress when servers lose data
	Durable                  // in order through everything that the service survives
)

// String returns the name of the constant.
func (s Strength) String() string {
	switch s {
	case None:
		return "none"
	case Volatile:
		return "volatile"
	case Durable:
		return "durable"
	}
	return fmt.Sprintf("Strength(%d)", int(s))
}

type contextKey struct{}

// NewContext returns a context that carries f to the code below. Do and the loaders of a stampede cache are given one.
func NewContext(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, contextKey{}, f)
}

// FromContext returns the fence that ctx carries, if any: that of the innermost lease.
func FromContext(ctx context.Context) (Fence, bool) {
	f, ok := ctx.Value(contextKey{}).(Fence)
	return f, ok
}
