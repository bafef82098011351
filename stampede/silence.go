package stampede

import (
	"sync"
	"time"
)

// silence remembers that a store does not answer. While it does not, every read would take StoreTimeout to learn what the one
// before has learned; so for a while reads fail at once.
type silence struct {
	mu       sync.Mutex
	answered time.Time // when the last read that was answered was sent
	until    time.Time
	err      error
}

const silencePause = time.Second

// now returns why the store is not to be asked now, or nil.
func (s *silence) now(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.until) {
		return s.err
	}
	return nil
}

// failed notes that a read sent at sent has failed with err. Silence is when it took long and no later one was answered.
func (s *silence) failed(sent time.Time, wait time.Duration, err error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(sent) >= wait/2 && s.answered.Before(sent) {
		s.until, s.err = now.Add(silencePause), err
	}
}

// broken notes that a read sent at sent was answered.
func (s *silence) broken(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sent.After(s.answered) {
		s.answered = sent
	}
}
