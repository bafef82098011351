package storetest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

func tickets(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	k := freshKey("k")
	first := p.begin(k)
	second := other.begin(k)
	if first.ID == "" || second.ID != first.ID || second.Turn <= first.Turn {
		tb.Errorf("two loads of one key have the tickets %+v and %+v; want one, with a later turn", first, second)
	}
	if foreign := p.begin(freshKey("k")); foreign.ID == first.ID {
		tb.Errorf("two keys have the ticket %+v", foreign)
	}
	p.put(k, second, value("b"), stampede.Stored)
	if third := p.begin(k); third.ID != first.ID {
		tb.Errorf("after a Put the ticket is %+v, was %+v", third, first)
	}
	p.put(k, stampede.Ticket{ID: uuid.NewString(), Turn: 100}, value("c"), stampede.Invalidated)
	p.put(freshKey("k"), first, value("c"), stampede.Invalidated)
}

func ticketKept(tb testing.TB, s Store) {
	p := s.open(tb)
	short, long := freshKey("short"), freshKey("long")
	const brief = 50 * time.Millisecond
	_, t, err := p.Begin(p.ctx, short, uuid.NewString(), brief)
	if err != nil {
		tb.Fatal(err)
	}
	kept := p.begin(long)
	if _, again, err := p.Begin(p.ctx, long, uuid.NewString(), brief); err != nil || again.ID != kept.ID {
		tb.Fatalf("Begin found %+v, %v; want %+v", again, err, kept)
	}
	p.within(5*time.Second, "the ticket is forgotten after its time", func() bool {
		o, err := p.Put(p.ctx, short, t, stampede.Entry{})
		return err == nil && o == stampede.Invalidated
	})
	p.put(long, kept, value("v"), stampede.Stored)
}

func invalidate(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	a, b := freshKey("a"), freshKey("b")
	ta, tb1 := p.begin(a), p.begin(b)
	p.put(a, ta, value("v"), stampede.Stored)
	p.put(a, ta, failed("f", time.Hour), stampede.Stored)
	other.invalidate(a, b)
	if e := p.get(a); e.Kind != stampede.Absent || e.Failure != "" {
		tb.Errorf("after Invalidate there is %s", show(e))
	}
	p.put(a, ta, value("old"), stampede.Invalidated)
	p.put(b, tb1, value("old"), stampede.Invalidated)
	p.put(b, tb1, failed("old", time.Hour), stampede.Invalidated)
	next := p.begin(a)
	if next.ID == ta.ID {
		tb.Errorf("the ticket %+v has outlived Invalidate", ta)
	}
	p.put(a, next, value("new"), stampede.Stored)
	p.put(a, ta, value("old"), stampede.Invalidated)
	p.has(a, "new")
	if e := p.get(b); e.Kind != stampede.Absent || e.Failure != "" {
		tb.Errorf("of the other key there is %s", show(e))
	}
}

func set(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	k := freshKey("k")
	t := p.begin(k)
	p.put(k, t, failed("f", time.Hour), stampede.Stored)
	other.set(k, value("set"))
	p.put(k, t, value("old"), stampede.Invalidated)
	if e := p.get(k); string(e.Value) != "set" || e.Failure != "" || !e.Fresh() {
		tb.Errorf("after Set there is %s", show(e))
	}
}

func evictedTicket(tb testing.TB, s Store) {
	if s.EvictTicket == nil {
		tb.Skip("Store.EvictTicket is nil")
	}
	p := s.open(tb)
	k := freshKey("k")
	t := p.begin(k)
	s.EvictTicket(tb, k)
	p.put(k, t, value("old"), stampede.Invalidated) // who knows what else was forgotten
	next := p.begin(k)
	p.put(k, t, value("old"), stampede.Invalidated)
	p.put(k, next, value("new"), stampede.Stored)
	p.has(k, "new")
}

func evictedEntry(tb testing.TB, s Store) {
	if s.EvictEntry == nil {
		tb.Skip("Store.EvictEntry is nil")
	}
	p := s.open(tb)
	k := freshKey("k")
	t := p.begin(k)
	p.put(k, t, value("v"), stampede.Stored)
	s.EvictEntry(tb, k)
	p.has(k, "")
	p.put(k, t, value("w"), stampede.Stored)
	p.has(k, "w")
}

func fenceOrder(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	deposed, holder := p.begin(k), p.begin(k)
	p.put(k, deposed, fenced("deposed", "d", 5), stampede.Stored) // nothing newer is there
	p.put(k, holder, fenced("holder", "d", 6), stampede.Stored)
	p.put(k, deposed, fenced("late", "d", 5), stampede.Superseded)
	p.put(k, deposed, failed("late", time.Hour), stampede.Superseded)
	p.has(k, "holder")
	p.put(k, holder, fenced("equal", "d", 6), stampede.Stored)
	p.put(k, deposed, fenced("higher", "d", 7), stampede.Stored) // whatever its turn
	p.has(k, "higher")
}

func largeTokens(tb testing.TB, s Store) {
	p := s.open(tb)
	for _, tokens := range [][2]fencing.Token{{9, 10}, {99, 100}, {1<<53 + 1, 1<<53 + 2}, {fencing.MaxToken - 1, fencing.MaxToken}} {
		k := freshKey("k")
		t := p.begin(k)
		p.put(k, t, fenced("high", "d", tokens[1]), stampede.Stored)
		p.put(k, t, fenced("low", "d", tokens[0]), stampede.Superseded)
		p.put(k, t, fenced("equal", "d", tokens[1]), stampede.Stored)
	}
}

func turnOrder(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	first, second, third := p.begin(k), p.begin(k), p.begin(k)
	p.put(k, second, value("unfenced"), stampede.Stored)
	p.put(k, first, value("early"), stampede.Superseded)
	p.put(k, first, fenced("early", "d", 9), stampede.Superseded)
	p.put(k, third, fenced("other", "d", 9), stampede.Stored)
	p.put(k, second, fenced("between", "e", 10), stampede.Superseded)
	p.put(k, second, value("unfenced"), stampede.Superseded)
	p.has(k, "other")
	p.put(k, third, value("same"), stampede.Stored)
	p.has(k, "same")
}

func refused(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	old := p.begin(k)
	p.invalidate(k)
	t := p.begin(k)
	p.put(k, t, fenced("v", "d", 2), stampede.Stored)
	p.put(k, t, failed("f", time.Hour), stampede.Stored)
	was := p.get(k)
	p.put(k, old, fenced("old", "d", 9), stampede.Invalidated)
	p.put(k, t, fenced("low", "d", 1), stampede.Superseded)
	if e := p.get(k); string(e.Value) != "v" || e.Writer != was.Writer || e.Failure != "f" || e.Left > was.Left {
		tb.Errorf("two refused puts made %s of %s", show(e), show(was))
	}
	p.put(k, t, fenced("next", "d", 3), stampede.Stored) // the refused token of 9 does not count
}

func repeated(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	t, e := p.begin(k), fenced("v", "d", 3)
	p.put(k, t, e, stampede.Stored)
	p.put(k, t, e, stampede.Stored)
	p.has(k, "v")
	p.invalidate(k)
	p.put(k, t, e, stampede.Invalidated)
	p.has(k, "")
}
