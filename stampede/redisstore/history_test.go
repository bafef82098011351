package redisstore_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// A history is what the processes of a race have seen. Its times are numbers that one server has counted up, a new one for each: a
// number that was drawn before another is lower, whatever process drew it.

// change is an acknowledged Invalidate or Set: the source had version before it was sent, and end was drawn after the acknowledgement.
type change struct {
	Key          string // "": all keys
	Version, End int64
}

// served is what a call was served: begin was drawn before it.
type served struct {
	Key            string
	Begin, Version int64
	Status         string
}

type history struct {
	Changes []change
	Served  []served
}

// old returns what was served although a change to something newer had been acknowledged before the call began.
func (h *history) old() (violations []string) {
	slices.SortFunc(h.Changes, func(a, b change) int { return cmp.Compare(a.End, b.End) })
	slices.SortFunc(h.Served, func(a, b served) int { return cmp.Compare(a.Begin, b.Begin) })
	next, floors := 0, map[string]change{}
	for _, s := range h.Served {
		for ; next < len(h.Changes) && h.Changes[next].End < s.Begin; next++ {
			if c := h.Changes[next]; c.Version > floors[c.Key].Version {
				floors[c.Key] = c
			}
		}
		for _, floor := range []change{floors[""], floors[s.Key]} {
			if s.Version < floor.Version {
				violations = append(violations, fmt.Sprintf("a call for %s that began at %d was served version %d (%s), after version %d had been acknowledged at %d",
					s.Key, s.Begin, s.Version, s.Status, floor.Version, floor.End))
				break
			}
		}
	}
	return violations
}

func (h *history) add(more history) {
	h.Changes = append(h.Changes, more.Changes...)
	h.Served = append(h.Served, more.Served...)
}

func TestHistory(t *testing.T) {
	t.Parallel()
	changes := []change{{Version: 2, End: 20}, {Version: 3, End: 10}, {Version: 5, End: 50}, {Key: "a", Version: 6, End: 60}}
	for name, c := range map[string]struct {
		served served
		old    bool
	}{
		"before any change":               {served{Begin: 5, Version: 0}, false},
		"newer than any change":           {served{Begin: 5, Version: 7}, false},
		"old after a change":              {served{Begin: 11, Version: 2}, true},
		"as new as the change":            {served{Begin: 11, Version: 3}, false},
		"a later change of what is older": {served{Begin: 21, Version: 2}, true},
		"while a change is under way":     {served{Begin: 49, Version: 3}, false},
		"after it":                        {served{Begin: 51, Version: 4}, true},
		"after a change of the key":       {served{Key: "a", Begin: 61, Version: 5}, true},
		"after a change of another key":   {served{Key: "b", Begin: 61, Version: 5}, false},
	} {
		h := history{Changes: slices.Clone(changes), Served: []served{c.served, {Begin: 1, Version: 0}, {Begin: 99, Version: 9}}}
		if old := h.old(); len(old) > 0 != c.old || len(old) > 1 {
			t.Errorf("%s: %v; want it found old: %v", name, old, c.old)
		}
	}
}

// broken are stores with one thing wrong with them, to see that a race finds it out.
var broken = map[string]func(stampede.Store) stampede.Store{
	"puts ignore the ticket": func(s stampede.Store) stampede.Store { return ticketless{s, true} },
	"puts say stored":        func(s stampede.Store) stampede.Store { return ticketless{s, false} },
}

// ticketless stores what was refused, or only says so.
type ticketless struct {
	stampede.Store
	stores bool
}

func (s ticketless) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	o, err := s.Store.Put(ctx, key, t, e)
	if o != stampede.Invalidated || e.Kind != stampede.Value {
		return o, err
	}
	if s.stores {
		err = s.Set(ctx, key, e)
	}
	return stampede.Stored, err
}

// moment is a random while, now and then a long one.
func moment(rnd *rand.Rand, most time.Duration) time.Duration {
	if rnd.IntN(8) == 0 {
		return time.Duration(rnd.Int64N(int64(most)))
	}
	return time.Duration(rnd.Int64N(int64(most / 10)))
}
