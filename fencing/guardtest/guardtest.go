// Package guardtest holds guards to the rules of fencing.Guard, ours and other people's. A guard's test is one call:
//
//	func TestGuard(t *testing.T) {
//		guardtest.Run(t, guardtest.Guard{
//			Open: func(tb testing.TB) guardtest.Migrater { return mine.New(dial(tb)) },
//			Write: func(ctx context.Context, g guardtest.Migrater, resource string, f fencing.Fence, value string) error {
//				return g.(*mine.Guard).Put(ctx, resource, f, value)
//			},
//			Read: func(ctx context.Context, g guardtest.Migrater, resource string) (string, error) { ... },
//		})
//	}
//
// Resources are unique to each run, so the marks may be kept. A case may take a minute. Cases run in parallel.
package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

// Migrater is a guard whose marks an operator can move to another domain, which all guards should be.
type Migrater interface {
	fencing.Guard
	Migrate(ctx context.Context, resource, from, to string) error
}

// Guard is what a guard's author fills in.
type Guard struct {
	// Open returns the guard, with connections of its own, which it closes with the test. All that it returns have the same marks.
	Open func(tb testing.TB) Migrater
	// Write shows f for resource and writes value to what resource stands for, in one step; nil for a guard that only
	// advances, whose test is smaller for it. The data of a resource may be in whatever the guard protects: a row, or the key itself.
	Write func(ctx context.Context, g Migrater, resource string, f fencing.Fence, value string) error
	// Read returns what was written last, or "".
	Read func(ctx context.Context, g Migrater, resource string) (string, error)
}

// Run holds the guard to every rule.
func Run(t *testing.T, g Guard) {
	t.Helper()
	for _, c := range cases {
		if c.writes && (g.Write == nil || g.Read == nil) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("%s is about this rule: %s", c.name, c.rule)
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c.run(&trial{T: t, ctx: ctx, suite: g, guard: g.Open(t), resource: fmt.Sprintf("%s/%d", c.name, rand.Uint64())})
		})
	}
}

type trial struct {
	*testing.T
	ctx      context.Context
	suite    Guard
	guard    Migrater
	resource string // of this case alone
}

func fence(token fencing.Token, owner string) fencing.Fence {
	return fencing.Fence{Domain: "guardtest/a", Token: token, Owner: owner}
}

// show advances, and checks the answer: want is nil or an error to be.
func (t *trial) show(resource string, f fencing.Fence, want error) {
	t.Helper()
	if err := t.guard.Advance(t.ctx, resource, f); !errors.Is(err, want) {
		t.Errorf("Advance(%.40q, %v): %v, want %v", resource, f, err, want)
	}
}

func (t *trial) write(f fencing.Fence, value string, want error) {
	t.Helper()
	if err := t.suite.Write(t.ctx, t.guard, t.resource, f, value); !errors.Is(err, want) {
		t.Errorf("writing %q with %v: %v, want %v", value, f, err, want)
	}
}

func (t *trial) read(want string) {
	t.Helper()
	if got, err := t.suite.Read(t.ctx, t.guard, t.resource); err != nil || got != want {
		t.Errorf("read %q, %v, want %q", got, err, want)
	}
}

var cases = []struct {
	name, rule string
	writes     bool
	run        func(t *trial)
}{
	{"Rises", "a higher token passes and becomes the mark; a lower one is ErrStale from then on", false, rises},
	{"Equal", "an equal token passes for the same owner, however often, and is ErrStale for another", false, equal},
	{"Domains", "a token of another domain is ErrDomain until Migrate is called", false, domains},
	{"Migrate", "Migrate moves marks of the domain that it names, and nothing else", false, migrates},
	{"Digits", "tokens compare as 63-bit integers, not as floating-point numbers nor as text", false, digits},
	{"Resources", "distinct resources never meet", false, resources},
	{"Many", "no mark is ever forgotten", false, many},
	{"Invalid", "what no lease has is ErrInvalid, and moves nothing", false, invalid},
	{"Shared", "guards on the same data have the same marks", false, shared},
	{"EndedContext", "a context that has ended lets nothing pass", false, endedContext},
	{"Concurrent", "once a fence has passed, a lower one that is shown later never does", false, concurrent},
	{"FirstFences", "fences that come together where there is no mark yet are decided on as any others", false, firstFences},
	{"OneOwner", "of several owners with one token, together, one passes", false, oneOwner},
	{"MigrateConcurrent", "once Migrate has returned no fence of the old domain passes", false, migrateConcurrent},
	{"Writes", "a refused write leaves the data alone; the holder may write the same again", true, writes},
	{"AdvanceThenWrite", "a deposed holder is refused before its successor's first write", true, advanceThenWrite},
	{"WriteEndedContext", "a context that has ended writes nothing", true, writeEndedContext},
	{"ConcurrentWrites", "the data is that of the highest fence, whatever the order of arrival", true, concurrentWrites},
	{"AdvanceEndsWrites", "once a fence has passed nothing is written with a lower one, also by a write under way", true, advanceEndsWrites},
}
