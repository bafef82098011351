package guardtest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/paddock-go/paddock/fencing"
)

func rises(t *trial) {
	t.show(t.resource, fence(5, "a"), nil)
	t.show(t.resource, fence(9, "b"), nil)
	err := t.guard.Advance(t.ctx, t.resource, fence(5, "a"))
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || stale.Resource != t.resource || stale.Have != fence(5, "a") || stale.Seen != fence(9, "b") {
		t.Errorf("a deposed holder: %#v, want a *StaleError that names resource and both fences", err)
	}
	t.show(t.resource, fence(8, "c"), fencing.ErrStale)
	t.show(t.resource, fence(9, "b"), nil)
	t.show(t.resource, fence(10, "d"), nil)
	t.show(t.resource, fence(9, "b"), fencing.ErrStale)
}

func equal(t *trial) {
	for range 3 {
		t.show(t.resource, fence(7, "a"), nil)
	}
	t.show(t.resource, fence(7, "b"), fencing.ErrStale)
	t.show(t.resource, fence(7, "A"), fencing.ErrStale) // owners differ by case too
	t.show(t.resource, fence(7, "a "), fencing.ErrStale)
	t.show(t.resource, fence(7, "a\x00"), fencing.ErrStale)
	t.show(t.resource, fence(7, "a"), nil)
}

func domains(t *trial) {
	a, b := fence(100, "a"), fencing.Fence{Domain: "guardtest/b", Token: 3, Owner: "b"}
	t.show(t.resource, a, nil)
	t.show(t.resource, b, fencing.ErrDomain)
	b.Token = 1000
	t.show(t.resource, b, fencing.ErrDomain)
	t.show(t.resource, fencing.Fence{Domain: "guardtest/A", Token: 1000, Owner: "a"}, fencing.ErrDomain)
	t.show(t.resource, fencing.Fence{Domain: "guardtest/a ", Token: 1000, Owner: "a"}, fencing.ErrDomain)
	t.show(t.resource, fencing.Fence{Domain: "guardtest", Token: 1000, Owner: "a"}, fencing.ErrDomain)
	t.show(t.resource, a, nil)
	t.migrate(t.resource, a.Domain, b.Domain, nil)
	t.show(t.resource, a, fencing.ErrDomain)
	a.Token = 2000
	t.show(t.resource, a, fencing.ErrDomain)
	b.Token = 3 // any will do for a start
	t.show(t.resource, b, nil)
	t.show(t.resource, fencing.Fence{Domain: b.Domain, Token: 2, Owner: "b"}, fencing.ErrStale)
}

// migrate moves the mark from one domain to the other, and checks the answer.
func (t *trial) migrate(resource, from, to string, want error) {
	t.Helper()
	if err := t.guard.Migrate(t.ctx, resource, from, to); !errors.Is(err, want) {
		t.Errorf("Migrate(%.40q, %.40q, %.40q): %v, want %v", resource, from, to, err, want)
	}
}

func migrates(t *trial) {
	a, b := fence(100, "a"), fencing.Fence{Domain: "guardtest/b", Token: 3, Owner: "b"}
	unseen := t.resource + "/unseen"
	t.migrate(unseen, a.Domain, b.Domain, nil)
	t.show(unseen, a, nil) // there was nothing to move
	t.migrate(unseen, a.Domain, b.Domain, nil)
	t.show(unseen, a, fencing.ErrDomain)
	t.migrate(unseen, b.Domain, a.Domain, nil) // and back, before anything was shown
	t.show(unseen, fence(1, "c"), nil)

	t.show(t.resource, a, nil)
	t.migrate(t.resource, "guardtest/c", b.Domain, fencing.ErrDomain)
	t.show(t.resource, a, nil)
	t.migrate(t.resource, a.Domain, b.Domain, nil)
	t.migrate(t.resource, a.Domain, b.Domain, nil) // a repetition does nothing
	t.show(t.resource, b, nil)
	t.migrate(t.resource, a.Domain, b.Domain, nil) // nor does a late one
	t.show(t.resource, fencing.Fence{Domain: b.Domain, Token: 2, Owner: "b"}, fencing.ErrStale)
	t.show(t.resource, fencing.Fence{Domain: b.Domain, Token: 3, Owner: "c"}, fencing.ErrStale)

	t.migrate(t.resource, b.Domain, b.Domain, fencing.ErrInvalid)
	t.migrate(t.resource, "", b.Domain, fencing.ErrInvalid)
	t.migrate(t.resource, b.Domain, "", fencing.ErrInvalid)
	t.migrate(t.resource, b.Domain, strings.Repeat("d", 257), fencing.ErrInvalid)
	t.migrate("", a.Domain, b.Domain, fencing.ErrInvalid)
	t.show(t.resource, b, nil)
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
	var names []string
	for _, odd := range []string{
		"", "a", "A", "a/", "/a", "a/b", "a//b", "{a}b", "a{b}", "{", "}", "{}", "}{", "{{a}}", "a b", " a", "a ", "a\x00", "a\x00b", "\x00",
		"a\n", "a%", "a%2F", "a_", "ä", "a\u0308", "'a'", `a\`, `"`, "`", "a:", "a*", "a?", "[a]", "$1", "\U0001F512",
		strings.Repeat("x", 700), strings.Repeat("x", 699) + "y",
	} {
		names = append(names, t.resource+odd)
		if odd != "" {
			names = append(names, odd+t.resource)
		}
	}
	rest := 1024 - len(t.resource) // of the longest name, in characters of 4 bytes
	names = append(names, t.resource+strings.Repeat("x", rest%4)+strings.Repeat("\U0001F512", rest/4))
	for i, name := range names {
		t.show(name, fence(fencing.Token(1000-i), "o"), nil) // refused if it met one before
	}
	for i, name := range names {
		t.show(name, fence(fencing.Token(999-i), "o"), fencing.ErrStale)
	}
}

func many(t *trial) {
	const n = 200
	for i := range n {
		t.show(fmt.Sprint(t.resource, "/", i), fence(9, "a"), nil)
	}
	for i := range n {
		t.show(fmt.Sprint(t.resource, "/", i), fence(8, "b"), fencing.ErrStale)
	}
}

func invalid(t *trial) {
	t.show(t.resource, fence(5, "a"), nil)
	for _, f := range []fencing.Fence{
		{}, fence(0, "a"), fence(fencing.MaxToken+1, "a"), fence(1<<64-1, "a"), fence(9, ""), {Token: 9, Owner: "a"},
		fence(9, "\xff"), fence(9, strings.Repeat("o", 257)), {Domain: "\xff", Token: 9, Owner: "a"},
		{Domain: strings.Repeat("d", 257), Token: 9, Owner: "a"},
	} {
		t.show(t.resource, f, fencing.ErrInvalid)
	}
	t.show("", fence(9, "a"), fencing.ErrInvalid)
	t.show("\xff", fence(9, "a"), fencing.ErrInvalid)
	t.show(strings.Repeat("r", 1025), fence(9, "a"), fencing.ErrInvalid)
	t.show(t.resource, fence(5, "a"), nil)

	long := fencing.Fence{Domain: strings.Repeat("d", 256), Token: 1, Owner: strings.Repeat("o", 256)} // and this is valid
	t.show(t.resource+"/long", long, nil)
	t.show(t.resource+"/long", fencing.Fence{Domain: long.Domain, Token: 1, Owner: long.Owner[1:]}, fencing.ErrStale)
}

func shared(t *trial) {
	t.show(t.resource, fence(5, "a"), nil)
	other := t.suite.Open(t.T)
	if err := other.Advance(t.ctx, t.resource, fence(4, "b")); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("another guard on the same data: %v, want ErrStale", err)
	}
	if err := other.Advance(t.ctx, t.resource, fence(6, "b")); err != nil {
		t.Errorf("another guard on the same data: %v", err)
	}
	t.show(t.resource, fence(5, "a"), fencing.ErrStale)
}

func endedContext(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	if err := t.guard.Advance(ctx, t.resource, fence(9, "a")); !errors.Is(err, context.Canceled) {
		t.Errorf("Advance on an ended context: %v, want its error", err)
	}
	t.show(t.resource, fence(1, "b"), nil)
	if err := t.guard.Migrate(ctx, t.resource, fence(1, "b").Domain, "guardtest/b"); !errors.Is(err, context.Canceled) {
		t.Errorf("Migrate on an ended context: %v, want its error", err)
	}
	t.show(t.resource, fence(1, "b"), nil)
}
