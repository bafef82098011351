package storetest

import (
	"testing"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/stampede"
)

func repeatedBegin(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	k, id := freshKey("k"), uuid.NewString()
	begin := func() stampede.Ticket {
		_, t, err := p.Begin(p.ctx, k, id, keep)
		if err != nil {
			tb.Fatalf("Begin(%q): %v", k, err)
		}
		return t
	}
	first := begin()
	if again := begin(); again.ID != first.ID {
		tb.Errorf("Begin made the ticket %+v, and found %+v", first, again)
	}
	for what, drop := range map[string]func(){
		"an invalidation": func() { other.invalidate(k) },
		"a Set":           func() { other.set(k, value("new")) },
	} {
		drop()
		if again := begin(); again.ID == first.ID {
			tb.Errorf("after %s the ticket %+v is there again", what, first)
		}
		p.put(k, first, value("old"), stampede.Invalidated)
		first = begin()
	}
}
