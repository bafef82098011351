package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

// server is a lock server as a Keeper sees one, on the bubble's clock. A test spoils the way to it through link.
type server struct {
	mu     sync.Mutex
	locks  map[string]*entry
	undone map[string]bool
	token  fencing.Token
	calls  map[string]int // by name
	batch  int            // the largest
	orders bool           // an answered renewal proves that earlier ones are under way no more
	twins  bool           // Try can tell that its request was sent twice: when it took long
	link   func(ctx context.Context, call string, do func()) error
}

type entry struct {
	owner   string
	token   fencing.Token
	expires time.Time
}

func newServer() *server {
	return &server{locks: map[string]*entry{}, undone: map[string]bool{}, calls: map[string]int{}}
}

func (s *server) over(ctx context.Context, call string, do func()) error {
	s.mu.Lock()
	s.calls[call]++
	link := s.link
	s.mu.Unlock()
	locked := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		do()
	}
	if link == nil {
		locked()
		return nil
	}
	return link(ctx, call, locked)
}

func (s *server) spoil(link func(ctx context.Context, call string, do func()) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = link
}

func (s *server) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call]
}

// live returns the lock on key; the caller holds s.mu.
func (s *server) live(key string) *entry {
	e := s.locks[key]
	if e != nil && !time.Now().Before(e.expires) {
		delete(s.locks, key)
		return nil
	}
	return e
}

func (s *server) owner(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.live(key); e != nil {
		return e.owner
	}
	return ""
}

func (s *server) left(key string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.live(key); e != nil {
		return time.Until(e.expires)
	}
	return 0
}

func (s *server) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.locks, key)
}

func (s *server) Try(ctx context.Context, a *Attempt) (g Grant, err error) {
	begun := time.Now()
	lost := s.over(ctx, "try", func() {
		e := s.live(a.Key)
		switch {
		case s.undone[a.Owner]:
			err = errors.New("undone before")
		case e == nil:
			s.token++
			e = &entry{owner: a.Owner, token: s.token, expires: time.Now().Add(a.TTL)}
			s.locks[a.Key] = e
			fallthrough
		case e.owner == a.Owner:
			g = Grant{Token: e.token, Domain: "test", TTL: a.TTL}
		default:
			err = &paddock.HeldError{Key: a.Key, RetryAfter: time.Until(e.expires)}
		}
	})
	a.Slow = s.twins && time.Since(begun) > time.Millisecond
	if lost != nil {
		return Grant{}, lost
	}
	return g, err
}

func (s *server) Undo(ctx context.Context, a *Attempt) error {
	return s.over(ctx, "undo", func() {
		s.undone[a.Owner] = true
		if e := s.live(a.Key); e != nil && e.owner == a.Owner {
			delete(s.locks, a.Key)
		}
	})
}

func (s *server) Release(ctx context.Context, a *Attempt) (err error) {
	lost := s.over(ctx, "release", func() {
		if a.Slow {
			s.undone[a.Owner] = true
		}
		if e := s.live(a.Key); e == nil || e.owner != a.Owner {
			err = paddock.ErrLost
		} else {
			delete(s.locks, a.Key)
		}
	})
	return errors.Join(lost, err)
}

func (s *server) Renew(ctx context.Context, batch []Renewal) {
	err := s.over(ctx, "renew", func() {
		s.batch = max(s.batch, len(batch))
		for i := range batch {
			r := &batch[i]
			r.Ordered = s.orders
			e := s.live(r.Key)
			if e == nil || e.owner != r.Owner {
				r.Err = paddock.ErrLost
			} else if end := time.Now().Add(r.TTL); r.Shorten || end.After(e.expires) {
				e.expires = end
			}
		}
	})
	for i := range batch {
		if err != nil {
			batch[i].Err = err
		}
	}
}

// silent is a link on which requests get lost.
func silent(ctx context.Context, _ string, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

// deaf is a link of a client that does not heed its context: requests get lost, and the call returns after d.
func deaf(d time.Duration) func(context.Context, string, func()) error {
	return func(context.Context, string, func()) error {
		time.Sleep(d)
		return errors.New("i/o timeout")
	}
}

// replyLost is a link on which the named calls are carried out and never answered.
func replyLost(call string) func(context.Context, string, func()) error {
	return func(ctx context.Context, c string, do func()) error {
		do()
		if c == call {
			return silent(ctx, c, nil)
		}
		return nil
	}
}

// late is a link on which requests of the named call arrive after d, whether or not anyone still waits for the answer.
func late(call string, d time.Duration) func(context.Context, string, func()) error {
	return func(ctx context.Context, c string, do func()) error {
		if c == call {
			time.Sleep(d)
		}
		do()
		return nil
	}
}

var testGuarantees = paddock.Guarantees{Backend: "test", Fencing: fencing.Volatile, MinTTL: 10 * time.Millisecond}

// bubble runs f with a fresh server and a Keeper of it, on a clock of its own, and checks that the Keeper leaves nothing.
func bubble(t *testing.T, opts *KeeperOptions, f func(t *testing.T, s *server, k *Keeper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		k := NewKeeper(testGuarantees, s, opts)
		f(t, s, k)
		s.spoil(nil)
		if err := k.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		select {
		case <-k.Done():
		case <-time.After(time.Hour):
			t.Errorf("Done is not closed an hour after Close: %d references", k.refs)
		}
		if len(k.plan.tasks) > 0 || len(k.lines) > 0 || len(k.leases) > 0 || k.clean.pending > 0 {
			t.Errorf("left in the Keeper: %d renewals, %d lines, %d leases, %d chores",
				len(k.plan.tasks), len(k.lines), len(k.leases), k.clean.pending)
		}
	})
}

func mustAcquire(t *testing.T, k *Keeper, key string, opts *paddock.Options) *paddock.Lease {
	t.Helper()
	l, err := k.Acquire(t.Context(), key, opts)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return l
}

func wantErr(t *testing.T, what string, err error, is ...error) {
	t.Helper()
	for _, e := range is {
		if !errors.Is(err, e) {
			t.Errorf("%s: %v, want an error that is %q", what, err, e)
		}
	}
}

func keyN(i int) string { return fmt.Sprintf("key/%d", i) }
