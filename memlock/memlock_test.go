package memlock

import (
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/conformance"
)

// TestConformance has Lockers as users do, whose calls are made inline.
func TestConformance(t *testing.T) {
	conformance.Run(t, newNetwork().backend())
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
