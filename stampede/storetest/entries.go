package storetest

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

func show(e stampede.Entry) string {
	return fmt.Sprintf("%v %.32q (failure %q, left %v, fence %v)", e.Kind, e.Value, e.Failure, e.Left, e.Fence)
}

func absent(tb testing.TB, s Store) {
	p := s.open(tb)
	a, b := freshKey("a"), freshKey("b")
	es, err := p.Get(p.ctx, a, b)
	if err != nil || len(es) != 2 {
		tb.Fatalf("Get of two keys: %d entries, %v", len(es), err)
	}
	for _, e := range es {
		if e.Kind != stampede.Absent || e.Value != nil || e.Failure != "" || e.Fresh() || e.Stale() {
			tb.Errorf("of a key that was never stored there is %s", show(e))
		}
	}
}

func roundTrip(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	a, b, c := freshKey("a"), freshKey("b"), freshKey("c")
	e := stampede.Entry{
		Kind: stampede.Value, Value: []byte("\x00value\r\n\xff"), TTL: time.Minute, StaleFor: time.Hour,
		LoadTime: 1_234_567 * time.Microsecond, Writer: "writer-" + uuid.NewString(),
		Fence: fencing.Fence{Domain: "redis/p", Token: fencing.MaxToken, Owner: "owner"},
	}
	p.put(a, p.begin(a), e, stampede.Stored)
	empty := value("")
	p.put(c, p.begin(c), empty, stampede.Stored)
	es, err := other.Get(p.ctx, a, b, c)
	if err != nil || len(es) != 3 {
		tb.Fatalf("Get of three keys: %d entries, %v", len(es), err)
	}
	got := es[0]
	if got.Kind != e.Kind || !bytes.Equal(got.Value, e.Value) || got.TTL != e.TTL || got.StaleFor != e.StaleFor ||
		got.LoadTime != e.LoadTime || got.Writer != e.Writer || got.Fence != e.Fence || got.Failure != "" {
		tb.Errorf("stored %+v, got %+v", e, got)
	}
	if !got.Fresh() || got.Stale() || got.Left > e.TTL {
		tb.Errorf("just stored with a TTL of %v it has %v left", e.TTL, got.Left)
	}
	if es[1].Kind != stampede.Absent || es[2].Kind != stampede.Value || len(es[2].Value) != 0 {
		tb.Errorf("not in their places: %s, %s", show(es[1]), show(es[2]))
	}
	found, _, err := p.Begin(p.ctx, a, uuid.NewString(), keep)
	if err != nil || !bytes.Equal(found.Value, e.Value) || found.Writer != e.Writer || found.Fence != e.Fence || !found.Fresh() {
		tb.Errorf("Begin found %s, %v", show(found), err)
	}
}

func keys(tb testing.TB, s Store) {
	p := s.open(tb)
	id := uuid.NewString()
	names := []string{
		id, id + "}", id + "{", "{" + id + "}", "}" + id, "{}" + id, "{" + id, id + ":e1", id + ":t1", id + ":f1", id + "/", "/" + id,
		id + " ", id + "\n", id + "\x00", id + "\x00a", id + "*", id + "é", "x" + id, id + "}:e1",
	}
	for _, name := range names {
		p.put(name, p.begin(name), value(name), stampede.Stored)
	}
	es, err := p.Get(p.ctx, names...)
	if err != nil {
		tb.Fatalf("Get: %v", err)
	}
	for i, name := range names {
		if string(es[i].Value) != name {
			tb.Errorf("the entry of %q is that of %q", name, es[i].Value)
		}
	}
	p.invalidate(names[0])
	for i, name := range names[1:] {
		if p.has(name, name); tb.Failed() {
			tb.Fatalf("gone with %q: %q (%d)", names[0], name, i)
		}
	}
}

func notFound(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	p.set(k, value("v"))
	p.put(k, p.begin(k), stampede.Entry{Kind: stampede.NotFound, TTL: time.Hour, Writer: "w"}, stampede.Stored)
	if e := p.get(k); e.Kind != stampede.NotFound || !e.Fresh() || e.Writer != "w" {
		tb.Errorf("there is %s, want the answer that there is none", show(e))
	}
	p.put(k, p.begin(k), stampede.Entry{Kind: stampede.NotFound, TTL: 50 * time.Millisecond}, stampede.Stored)
	p.within(5*time.Second, "it is gone after its TTL", func() bool { return p.get(k).Kind == stampede.Absent })
}

func failure(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	t := p.begin(k)
	p.put(k, t, failed("no luck", time.Hour), stampede.Stored)
	if e := p.get(k); e.Kind != stampede.Absent || e.Failure != "no luck" {
		tb.Errorf("after a failure without an entry there is %s", show(e))
	}
	p.put(k, t, value("v"), stampede.Stored)
	if e := p.get(k); e.Failure != "" || string(e.Value) != "v" {
		tb.Errorf("after the value that followed there is %s", show(e))
	}
	p.put(k, t, failed("again", 100*time.Millisecond), stampede.Stored)
	if e, _, err := p.Begin(p.ctx, k, uuid.NewString(), keep); err != nil || string(e.Value) != "v" || e.Failure != "again" {
		tb.Errorf("Begin found %s, %v; want the value, and the failure beside it", show(e), err)
	}
	p.within(5*time.Second, "the failure is forgotten", func() bool { return p.get(k).Failure == "" })
	p.has(k, "v")
}

func nothing(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	t := p.begin(k)
	p.put(k, t, value("v"), stampede.Stored)
	p.put(k, t, failed("f", time.Hour), stampede.Stored)
	p.put(k, t, stampede.Entry{}, stampede.Stored)
	if e := p.get(k); string(e.Value) != "v" || e.Failure != "f" {
		tb.Errorf("after a Put of nothing there is %s", show(e))
	}
}

func foreign(tb testing.TB, s Store) {
	if s.Spoil == nil {
		tb.Skip("Store.Spoil is nil")
	}
	p := s.open(tb)
	k := freshKey("k")
	p.set(k, value("v"))
	s.Spoil(tb, k)
	if e := p.get(k); e.Kind != stampede.Foreign {
		tb.Errorf("there is %s, want foreign", show(e))
	}
	t := p.begin(k)
	p.put(k, t, value("again"), stampede.Stored)
	p.has(k, "again")
}

func contexts(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	ctx, cancel := context.WithCancel(p.ctx)
	cancel()
	if _, err := p.Get(ctx, k); err == nil {
		tb.Error("Get on an ended context: no error")
	}
	if _, _, err := p.Begin(ctx, k, "id", keep); err == nil {
		tb.Error("Begin on an ended context: no error")
	}
	if _, err := p.Watch(ctx, k); err == nil {
		tb.Error("Watch on an ended context: no error")
	}
}
