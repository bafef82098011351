// Package conformance holds any paddock.Locker to the rules of the contract. A backend's test is one call:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Backend{Open: open})
//	}
//
// Every case is named after its rule, as in Rule05/AbandonedAttemptsLeaveNothing, and a failure prints the sentence that was
// broken. What Guarantees does not promise is not asked for. What the [Backend] has no means for is skipped, and the skip
// prints the rule too: a suite that skips has not been passed.
//
// # Time
//
// The suite needs real time: leases have to run out. It uses the shortest TTLs that are sensible and that
// Guarantees.MinTTL allows, so a MinTTL of a second or less makes it quick. It runs what it can side by side. Time limits that could fail a
// slow machine are seconds long; where something has to happen "at once", the alternative is a TTL of a minute.
package conformance

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
)

// Backend is what a backend's author fills in. Only Open is needed; each other field makes more cases run.
type Backend struct {
	// Open returns a Locker with connections of its own on the service under test. The suite closes it; what else was
	// opened belongs into tb.Cleanup. Lockers of one Run have to meet: one service, one prefix, which nothing else uses.
	Open func(tb testing.TB) paddock.Locker

	// Child says that TestMain calls [Child], so that the suite can run the test binary again, to kill and to stop that
	// process while it holds a key.
	Child bool

	// Faults are what the service and the way to it can be made to suffer.
	Faults *Faults

	// Commands counts the requests on the wire so far, of all Lockers that Open returned.
	Commands func() int64
	// Costs is how many requests the backend documents. Fields default to 1.
	Costs Costs

	// Left lists what is stored under the prefix, less what the package documents as kept on purpose. Each string should
	// show the key that it is about: the suite's keys hold the name of their case. It needs a connection of its own.
	Left func(ctx context.Context) ([]string, error)
}

// Costs counts requests of a Locker that is warm: connections made, scripts loaded, sessions begun.
type Costs struct {
	Acquire   int64 // of a free key
	Contended int64 // TryAcquire of a key held by another
	Release   int64
}

// Faults of the service; a nil field skips the cases that need it.
type Faults struct {
	// Open is as Backend.Open, but the Locker's connections all pass through a link of its own that can be spoiled.
	Open func(tb testing.TB) (paddock.Locker, Link)
	// Restart stops the service and starts it again, with the data that it keeps. It returns when the service answers.
	Restart func(tb testing.TB)
	// Forget makes the service lose all locks, as a server does that keeps nothing on disk. It returns when that is done.
	Forget func(tb testing.TB)
}

// Link spoils what passes between one Locker and the service, from the call until Pass. Calls do not wait for anything.
// Where the service has several servers, all are meant.
type Link struct {
	// DelayRequests delivers what is sent from now on after d, also when the sender has given up by then. With d == 0,
	// and after Pass, later requests are not delayed any more; those that already are keep their time.
	DelayRequests func(d time.Duration)
	// DelayReplies delivers what the service answers from now on after d.
	DelayReplies func(d time.Duration)
	// LoseReplies lets requests pass and drops the answers.
	LoseReplies func()
	// Silence delivers nothing in either direction, on connections that stay open.
	Silence func()
	// Cut breaks all connections and refuses new ones.
	Cut func()
	// Pass lets everything pass again. What Silence kept back is delivered late; connections that lost a reply may break.
	Pass func()
}

// check is a case.
type check struct {
	name string // RuleNN/WhatItShows
	rule string // the sentence, which a failure prints
	// alone: it counts commands or goroutines, looks at everything that is left, spoils the service for all, or needs the whole processor.
	alone bool
	only  func(g paddock.Guarantees) bool // the Guarantees that it is about; nil: any
	run   func(t *trial)
}

var checks = slices.Concat(
	silence, // first, since it takes longest
	exclusion, trying, waiting, contexts, abandon, acquisition, window, renewal, loss, release, tokens, crash, reentrancy, keys, extend, shorten,
	sentinelCases, closing, leaks, inspecting, doing, wire,
)

// together is how many cases run side by side.
const together = 16

// Run holds the Lockers that b opens to every rule.
func Run(t *testing.T, b Backend) {
	t.Helper()
	if b.Open == nil {
		t.Fatal("conformance: Backend.Open is nil")
	}
	first := b.Open(t)
	s := &suite{t: t, b: b, g: first.Guarantees(), pulse: newPulse()}
	defer s.pulse.stop()
	if err := first.Close(); err != nil {
		t.Fatalf("conformance: Close of a Locker that was not used: %v", err)
	}
	var rest []check
	for _, c := range checks {
		switch {
		case c.only != nil && !c.only(s.g):
		case c.alone:
			s.run(c)
		default:
			rest = append(rest, c)
		}
	}
	places := make(chan struct{}, together)
	var running sync.WaitGroup
	for _, c := range rest {
		running.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			s.run(c)
		})
	}
	running.Wait()
	s.run(check{name: "Rule19/NothingIsLeft", rule: ruleNoKey, alone: true, run: func(*trial) {}})
}

// suite is one Run.
type suite struct {
	t     *testing.T
	b     Backend
	g     paddock.Guarantees
	pulse *pulse
}

func (s *suite) run(c check) {
	s.t.Run(c.name, func(t *testing.T) {
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s is about this rule: %s", c.name, c.rule)
			}
		})
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+20*s.g.MinTTL)
		tr := &trial{T: t, b: &s.b, g: s.g, check: &c, ctx: ctx, late: min(s.pulse.late(), time.Second)}
		if c.alone {
			t.Cleanup(func() { tr.nothingLeft() }) // after everything was closed
		}
		t.Cleanup(cancel)
		c.run(tr)
	})
}
