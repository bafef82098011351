// Package bench measures paddock beside the bare client calls that it makes and beside its peers, in one run. It is a module of its
// own, so that no user of paddock has the peers in his go.sum.
//
//	cd bench && go test -bench . -benchtime 2000x
//
// Absolute figures say little: the machine's speed drifts, and on few cores it has two modes, as client and server share a core or
// not. So variants take turns in short blocks of random order, and what counts is a variant's median over that of the bare calls.
package bench

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// variant is one way to do the same work.
type variant struct {
	name string
	run  func() error
}

const block = 20 // operations of one variant before the next has its turn

// compare runs every variant b.N times, at least one block, and reports the median of each in microseconds and as a multiple of
// the first one's.
func compare(b *testing.B, variants ...variant) {
	b.Helper()
	took := make([][]time.Duration, len(variants))
	one := func(i int) {
		begun := time.Now()
		if err := variants[i].run(); err != nil {
			b.Fatalf("%s: %v", variants[i].name, err)
		}
		took[i] = append(took[i], time.Since(begun))
	}
	for i := range variants { // connections, scripts, sessions
		for range 3 {
			one(i)
		}
		took[i] = nil
	}
	b.ResetTimer()
	for done := 0; done < b.N; done += block {
		for _, i := range rand.Perm(len(variants)) {
			for range min(block, b.N-done) {
				one(i)
			}
		}
	}
	b.StopTimer()
	base := median(took[0])
	for i, v := range variants {
		m := median(took[i])
		b.ReportMetric(float64(m.Nanoseconds())/1000, v.name+"-us")
		if i > 0 {
			b.ReportMetric(float64(m)/float64(base), v.name+"-x")
		}
	}
	b.ReportMetric(0, "ns/op") // of all variants together: says nothing
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}
