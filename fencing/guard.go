package fencing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"
)

// Guard remembers, for each resource that it protects, the highest fence that it was shown, and refuses lower ones. The mark
// never expires and belongs with the data that it protects: a guard that forgets lets a deposed holder in. All methods may
// be called concurrently.
//
// Guards with a driver are in packages of their own; [Memory] is one for a single process. Package guardtest holds a guard
// to what this page says.
type Guard interface {
	// Advance shows f for resource. It is nil when f may pass, and then the mark is f: from now on whoever holds an older
	// lease is refused, even if f's holder has not written anything yet.
	//
	// A token below the mark's, or an equal one of another owner, is ErrStale, as *StaleError. A token of another domain
	// is ErrDomain, since tokens of two lock services do not compare, until an operator calls the guard's Migrate. A
	// fence that no lease can have is ErrInvalid. None of these moves the mark. After any other error the mark may or may not have
	// moved; to show f again is harmless.
	Advance(ctx context.Context, resource string, f Fence) error
}

// The errors of guards, for errors.Is.
var (
	ErrStale   = errors.New("fencing: stale fence")    // a later holder was here before: stop, and undo nothing
	ErrDomain  = errors.New("fencing: another domain") // the mark is of another lock service
	ErrInvalid = errors.New("fencing: invalid")        // a fence that no lease has, or another value that can never work
)

// StaleError is the ErrStale of a refused fence.
type StaleError struct {
	Resource string
	Have     Fence // what was shown
	Seen     Fence // the mark
}

// Error names both fences.
func (e *StaleError) Error() string {
	return fmt.Sprintf("fencing: %v is stale for %q, which has seen %v", e.Have, e.Resource, e.Seen)
}

// Is makes it an ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

const (
	maxName     = 256  // bytes of a domain or an owner
	maxResource = 1024 // bytes
)

// Validate returns an ErrInvalid that says why no lease can have f, or resource be protected, or nil.
func Validate(resource string, f Fence) error {
	switch {
	case resource == "" || len(resource) > maxResource || !utf8.ValidString(resource):
		return fmt.Errorf("%w: resource %.64q has %d bytes; it has to have 1 to %d, of UTF-8", ErrInvalid, resource, len(resource), maxResource)
	case !f.Token.Valid():
		return fmt.Errorf("%w: token %d for %q; tokens are 1 to %d", ErrInvalid, f.Token, resource, MaxToken)
	}
	for what, s := range map[string]string{"domain": f.Domain, "owner": f.Owner} {
		if s == "" || len(s) > maxName || !utf8.ValidString(s) {
			return fmt.Errorf("%w: %s %.64q for %q; it has to have 1 to %d bytes of UTF-8", ErrInvalid, what, s, resource, maxName)
		}
	}
	return nil
}

// Check is the rule of Guard for authors of guards: whether have may pass where the mark is seen. The zero seen is no mark,
// and one without a token and an owner is that of a domain from which nothing was shown yet.
func Check(resource string, seen, have Fence) error {
	switch {
	case seen == Fence{}:
		return nil
	case seen.Domain != have.Domain:
		return fmt.Errorf("%w: %q has seen %v and was shown %v; tokens of different domains do not compare, an operator has to "+
			"call Migrate", ErrDomain, resource, seen, have)
	case have.Token < seen.Token, have.Token == seen.Token && have.Owner != seen.Owner:
		return &StaleError{Resource: resource, Have: have, Seen: seen}
	}
	return nil
}

// Memory is a Guard for what lives in this process. The zero Memory is ready to use.
type Memory struct {
	mu    sync.Mutex
	marks map[string]Fence
}

// Advance is that of Guard.
func (m *Memory) Advance(ctx context.Context, resource string, f Fence) error {
	return m.Do(ctx, resource, f, func() {})
}

// Do runs write if f may pass, with the mark at f and no other fence between: a fenced write to what resource stands for. write must
// not call the guard.
func (m *Memory) Do(ctx context.Context, resource string, f Fence, write func()) error {
	if err := Validate(resource, f); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := Check(resource, m.marks[resource], f); err != nil {
		return err
	}
	if m.marks == nil {
		m.marks = map[string]Fence{}
	}
	m.marks[resource] = f
	write()
	return nil
}

// Migrate lets fences of the domain to pass for resource, whose mark is of the domain from: what an operator calls when the locks move to
// another service, and no holder of the old one is left. It is ErrDomain when the mark is of neither, and nil when there is nothing to do.
func (m *Memory) Migrate(ctx context.Context, resource, from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	seen, ok := m.marks[resource]
	move, err := Migration(resource, seen, from, to)
	if ok && move {
		m.marks[resource] = Fence{Domain: to}
	}
	return err
}

// Migration is the rule of Migrate for authors of guards: whether the mark seen of resource has to become Fence{Domain: to}.
func Migration(resource string, seen Fence, from, to string) (move bool, err error) {
	if err := ValidateMigration(resource, from, to); err != nil {
		return false, err
	}
	switch seen.Domain {
	case "", to:
		return false, nil
	case from:
		return true, nil
	}
	return false, fmt.Errorf("%w: %q has seen %v, not one of %q", ErrDomain, resource, seen, from)
}

// ValidateMigration returns an ErrInvalid that says why resource cannot be migrated from one domain to the other, or nil: for
// authors of guards, before they ask for the mark.
func ValidateMigration(resource, from, to string) error {
	for _, domain := range []string{from, to} {
		if err := Validate(resource, Fence{Domain: domain, Token: 1, Owner: "operator"}); err != nil {
			return err
		}
	}
	if from == to {
		return fmt.Errorf("%w: cannot migrate %q from domain %q to itself", ErrInvalid, resource, from)
	}
	return nil
}
