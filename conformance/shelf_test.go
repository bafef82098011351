package conformance_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
)

// shelf is a lock server in the test process: locks in a map. Each flaw that it may have breaks one duty of a backend.
type shelf struct {
	flaw string

	mu       sync.Mutex
	locks    map[string]lock
	undone   map[string]bool
	last     fencing.Token
	watchers map[*backend.Keeper]int
}

type lock struct {
	owner   string
	note    string
	token   fencing.Token
	expires time.Time
	last    time.Time // of MaxHold
}

func newShelf(flaw string) *shelf {
	return &shelf{
		flaw: flaw, locks: map[string]lock{}, undone: map[string]bool{}, watchers: map[*backend.Keeper]int{},
		last: 1000,
	}
}

// Flaws of a shelf.
const (
	grantsWhatIsHeld     = "grants what is held"
	neverExpires         = "never expires"
	expiresEarly         = "expires early"
	undoDoesNothing      = "Undo does nothing"
	undoLeavesNoMarker   = "Undo leaves no marker"
	releasesOthers       = "Release looks at no owner"
	renewsOthers         = "Renew looks at no owner"
	renewCreates         = "Renew creates"
	renewDoesNothing     = "Renew does nothing"
	renewLowers          = "Renew lowers"
	neverShortens        = "never shortens"
	tokensStall          = "tokens stall"
	tokensGoBack         = "tokens go back"
	countsFromTheReply   = "counts from the reply"
	claimsOrder          = "claims an order that it does not keep"
	promisesMoreThanKept = "promises a longer TTL than it keeps"
)

func (s *shelf) is(flaw string) bool { return s.flaw == flaw }

// get returns the lock on key as of now. The caller holds s.mu.
func (s *shelf) get(key string) (lock, bool) {
	k, ok := s.locks[key]
	if ok && !s.is(neverExpires) && !time.Now().Before(k.expires) {
		delete(s.locks, key)
		return lock{}, false
	}
	return k, ok
}

// until is when a TTL that begins now is over.
func (s *shelf) until(k lock, ttl time.Duration) time.Time {
	if s.is(expiresEarly) || s.is(promisesMoreThanKept) {
		ttl /= 2
	}
	end := time.Now().Add(ttl)
	if !k.last.IsZero() && k.last.Before(end) {
		return k.last
	}
	return end
}

func (s *shelf) try(a *backend.Attempt) (fencing.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.undone[a.Owner] {
		return 0, errors.New("undone before")
	}
	k, held := s.get(a.Key)
	if held && k.owner != a.Owner && !s.is(grantsWhatIsHeld) {
		return 0, &paddock.HeldError{Key: a.Key, RetryAfter: max(1, time.Until(k.expires))}
	}
	if !held || k.owner != a.Owner {
		switch {
		case s.is(tokensGoBack):
			s.last--
		case !s.is(tokensStall):
			s.last++
		}
		k = lock{owner: a.Owner, note: a.Note, token: s.last}
		if a.MaxHold > 0 {
			k.last = time.Now().Add(a.MaxHold)
		}
	}
	if end := s.until(k, a.TTL); end.After(k.expires) {
		k.expires = end
	}
	s.locks[a.Key] = k
	return k.token, nil
}

// remove takes the lock from owner, or from anyone.
func (s *shelf) remove(key, owner string) bool {
	k, held := s.get(key)
	if !held || (owner != "" && k.owner != owner) {
		return false
	}
	delete(s.locks, key)
	for w := range s.watchers {
		go w.Wake(key)
	}
	return true
}

func (s *shelf) undo(a *backend.Attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is(undoDoesNothing) {
		return
	}
	s.undone[a.Owner] = !s.is(undoLeavesNoMarker)
	s.remove(a.Key, a.Owner)
}

func (s *shelf) release(a *backend.Attempt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undone[a.Owner] = true
	owner := a.Owner
	if s.is(releasesOthers) {
		owner = ""
	}
	if !s.remove(a.Key, owner) {
		return paddock.ErrLost
	}
	return nil
}

func (s *shelf) renew(a *backend.Attempt, ttl time.Duration, shorten bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.is(renewDoesNothing) {
		return nil
	}
	k, held := s.get(a.Key)
	switch {
	case !held && s.is(renewCreates):
		k = lock{owner: a.Owner, token: s.last}
	case !held, k.owner != a.Owner && !s.is(renewsOthers):
		return paddock.ErrLost
	}
	end := s.until(k, ttl)
	if end.After(k.expires) || (shorten && !s.is(neverShortens)) || s.is(renewLowers) {
		k.expires = end
	}
	s.locks[a.Key] = k
	return nil
}

// forget loses the locks.
func (s *shelf) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.locks)
}

func (s *shelf) left(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.locks {
		s.get(key)
	}
	return slices.Collect(maps.Keys(s.locks)), nil
}

func (s *shelf) inspect(key string) (paddock.Holder, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, held := s.get(key)
	if !held {
		return paddock.Holder{}, paddock.ErrFree
	}
	return paddock.Holder{Owner: k.owner, Note: k.note, Token: k.token, ExpiresIn: time.Until(k.expires)}, nil
}

// watch has the Keeper woken until stop.
func (s *shelf) watch(k *backend.Keeper) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[k]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watchers[k]--; s.watchers[k] == 0 {
			delete(s.watchers, k)
		}
	}
}
