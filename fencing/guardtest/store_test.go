package guardtest_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/fencing/guardtest"
)

func suite(flaw string) guardtest.Guard {
	s := &store{flaw: flaw, marks: map[string]fencing.Fence{}, data: map[string]string{}}
	return guardtest.Guard{
		Open: func(testing.TB) guardtest.Migrater {
			if flaw == keepsToItself {
				return &store{marks: map[string]fencing.Fence{}, data: s.data}
			}
			return s
		},
		Write: func(ctx context.Context, g guardtest.Migrater, resource string, f fencing.Fence, value string) error {
			return g.(*store).write(ctx, resource, f, value)
		},
		Read: func(ctx context.Context, g guardtest.Migrater, resource string) (string, error) {
			s := g.(*store)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.data[resource], nil
		},
	}
}

// store is a guard over a map, and the data.
type store struct {
	flaw string

	mu     sync.Mutex
	marks  map[string]fencing.Fence
	data   map[string]string
	recent []string // resources, for the guard that forgets
	busy   int      // first fences under way
}

// moment lets others in between.
func (s *store) moment() {
	s.mu.Unlock()
	time.Sleep(time.Millisecond)
	s.mu.Lock()
}

func (s *store) Advance(ctx context.Context, resource string, f fencing.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.show(ctx, resource, f)
}

func (s *store) write(ctx context.Context, resource string, f fencing.Fence, value string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.flaw {
	case writesFirst:
		s.data[resource] = value
	case writesUnseen:
		s.data[resource] = value
		return nil
	case writesWithoutMark:
		if err := fencing.Check(resource, s.marks[resource], f); err != nil {
			return err
		}
		s.data[resource] = value
		return nil
	}
	if err := s.show(ctx, resource, f); err != nil {
		return err
	}
	if s.flaw == writesLater {
		s.moment()
	}
	s.data[resource] = value
	return nil
}

func (s *store) show(ctx context.Context, resource string, f fencing.Fence) error {
	if err := ctx.Err(); err != nil && s.flaw != deafToCtx {
		return err
	}
	if err := s.validate(resource, f); err != nil {
		return err
	}
	name := s.name(resource)
	seen := s.marks[name]
	if s.flaw == failsFirst && seen == (fencing.Fence{}) {
		s.busy++
		s.moment()
		defer func() { s.busy-- }()
		if s.busy > 1 {
			return errors.New("duplicate key")
		}
		seen = s.marks[name]
	}
	if err := s.check(resource, seen, f); err != nil {
		if s.flaw == raisesOnRefusal {
			s.marks[name] = f
		}
		return err
	}
	if s.flaw == races {
		s.moment()
	}
	if s.flaw == neverRaises && seen != (fencing.Fence{}) {
		return nil
	}
	s.marks[name] = f
	if s.flaw == forgets {
		s.recent = append(s.recent, name)
		if len(s.recent) > 100 {
			delete(s.marks, s.recent[0])
			s.recent = s.recent[1:]
		}
	}
	return nil
}

func (s *store) validate(resource string, f fencing.Fence) error {
	valid := f
	switch {
	case s.flaw == acceptsZero && f.Token == 0, s.flaw == acceptsUnsigned && f.Token > fencing.MaxToken:
		valid.Token = 1
	case s.flaw == acceptsAnyName:
		resource, valid.Owner, valid.Domain = "r", "o", "d"
	}
	return fencing.Validate(resource, valid)
}

// name is what a resource's mark is called.
func (s *store) name(resource string) string {
	switch s.flaw {
	case foldsResources:
		return strings.ToLower(resource)
	case stopsAtNUL:
		resource, _, _ = strings.Cut(resource, "\x00")
	case trimsSpace:
		return strings.TrimSpace(resource)
	case usesHashTags:
		if _, rest, ok := strings.Cut(resource, "{"); ok {
			if tag, _, ok := strings.Cut(rest, "}"); ok {
				return tag
			}
		}
	case cutsNames:
		return resource[:min(500, len(resource))]
	}
	return resource
}

func (s *store) check(resource string, seen, f fencing.Fence) error {
	old, shown := seen, f
	switch s.flaw {
	case acceptsStale:
		f.Token = max(f.Token, seen.Token+1)
	case acceptsTwins:
		f.Owner = seen.Owner
	case refusesTwice:
		if f == seen {
			f.Owner += "'"
		}
	case foldsOwners:
		f.Owner, seen.Owner = strings.ToLower(f.Owner), strings.ToLower(seen.Owner)
	case foldsDomains:
		f.Domain, seen.Domain = strings.ToLower(f.Domain), strings.ToLower(seen.Domain)
	case ignoresDomains:
		f.Domain = seen.Domain
	case comparesFloats:
		f.Token, seen.Token = fencing.Token(math.Min(float64(f.Token), 1<<62)), fencing.Token(math.Min(float64(seen.Token), 1<<62))
	case comparesText:
		if a, b := fmt.Sprint(f.Token), fmt.Sprint(seen.Token); a < b {
			f.Token, seen.Token = 1, 2
		} else if a > b {
			f.Token, seen.Token = 2, 1
		}
	}
	err := fencing.Check(resource, seen, f)
	if errors.Is(err, fencing.ErrStale) {
		if s.flaw == bareErrStale {
			return fmt.Errorf("%w: %v", fencing.ErrStale, shown)
		}
		return &fencing.StaleError{Resource: resource, Have: shown, Seen: old}
	}
	return err
}

func (s *store) Migrate(ctx context.Context, resource, from, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	name := s.name(resource)
	seen := s.marks[name]
	move, err := fencing.Migration(resource, seen, from, to)
	switch {
	case s.flaw == migrateTakesAll && errors.Is(err, fencing.ErrDomain):
		move, err = true, nil
	case s.flaw == migrateCreates && err == nil && seen == (fencing.Fence{}), s.flaw == migrateLate && err == nil && seen.Domain == to:
		move = true
	case s.flaw == migrateForgets && move:
		delete(s.marks, name)
		return nil
	case s.flaw == migrateRaces && move:
		s.moment()
		if s.marks[name] != seen { // it looks once more, and thinks that this is all right
			return nil
		}
	}
	if move {
		s.marks[name] = fencing.Fence{Domain: to}
	}
	return err
}
