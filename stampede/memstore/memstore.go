// Package memstore is a stampede.Store within one process: for one process that needs no other, and a stand-in for a shared
// one in tests.
//
//	store := memstore.New(nil)
//
// It is bounded: past MaxKeys or MaxBytes it forgets what was used least recently. Several caches may have the same Store, as
// several processes have one server.
//
// # For tests
//
// A test can make a Store forget an entry or a ticket ([Store.EvictEntry], [Store.EvictTicket]), cut it off ([Store.Cut],
// [Store.Restore]), and make every command take a while (Options.Latency). All of it works inside testing/synctest.
package memstore

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/paddock-go/paddock/stampede"
)

// Options of New; nil is the zero Options.
type Options struct {
	// MaxKeys bounds how many keys are known at a time. Defaults to 100,000.
	MaxKeys int
	// MaxBytes bounds the sum of the lengths of keys, values and messages. Defaults to 64 MiB.
	MaxBytes int
	// Latency is what every command takes, as if there were a network: half of it before, half after the command is
	// carried out. Defaults to none.
	Latency time.Duration
}

// Store is a stampede.Store.
type Store struct {
	o Options

	mu      sync.Mutex
	records map[string]*record
	recent  *list.List // of *record, the most recently used first
	bytes   int
	tickets int64 // made so far
	watched map[string]map[chan struct{}]struct{}
	cut     chan struct{} // closed by Restore; nil: not cut
}

// record is what is known of a key.
type record struct {
	key     string
	place   *list.Element
	bytes   int
	entry   stampede.Entry // Absent: none
	expires time.Time      // of entry
	failure string
	fails   time.Time // until when failure is remembered
	ticket  *ticket
}

type ticket struct {
	id      string
	turn    int64
	expires time.Time
	newest  stampede.Entry // the last that was stored with it; only its fence counts
	stored  int64          // turn of that; 0: none
}

// New returns an empty Store.
func New(opts *Options) *Store {
	s := &Store{records: map[string]*record{}, recent: list.New(), watched: map[string]map[chan struct{}]struct{}{}}
	if opts != nil {
		s.o = *opts
	}
	if s.o.MaxKeys <= 0 {
		s.o.MaxKeys = 100_000
	}
	if s.o.MaxBytes <= 0 {
		s.o.MaxBytes = 64 << 20
	}
	return s
}

// Len returns how many keys there are.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.records)
}

// EvictEntry forgets the entry of key, as a cache under pressure may, and reports whether there was one. The key is that
// of the Store: "<Options.Name of the cache>/<key>".
func (s *Store) EvictEntry(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(key)
	if r == nil || r.entry.Kind == stampede.Absent {
		return false
	}
	r.entry = stampede.Entry{}
	s.settle(r)
	return true
}

// EvictTicket forgets the ticket of key, and reports whether there was one.
func (s *Store) EvictTicket(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(key)
	if r == nil || r.ticket == nil {
		return false
	}
	r.ticket = nil
	s.settle(r)
	return true
}

// Cut makes the Store silent: commands are not carried out and get no answer, until Restore.
func (s *Store) Cut() { s.setCut(make(chan struct{})) }

// Restore ends Cut.
func (s *Store) Restore() { s.setCut(nil) }

func (s *Store) setCut(c chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cut != nil {
		close(s.cut)
	}
	s.cut = c
}

var errCut = errors.New("memstore: cut off")

// travel is one way of a command.
func (s *Store) travel(ctx context.Context) error {
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	if cut != nil {
		select {
		case <-cut:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errCut, ctx.Err())
		}
	}
	if s.o.Latency > 0 {
		t := time.NewTimer(s.o.Latency / 2)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// command carries do out, at one moment, between the two ways.
func (s *Store) command(ctx context.Context, do func()) error {
	if err := s.travel(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	do()
	s.mu.Unlock()
	return s.travel(ctx)
}

// Get is that of stampede.Store.
func (s *Store) Get(ctx context.Context, keys ...string) ([]stampede.Entry, error) {
	entries := make([]stampede.Entry, len(keys))
	err := s.command(ctx, func() {
		for i, key := range keys {
			entries[i] = s.find(key).read()
		}
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// Begin is that of stampede.Store.
func (s *Store) Begin(ctx context.Context, key, id string, keep time.Duration) (e stampede.Entry, t stampede.Ticket, err error) {
	err = s.command(ctx, func() {
		r := s.make(key)
		if r.ticket == nil {
			s.tickets++
			r.ticket = &ticket{id: fmt.Sprintf("%s/%d", id, s.tickets)}
		}
		r.ticket.turn++
		if until := time.Now().Add(keep); until.After(r.ticket.expires) {
			r.ticket.expires = until
		}
		e, t = r.read(), stampede.Ticket{ID: r.ticket.id, Turn: r.ticket.turn}
		s.settle(r)
	})
	return e, t, err
}

// Put is that of stampede.Store.
func (s *Store) Put(ctx context.Context, key string, t stampede.Ticket, e stampede.Entry) (o stampede.Outcome, err error) {
	err = s.command(ctx, func() {
		o = s.put(key, t, e)
		s.tell(key)
	})
	return o, err
}

func (s *Store) put(key string, t stampede.Ticket, e stampede.Entry) stampede.Outcome {
	r := s.find(key)
	if r == nil || r.ticket == nil || r.ticket.id != t.ID {
		return stampede.Invalidated
	}
	if r.ticket.later(t, e) {
		return stampede.Superseded
	}
	switch e.Kind {
	case stampede.Value, stampede.NotFound:
		r.ticket.newest, r.ticket.stored = stampede.Entry{Fence: e.Fence}, max(r.ticket.stored, t.Turn)
		r.write(e)
	case stampede.Failed:
		r.failure, r.fails = e.Failure, time.Now().Add(e.TTL)
	}
	s.settle(r)
	return stampede.Stored
}

// later reports whether something later than e, of the turn of t, was stored.
func (k *ticket) later(t stampede.Ticket, e stampede.Entry) bool {
	have := k.newest.Fence
	if have.Domain != "" && have.Domain == e.Fence.Domain {
		return e.Fence.Token < have.Token
	}
	return t.Turn < k.stored
}

// Set is that of stampede.Store.
func (s *Store) Set(ctx context.Context, key string, e stampede.Entry) error {
	return s.command(ctx, func() {
		r := s.make(key)
		r.ticket = nil
		r.write(e)
		s.settle(r)
		s.tell(key)
	})
}

// Invalidate is that of stampede.Store.
func (s *Store) Invalidate(ctx context.Context, keys ...string) error {
	return s.command(ctx, func() {
		for _, key := range keys {
			if r := s.find(key); r != nil {
				s.remove(r)
			}
			s.tell(key)
		}
	})
}

// Watch is that of stampede.Store.
func (s *Store) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	hint := make(chan struct{}, 1)
	err := s.command(ctx, func() {
		if s.watched[key] == nil {
			s.watched[key] = map[chan struct{}]struct{}{}
		}
		s.watched[key][hint] = struct{}{}
		context.AfterFunc(ctx, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if delete(s.watched[key], hint); len(s.watched[key]) == 0 {
				delete(s.watched, key)
			}
		})
	})
	if err != nil {
		return nil, err
	}
	return hint, nil
}

func (s *Store) tell(key string) {
	for hint := range s.watched[key] {
		select {
		case hint <- struct{}{}:
		default:
		}
	}
}
