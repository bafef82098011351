package storetest

import (
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

func freshness(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	e := value("v")
	e.TTL, e.StaleFor = 300*time.Millisecond, 400*time.Millisecond
	sent := time.Now()
	p.put(k, p.begin(k), e, stampede.Stored)
	stored := time.Now()
	slack := s.Step + 5*time.Millisecond // what a server may take to see that time has passed
	last := e.TTL + 1
	for sawStale := false; ; time.Sleep(5 * time.Millisecond) {
		before := time.Now()
		got := p.get(k)
		after := time.Now()
		if got.Kind == stampede.Absent {
			if since := after.Sub(sent); since < e.TTL+e.StaleFor {
				tb.Errorf("gone %v after it was stored, before its TTL and stale window were over", since)
			}
			if !sawStale && before.Sub(stored) < e.TTL+e.StaleFor-50*time.Millisecond {
				tb.Errorf("it was never stale")
			}
			return
		}
		if got.Left > last {
			tb.Fatalf("Left rose from %v to %v", last, got.Left)
		}
		last = got.Left
		if most, least := e.TTL-before.Sub(stored)+slack, e.TTL-after.Sub(sent)-slack; got.Left > most || got.Left < least {
			tb.Fatalf("Left is %v, want %v to %v", got.Left, least, most)
		}
		if got.Fresh() == got.Stale() {
			tb.Fatalf("with %v left of %v + %v it is fresh: %v, stale: %v", got.Left, got.TTL, got.StaleFor, got.Fresh(), got.Stale())
		}
		sawStale = sawStale || got.Stale()
		if before.Sub(stored) > e.TTL+e.StaleFor+slack {
			tb.Fatalf("still there %v after it was stored", before.Sub(stored))
		}
	}
}

func longTimes(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	e := value("v")
	e.TTL, e.StaleFor, e.LoadTime = 5*365*24*time.Hour, 10*365*24*time.Hour, time.Microsecond
	p.put(k, p.begin(k), e, stampede.Stored)
	got := p.get(k)
	if got.TTL != e.TTL || got.StaleFor != e.StaleFor || got.LoadTime != e.LoadTime || got.Left < e.TTL-time.Minute || got.Left > e.TTL {
		tb.Errorf("stored %+v, got %+v", e, got)
	}
	e = value("short")
	e.TTL, e.StaleFor = s.Step, 0
	p.set(k, e)
	p.within(5*time.Second, "an entry that lives for one step is gone", func() bool { return p.get(k).Kind == stampede.Absent })
}

// failureOutlives: a failure does not make the entry beside it live longer, nor does a second failure.
func failureOutlives(tb testing.TB, s Store) {
	p := s.open(tb)
	k := freshKey("k")
	t := p.begin(k)
	e := value("v")
	e.TTL, e.StaleFor = 300*time.Millisecond, 300*time.Millisecond
	sent := time.Now()
	p.put(k, t, e, stampede.Stored)
	p.put(k, t, failed("first", time.Hour), stampede.Stored)
	for _, f := range []string{"second", "third"} {
		time.Sleep(50 * time.Millisecond)
		p.put(k, t, failed(f, time.Minute), stampede.Stored)
		got := p.get(k)
		if time.Since(sent) < e.TTL+e.StaleFor && (string(got.Value) != "v" || got.Failure != f || got.Left > e.TTL-50*time.Millisecond) {
			tb.Errorf("beside the failure %q there is %s", f, show(got))
		}
	}
	p.within(5*time.Second, "the entry is gone", func() bool { return p.get(k).Kind == stampede.Absent })
	// Each of the three may have cut off a part of a step.
	if gone := time.Since(sent); gone < e.TTL+e.StaleFor-3*s.Step {
		tb.Errorf("the entry was gone after %v, before its time", gone)
	}
	if got := p.get(k); got.Failure != "third" {
		tb.Errorf("after the entry's end there is %s, want the failure", show(got))
	}
	p.put(k, t, failed("fourth", 50*time.Millisecond), stampede.Stored)
	p.within(5*time.Second, "nothing is left", func() bool { g := p.get(k); return g.Failure == "" && g.Kind == stampede.Absent })
}
