// Package guardtest holds guards to the rules of fencing.Guard, ours and other people's. A guard's test is one call:
//
//	func TestGuard(t *testing.T) {
//		guardtest.Run(t, guardtest.Guard{Open: open})
//	}
package guardtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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
	// Open returns the guard, with connections of its own. All that it returns have the same marks.
	Open func(tb testing.TB) Migrater
	// Write shows f for resource and writes value to what resource stands for, in one step; nil for a guard that only
	// advances, whose test is smaller for it.
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
	{"Digits", "tokens compare as 63-bit integers, not as floating-point numbers nor as text", false, digits},
	{"Resources", "distinct resources never meet", false, resources},
	{"Invalid", "what no lease has is ErrInvalid, and moves nothing", false, invalid},
	{"Shared", "guards on the same data have the same marks", false, shared},
	{"Concurrent", "once a fence has passed, a lower one that is shown later never does", false, concurrent},
	{"EndedContext", "a context that has ended lets nothing pass", false, endedContext},
	{"Writes", "a refused write leaves the data alone; the holder may write the same again", true, writes},
	{"AdvanceThenWrite", "a deposed holder is refused before its successor's first write", true, advanceThenWrite},
	{"ConcurrentWrites", "the data is that of the highest fence, whatever the order of arrival", true, concurrentWrites},
}

func rises(t *trial) {
	t.show(t.resource, fence(5, "a"), nil)
	t.show(t.resource, fence(9, "b"), nil)
	err := t.guard.Advance(t.ctx, t.resource, fence(5, "a"))
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || stale.Resource != t.resource || stale.Have != fence(5, "a") || stale.Seen != fence(9, "b") {
		t.Errorf("a deposed holder: %#v, want a *StaleError that names resource and both fences", err)
	}
	t.show(t.resource, fence(8, "c"), fencing.ErrStale)
	t.show(t.resource, fence(10, "d"), nil)
}

func equal(t *trial) {
	for range 3 {
		t.show(t.resource, fence(7, "a"), nil)
	}
	t.show(t.resource, fence(7, "b"), fencing.ErrStale)
	t.show(t.resource, fence(7, "A"), fencing.ErrStale) // owners differ by case too
	t.show(t.resource, fence(7, "a "), fencing.ErrStale)
	t.show(t.resource, fence(7, "a"), nil)
}

func domains(t *trial) {
	a, b := fence(100, "a"), fencing.Fence{Domain: "guardtest/b", Token: 3, Owner: "b"}
	t.show(t.resource, a, nil)
	t.show(t.resource, b, fencing.ErrDomain)
	b.Token = 1000
	t.show(t.resource, b, fencing.ErrDomain)
	t.show(t.resource, a, nil)
	if err := t.guard.Migrate(t.ctx, t.resource, "guardtest/c", b.Domain); !errors.Is(err, fencing.ErrDomain) {
		t.Errorf("Migrate from a domain that the mark is not of: %v, want ErrDomain", err)
	}
	for range 2 {
		if err := t.guard.Migrate(t.ctx, t.resource, a.Domain, b.Domain); err != nil {
			t.Errorf("Migrate: %v", err)
		}
	}
	t.show(t.resource, a, fencing.ErrDomain)
	b.Token = 3
	t.show(t.resource, b, nil)
	if err := t.guard.Migrate(t.ctx, t.resource, a.Domain, b.Domain); err != nil {
		t.Errorf("Migrate once more: %v", err)
	}
	t.show(t.resource, fencing.Fence{Domain: b.Domain, Token: 2, Owner: "b"}, fencing.ErrStale)
	if err := t.guard.Migrate(t.ctx, t.resource+"/unseen", a.Domain, b.Domain); err != nil {
		t.Errorf("Migrate of what has no mark: %v", err)
	}
	if err := t.guard.Migrate(t.ctx, t.resource, b.Domain, b.Domain); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("Migrate from a domain to itself: %v, want ErrInvalid", err)
	}
}

func digits(t *trial) {
	steps := []fencing.Token{
		1, 9, 10, 99, 100, 1<<31 - 1, 1 << 31, 1<<32 + 1, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<53 + 2, 1<<53 + 3,
		fencing.MaxToken - 1, fencing.MaxToken,
	}
	for i, token := range steps {
		t.show(t.resource, fence(token, "o"), nil)
		if i > 0 {
			t.show(t.resource, fence(steps[i-1], "o"), fencing.ErrStale)
		}
	}
}

func resources(t *trial) {
	names := []string{
		"a", "A", "a/", "/a", "a/b", "{a}b", "a{b}", "a b", " a", "a\x00", "a\x00b", "a\n", "a%", "a_", "ä", "a\u0308", "'a'", `a\`, "a:", "a*",
		strings.Repeat("x", 700), strings.Repeat("x", 699) + "y",
	}
	for i, name := range names {
		t.show(t.resource+name, fence(fencing.Token(1000-i), "o"), nil) // refused if it met one before
	}
	for i, name := range names {
		t.show(t.resource+name, fence(fencing.Token(999-i), "o"), fencing.ErrStale)
	}
}

func invalid(t *trial) {
	t.show(t.resource, fence(5, "a"), nil)
	for _, f := range []fencing.Fence{
		fence(0, "a"), fence(fencing.MaxToken+1, "a"), fence(1<<64-1, "a"), fence(9, ""), {Token: 9, Owner: "a"},
		fence(9, "\xff"), fence(9, strings.Repeat("o", 257)),
	} {
		t.show(t.resource, f, fencing.ErrInvalid)
	}
	t.show("", fence(9, "a"), fencing.ErrInvalid)
	t.show("\xff", fence(9, "a"), fencing.ErrInvalid)
	t.show(strings.Repeat("r", 1025), fence(9, "a"), fencing.ErrInvalid)
	t.show(t.resource, fence(5, "a"), nil)
}

func shared(t *trial) {
	t.show(t.resource, fence(5, "a"), nil)
	if err := t.suite.Open(t.T).Advance(t.ctx, t.resource, fence(4, "b")); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("another guard on the same data: %v, want ErrStale", err)
	}
}

func concurrent(t *trial) {
	var mu sync.Mutex
	passed := fencing.Token(0) // the highest that has passed for sure
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for range 50 {
				f := fence(1+rand.N[fencing.Token](1000), fmt.Sprint("o", w))
				mu.Lock()
				before := passed
				mu.Unlock()
				err := t.guard.Advance(t.ctx, t.resource, f)
				switch {
				case err == nil && f.Token < before:
					t.Errorf("%v passed after token %d had", f, before)
				case err == nil:
					mu.Lock()
					passed = max(passed, f.Token)
					mu.Unlock()
				case !errors.Is(err, fencing.ErrStale):
					t.Errorf("Advance: %v", err)
				}
			}
		})
	}
	writers.Wait()
	t.show(t.resource, fence(passed-1, "late"), fencing.ErrStale)
}

func endedContext(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if err := t.guard.Advance(ctx, t.resource, fence(9, "a")); !errors.Is(err, context.Canceled) {
		t.Errorf("Advance on an ended context: %v, want its error", err)
	}
	t.show(t.resource, fence(1, "b"), nil)
}

func writes(t *trial) {
	t.write(fence(5, "a"), "one", nil)
	t.write(fence(5, "a"), "one", nil) // which changes nothing, and is not stale
	t.write(fence(5, "a"), "two", nil)
	t.read("two")
	t.write(fence(6, "b"), "three", nil)
	t.write(fence(5, "a"), "four", fencing.ErrStale)
	t.write(fence(6, "c"), "five", fencing.ErrStale)
	t.write(fencing.Fence{Domain: "guardtest/b", Token: 7, Owner: "b"}, "six", fencing.ErrDomain)
	t.write(fence(0, "b"), "seven", fencing.ErrInvalid)
	t.read("three")
}

func advanceThenWrite(t *trial) {
	t.write(fence(5, "a"), "old", nil)
	t.show(t.resource, fence(6, "b"), nil)
	t.write(fence(5, "a"), "late", fencing.ErrStale)
	t.read("old")
	t.write(fence(6, "b"), "new", nil)
	t.read("new")
}

func concurrentWrites(t *trial) {
	var writers sync.WaitGroup
	const n = 100
	for _, i := range rand.Perm(n) {
		writers.Go(func() {
			f := fence(fencing.Token(i+1), fmt.Sprint("o", i))
			if err := t.suite.Write(t.ctx, t.guard, t.resource, f, fmt.Sprint(i)); err != nil && !errors.Is(err, fencing.ErrStale) {
				t.Errorf("writing with %v: %v", f, err)
			}
		})
	}
	writers.Wait()
	t.read(fmt.Sprint(n - 1))
}
