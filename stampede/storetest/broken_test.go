package storetest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

// recorder is a testing.TB that notes failures instead of failing.
type recorder struct {
	testing.TB
	mu      sync.Mutex
	failed  bool
	cleanup []func()
}

func (r *recorder) Helper()                      {}
func (r *recorder) Logf(string, ...any)          {}
func (r *recorder) Errorf(f string, args ...any) { r.fail() }
func (r *recorder) Error(args ...any)            { r.fail() }
func (r *recorder) Fatalf(f string, args ...any) { r.fail(); runtime.Goexit() }
func (r *recorder) Fatal(args ...any)            { r.fail(); runtime.Goexit() }
func (r *recorder) Cleanup(f func())             { r.cleanup = append(r.cleanup, f) }

func (r *recorder) fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// fails reports whether the case of that name fails over s.
func fails(tb testing.TB, name string, s Store) bool {
	for _, c := range checks {
		if c.name != name {
			continue
		}
		r := &recorder{TB: tb}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.run(r, s)
		}()
		<-done
		for _, f := range r.cleanup {
			f()
		}
		return r.failed
	}
	tb.Fatalf("there is no case %s", name)
	return false
}

// broken is a Store with one thing wrong with it.
type broken struct {
	*memstore.Store
	get        func([]stampede.Entry)
	begin      func(*stampede.Ticket)
	put        func(t *stampede.Ticket, e *stampede.Entry) // before
	outcome    func(s *broken, key string, e stampede.Entry, o *stampede.Outcome)
	set        func(*stampede.Entry)
	invalidate func(s *broken, keys []string) (done bool)
	watch      func() <-chan struct{}
	key        func(string) string
	old        map[string]stampede.Ticket
	mu         sync.Mutex
}

func (b *broken) name(key string) string {
	if b.key != nil {
		return b.key(key)
	}
	return key
}

func (b *broken) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = b.name(key)
	}
	es, err := b.Store.Get(ctx, names...)
	if b.get != nil {
		b.get(es)
	}
	return es, err
}

func (b *broken) Begin(ctx context.Context, key, id string, keep time.Duration) (stampede.Entry, stampede.Ticket, error) {
	e, t, err := b.Store.Begin(ctx, b.name(key), id, keep)
	if b.begin != nil {
		b.begin(&t)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.old == nil {
		b.old = map[string]stampede.Ticket{}
	}
	b.old[key] = t
	return e, t, err
}

func (b *broken) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (stampede.Outcome, error) {
	if b.put != nil {
		b.put(&t, &e)
	}
	o, err := b.Store.Put(ctx, b.name(key), t, e)
	if b.outcome != nil {
		b.outcome(b, key, e, &o)
	}
	return o, err
}

func (b *broken) Set(ctx context.Context, key string, e stampede.Entry) error {
	if b.set != nil {
		b.set(&e)
	}
	return b.Store.Set(ctx, b.name(key), e)
}

func (b *broken) Invalidate(ctx context.Context, keys ...string) error {
	if b.invalidate != nil && b.invalidate(b, keys) {
		return nil
	}
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = b.name(key)
	}
	return b.Store.Invalidate(ctx, names...)
}

func (b *broken) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if b.watch != nil {
		return b.watch(), nil
	}
	return b.Store.Watch(ctx, b.name(key))
}

// TestBrokenStores: a Store that is broken fails the case of the rule that it breaks.
func TestBrokenStores(t *testing.T) {
	for what, c := range map[string]struct {
		fails []string
		store func() *broken
	}{
		"values are cut": {[]string{"RoundTrip"}, func() *broken {
			return &broken{set: func(e *stampede.Entry) {}, put: func(_ *stampede.Ticket, e *stampede.Entry) { e.Value = e.Value[:min(3, len(e.Value))] }}
		}},
		"load times in ms": {[]string{"RoundTrip"}, func() *broken {
			return &broken{put: func(_ *stampede.Ticket, e *stampede.Entry) { e.LoadTime = e.LoadTime.Truncate(time.Millisecond) }}
		}},
		"keys meet after a NUL": {[]string{"Keys"}, func() *broken {
			return &broken{key: func(k string) string { k, _, _ = strings.Cut(k, "\x00"); return k }}
		}},
		"entries are never stale": {[]string{"Freshness"}, func() *broken {
			return &broken{put: func(_ *stampede.Ticket, e *stampede.Entry) { e.TTL, e.StaleFor = e.TTL+e.StaleFor, 0 }}
		}},
		"entries live twice as long": {[]string{"Freshness"}, func() *broken {
			return &broken{put: func(_ *stampede.Ticket, e *stampede.Entry) { e.StaleFor += e.TTL }}
		}},
		"failures are forgotten": {[]string{"Failure"}, func() *broken {
			return &broken{get: func(es []stampede.Entry) {
				for i := range es {
					es[i].Failure = ""
				}
			}}
		}},
		"every load has a ticket of its own": {[]string{"Ticket"}, func() *broken {
			return &broken{begin: func(t *stampede.Ticket) { t.ID += fmt.Sprint(t.Turn) }, put: func(t *stampede.Ticket, _ *stampede.Entry) {
				t.ID = strings.TrimSuffix(t.ID, fmt.Sprint(t.Turn))
			}}
		}},
		"a repeated begin makes the same ticket": {[]string{"RepeatedBegin"}, func() *broken {
			return &broken{begin: func(t *stampede.Ticket) { t.ID, _, _ = strings.Cut(t.ID, "/") }, put: func(t *stampede.Ticket, _ *stampede.Entry) { t.ID += "/1" }}
		}},
		"turns stand still": {[]string{"Ticket"}, func() *broken { return &broken{begin: func(t *stampede.Ticket) { t.Turn = 1 }} }},
		"puts ignore the ticket": {[]string{"Invalidate", "Set", "EvictedTicket", "Refused", "Schedules", "CacheSchedules"}, func() *broken {
			return &broken{outcome: func(b *broken, key string, e stampede.Entry, o *stampede.Outcome) {
				if *o == stampede.Invalidated && e.Kind == stampede.Value {
					_ = b.Store.Set(context.Background(), key, e)
					*o = stampede.Stored
				}
			}}
		}},
		"invalidation leaves the ticket": {[]string{"Invalidate", "Schedules", "CacheSchedules"}, func() *broken {
			return &broken{invalidate: func(b *broken, keys []string) bool {
				for _, key := range keys {
					b.EvictEntry(key)
				}
				return true
			}}
		}},
		"invalidation is for the ticket alone": {[]string{"Invalidate", "Schedules", "CacheSchedules"}, func() *broken {
			return &broken{invalidate: func(b *broken, keys []string) bool {
				for _, key := range keys {
					b.EvictTicket(key)
				}
				return true
			}}
		}},
		"fences are not looked at": {[]string{"FenceOrder", "LargeTokens"}, func() *broken {
			return &broken{put: func(_ *stampede.Ticket, e *stampede.Entry) { e.Fence.Domain = "" }}
		}},
		"tokens are doubles": {[]string{"LargeTokens"}, func() *broken {
			return &broken{put: func(_ *stampede.Ticket, e *stampede.Entry) { e.Fence.Token &^= 1023 }}
		}},
		"turns are not looked at": {[]string{"TurnOrder"}, func() *broken {
			return &broken{put: func(t *stampede.Ticket, e *stampede.Entry) { t.Turn = 1 << 40 }}
		}},
		"nobody is told": {[]string{"Watch", "WatchEnds"}, func() *broken { return &broken{watch: func() <-chan struct{} { return make(chan struct{}) }} }},
		"a put of nothing removes the entry": {[]string{"Nothing"}, func() *broken {
			return &broken{outcome: func(b *broken, key string, e stampede.Entry, _ *stampede.Outcome) {
				if e.Kind == stampede.Absent {
					b.EvictEntry(key)
				}
			}}
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, name := range c.fails {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					if s := c.store(); !fails(t, name, underTest(s)) {
						t.Errorf("a Store in which %s passes the case %s", what, name)
					}
				})
			}
		})
	}
	for _, c := range checks {
		t.Run("sound/"+c.name, func(t *testing.T) {
			t.Parallel()
			if fails(t, c.name, underTest(&broken{})) {
				t.Errorf("a sound Store fails the case %s", c.name)
			}
		})
	}
}

func underTest(s *broken) Store {
	s.Store = memstore.New(nil)
	return Store{
		Step:        time.Millisecond,
		Open:        func(testing.TB) stampede.Store { return s },
		EvictEntry:  func(_ testing.TB, key string) { s.EvictEntry(key) },
		EvictTicket: func(_ testing.TB, key string) { s.EvictTicket(key) },
		Spoil: func(_ testing.TB, key string) {
			_ = s.Store.Set(context.Background(), key, stampede.Entry{Kind: stampede.Foreign, TTL: time.Minute})
		},
	}
}
