package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

const hintWait = 5 * time.Second

func hinted(tb testing.TB, hints <-chan struct{}, what string) {
	tb.Helper()
	select {
	case _, ok := <-hints:
		if !ok {
			tb.Fatalf("the channel was closed; it is to be abandoned")
		}
	case <-time.After(hintWait):
		tb.Fatalf("%s, and after %v its watchers were not told", what, hintWait)
	}
}

func drain(hints <-chan struct{}) {
	select {
	case <-hints:
	default:
	}
}

func watch(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	k := freshKey("k")
	t := other.begin(k)
	hints, err := p.Watch(p.ctx, k)
	if err != nil {
		tb.Fatalf("Watch: %v", err)
	}
	also, err := p.Watch(p.ctx, k)
	if err != nil {
		tb.Fatalf("a second Watch: %v", err)
	}
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"a load stored a value", func() { other.put(k, t, value("v"), stampede.Stored) }},
		{"a load failed", func() { other.put(k, t, failed("f", time.Hour), stampede.Stored) }},
		{"a load ended with nothing", func() { other.put(k, t, stampede.Entry{}, stampede.Stored) }},
		{"a load was refused", func() { other.put(k, stampede.Ticket{ID: "x"}, value("v"), stampede.Invalidated) }},
		{"the key was set", func() { other.set(k, value("v")) }},
		{"the key was invalidated", func() { other.invalidate(k) }},
	} {
		c.do()
		hinted(tb, hints, c.what)
		hinted(tb, also, c.what)
	}
}

func watchEnds(tb testing.TB, s Store) {
	p, other := s.open(tb), s.open(tb)
	k := freshKey("k")
	for range 20 {
		ctx, cancel := context.WithCancel(p.ctx)
		hints, err := p.Watch(ctx, k)
		if err != nil {
			tb.Fatalf("Watch: %v", err)
		}
		other.set(k, value("v"))
		hinted(tb, hints, "the key was set")
		cancel()
	}
	// One that ends does not take another with it.
	ctx, cancel := context.WithCancel(p.ctx)
	gone, err := p.Watch(ctx, k)
	if err != nil {
		tb.Fatalf("Watch: %v", err)
	}
	stays, err := p.Watch(p.ctx, k)
	if err != nil {
		tb.Fatalf("Watch: %v", err)
	}
	cancel()
	p.within(hintWait, "a watch whose context has ended gets no hints", func() bool {
		drain(gone)
		drain(stays)
		other.set(k, value("v"))
		hinted(tb, stays, "the key was set")
		select {
		case <-gone:
			return false
		default:
			return true
		}
	})
}
