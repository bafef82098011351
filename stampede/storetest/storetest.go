// Package storetest holds a stampede.Store to what the interface says.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Store{Open: func(tb testing.TB) stampede.Store { ... }})
//	}
//
// A case that cannot run, since the Store under test gave no means to, is skipped and says so.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/stampede"
)

// Store is a Store under test.
type Store struct {
	// Open returns a Store with connections of its own to the service under test: all that it returns share their entries.
	// What it opens it closes with the test.
	Open func(tb testing.TB) stampede.Store
	// EvictEntry makes the service forget the entry of key, as it may by itself. Nil: those cases are skipped.
	EvictEntry func(tb testing.TB, key string)
	// EvictTicket makes the service forget the ticket of key. Nil: those cases are skipped.
	EvictTicket func(tb testing.TB, key string)
	// Spoil puts something in the place of the entry of key that the Store has not written. Nil: that case is skipped.
	Spoil func(tb testing.TB, key string)
	// Step is what TTLs may be rounded up to. Defaults to 1 ms.
	Step time.Duration
}

// check is a case: a rule, and what shows that it is kept.
type check struct {
	name string
	rule string
	run  func(tb testing.TB, s Store)
}

var checks = []check{
	{"Absent", "What is not there is the zero Entry.", absent},
	{"RoundTrip", "Get returns what was stored, for each key in its place.", roundTrip},
	{"Keys", "Distinct keys never meet, whatever is in them.", keys},
	{"Freshness", "Left counts down from TTL; the entry is gone after its stale window.", freshness},
	{"LongTimes", "Times of years are kept, and so are those of the store's step.", longTimes},
	{"NotFound", "The answer that there is none is an entry like any other.", notFound},
	{"Failure", "A failure is kept beside the entry, for its TTL, until a value takes its place.", failure},
	{"FailureOutlives", "An entry ends at its time, also beside a failure that is remembered for longer.", failureOutlives},
	{"Ticket", "Begin makes the key's ticket or finds it; its turns rise.", tickets},
	{"TicketKept", "A ticket is kept for the longest time asked for.", ticketKept},
	{"Invalidate", "After Invalidate nothing is left, and no load that began before can store.", invalidate},
	{"RepeatedBegin", "A Begin that arrives again after an invalidation does not make the ticket again that was dropped.", repeatedBegin},
	{"Set", "Set stores whatever loads are under way, and they cannot store any more.", set},
	{"EvictedTicket", "A load whose ticket was forgotten cannot store.", evictedTicket},
	{"EvictedEntry", "A load whose key's entry was forgotten can store.", evictedEntry},
	{"FenceOrder", "Within one domain a lower token than was stored is superseded; an equal one is not.", fenceOrder},
	{"LargeTokens", "Tokens are compared in all their digits.", largeTokens},
	{"TurnOrder", "Between domains, and without a fence, an earlier turn than was stored is superseded.", turnOrder},
	{"Refused", "A refused Put changes nothing.", refused},
	{"Nothing", "A Put of nothing stores nothing.", nothing},
	{"Repeated", "Repeating a Put that was Stored stores it again.", repeated},
	{"Foreign", "What another program has put in the place of an entry is Foreign, and can be replaced.", foreign},
	{"Context", "Calls end with their context.", contexts},
	{"Watch", "Watchers are told of Put, Set and Invalidate, also by others.", watch},
	{"WatchEnds", "Watching ends with its context, and can begin again.", watchEnds},
	{"Schedules", "No value older than the last acknowledged Invalidate is there after it.", schedules},
	{"CacheSchedules", "No cache serves a value older than the last acknowledged Invalidate.", cacheSchedules},
}

// Run runs all cases, each as a subtest with the name that it is known by.
func Run(t *testing.T, s Store) {
	if s.Step <= 0 {
		s.Step = time.Millisecond
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if t.Failed() {
					t.Logf("rule: %s", c.rule)
				}
			}()
			c.run(t, s)
		})
	}
}

// probe is a Store with shorthands that fail the test.
type probe struct {
	stampede.Store
	tb  testing.TB
	ctx context.Context
}

func (s Store) open(tb testing.TB) *probe {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	tb.Cleanup(cancel)
	return &probe{s.Open(tb), tb, ctx}
}

func freshKey(what string) string { return what + "/" + uuid.NewString() }

const keep = time.Minute // a ticket, for as long as any case takes

func (p *probe) get(key string) stampede.Entry {
	p.tb.Helper()
	es, err := p.Get(p.ctx, key)
	if err != nil || len(es) != 1 {
		p.tb.Fatalf("Get(%q): %d entries, %v", key, len(es), err)
	}
	return es[0]
}

func (p *probe) begin(key string) stampede.Ticket {
	p.tb.Helper()
	_, t, err := p.Begin(p.ctx, key, uuid.NewString(), keep)
	if err != nil {
		p.tb.Fatalf("Begin(%q): %v", key, err)
	}
	return t
}

func (p *probe) put(key string, t stampede.Ticket, e stampede.Entry, want stampede.Outcome) {
	p.tb.Helper()
	if got, err := p.Put(p.ctx, key, t, e); err != nil || got != want {
		p.tb.Errorf("Put of %s is %v, %v; want %v", show(e), got, err, want)
	}
}

func (p *probe) set(key string, e stampede.Entry) {
	p.tb.Helper()
	if err := p.Set(p.ctx, key, e); err != nil {
		p.tb.Fatalf("Set(%q): %v", key, err)
	}
}

func (p *probe) invalidate(keys ...string) {
	p.tb.Helper()
	if err := p.Invalidate(p.ctx, keys...); err != nil {
		p.tb.Fatalf("Invalidate(%q): %v", keys, err)
	}
}

// has checks that what is there for key is value, or nothing if that is "".
func (p *probe) has(key, value string) {
	p.tb.Helper()
	e := p.get(key)
	if value == "" && e.Kind != stampede.Absent || value != "" && (e.Kind != stampede.Value || string(e.Value) != value) {
		p.tb.Errorf("there is %s, want %q", show(e), value)
	}
}

// within waits until done says that something is so.
func (p *probe) within(limit time.Duration, what string, done func() bool) {
	p.tb.Helper()
	for end := time.Now().Add(limit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			p.tb.Fatalf("after %v it is still not so that %s", limit, what)
		}
	}
}

// value is an entry that lives for the whole test.
func value(v string) stampede.Entry {
	return stampede.Entry{Kind: stampede.Value, Value: []byte(v), TTL: time.Hour, StaleFor: time.Hour, Writer: uuid.NewString()}
}

func fenced(v, domain string, token fencing.Token) stampede.Entry {
	e := value(v)
	e.Fence = fencing.Fence{Domain: domain, Token: token, Owner: uuid.NewString()}
	return e
}

func failed(message string, ttl time.Duration) stampede.Entry {
	return stampede.Entry{Kind: stampede.Failed, Failure: message, TTL: ttl}
}
