package memlock

import (
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/conformance"
)

// TestConformance has Lockers as users do, whose calls are made inline.
func TestConformance(t *testing.T) {
	n := newNetwork()
	b := n.backend()
	b.Open = func(testing.TB) paddock.Locker {
		return open(Options{Shared: n.server}, func(b backend.Backend) backend.Backend { return counted{b, &n.sent} }, true)
	}
	conformance.Run(t, b)
}

// TestConformanceByNetwork has every Locker behind a link, whose calls may be abandoned.
func TestConformanceByNetwork(t *testing.T) {
	n := newNetwork()
	b := n.backend()
	b.Open = func(tb testing.TB) paddock.Locker {
		l, _ := n.open(tb)
		return l
	}
	conformance.Run(t, b)
}

func BenchmarkConformance(b *testing.B) {
	n := newNetwork()
	conformance.Benchmark(b, conformance.Backend{Open: func(testing.TB) paddock.Locker { return New(&Options{Shared: n.server}) }})
}
