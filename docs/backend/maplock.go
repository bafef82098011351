// Package maplock is a paddock.Locker over a map: the example of docs/backend.md.
package maplock

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// New returns a Locker on s. No call of ours takes long, so the Keeper makes them inline.
func New(s *Store) paddock.Locker {
	var k *backend.Keeper
	k = backend.NewKeeper(paddock.Guarantees{
		Backend:   "map",
		Exclusion: paddock.ProcessOnly,
		Fencing:   fencing.Volatile,
		MinTTL:    10 * time.Millisecond,
		Assumes:   "Holders are goroutines of this process. Tokens rise across its restarts as long as its clock does.",
	}, s, &backend.KeeperOptions{Inline: true, Watch: func(key string) func() { return s.watch(k, key) }})
	return k
}

// Store is the service: what a server would keep. Lockers on one Store exclude each other.
type Store struct {
	mu      sync.Mutex
	locks   map[string]*lock
	undone  map[string]time.Time // owners whose Try has to be refused, and since when
	last    fencing.Token
	waiting map[*string]*backend.Keeper // one for each Watch
}

type lock struct {
	owner   string
	token   fencing.Token
	expires time.Time
	timer   *time.Timer
}

// NewStore returns an empty Store.
func NewStore() *Store {
	return &Store{locks: map[string]*lock{}, undone: map[string]time.Time{}, waiting: map[*string]*backend.Keeper{}}
}

// Try is refused when another holds the key, or when the attempt was undone before.
func (s *Store) Try(_ context.Context, a *backend.Attempt) (backend.Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.undone[a.Owner]; ok {
		return backend.Grant{}, errors.New("maplock: the attempt was undone before")
	}
	k := s.locks[a.Key]
	if k != nil && k.owner != a.Owner {
		return backend.Grant{}, &paddock.HeldError{Key: a.Key, RetryAfter: time.Until(k.expires)}
	}
	if k == nil {
		s.last = max(s.last+1, fencing.Token(time.Now().UnixMicro()))
		k = &lock{owner: a.Owner, token: s.last}
		k.timer = time.AfterFunc(a.TTL, func() { s.expire(a.Key, k) })
		s.locks[a.Key] = k
	}
	k.keep(a.TTL, false) // a repeated Try raises what is left
	return backend.Grant{Token: k.token, Domain: "map"}, nil
}

// Undo also sees to it that a Try that comes later is refused.
func (s *Store) Undo(_ context.Context, a *backend.Attempt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark(a.Owner)
	_ = s.remove(a.Key, a.Owner) // or nothing came
	return nil
}

// Release compares the owner, however sure the caller is.
func (s *Store) Release(_ context.Context, a *backend.Attempt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Slow { // it may have been sent twice
		s.mark(a.Owner)
	}
	return s.remove(a.Key, a.Owner)
}

// Renew creates nothing: what is gone may have been another's meanwhile.
func (s *Store) Renew(_ context.Context, batch []backend.Renewal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range batch {
		if k := s.locks[r.Key]; k == nil || k.owner != r.Owner {
			batch[i].Err = paddock.ErrLost
		} else {
			k.keep(r.TTL, r.Shorten)
		}
	}
}

// keep moves the end of the lock to ttl from now: later, or also earlier if it may shorten.
func (k *lock) keep(ttl time.Duration, shorten bool) {
	if end := time.Now().Add(ttl); shorten || end.After(k.expires) {
		k.expires = end
		k.timer.Reset(ttl)
	}
}

// expire removes a lock, unless it was renewed just now.
func (s *Store) expire(key string, k *lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[key] == k && !time.Now().Before(k.expires) {
		_ = s.remove(key, k.owner)
	}
}

// remove takes the lock from owner, if it is owner's.
func (s *Store) remove(key, owner string) error {
	k := s.locks[key]
	if k == nil || k.owner != owner {
		return paddock.ErrLost
	}
	k.timer.Stop()
	delete(s.locks, key)
	for _, keeper := range s.waiting {
		keeper.Wake(key)
	}
	return nil
}

// mark remembers owner for longer than a call can be under way.
func (s *Store) mark(owner string) {
	maps.DeleteFunc(s.undone, func(_ string, since time.Time) bool { return time.Since(since) > time.Minute })
	s.undone[owner] = time.Now()
}

// watch has the waiters of k for key woken, until stop.
func (s *Store) watch(k *backend.Keeper, key string) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[&key] = k
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, &key)
	}
}
