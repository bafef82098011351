package stampede

import (
	"sync/atomic"
	"time"
)

// silence remembers that a store does not answer. While it does not, every read would take StoreTimeout to learn what the one
// before has learned; so for a while reads fail at once.
type silence struct {
	since    time.Time              // counts answered
	answered atomic.Int64           // when the last read that was answered was sent
	outage   atomic.Pointer[outage] // nil: none yet
}

const silencePause = time.Second

// now returns why the store is not to be asked now, or nil.
func (s *silence) now(now time.Time) error {
	if o := s.outage.Load(); o != nil && now.Before(o.until) {
		return o.err
	}
	return nil
}

// failed notes that a read sent at sent has failed with err. Silence is when it took long and no later one was answered.
func (s *silence) failed(sent time.Time, wait time.Duration, err error) {
	now := time.Now()
	if now.Sub(sent) >= wait/2 && s.answered.Load() < int64(sent.Sub(s.since)) {
		s.outage.Store(&outage{until: now.Add(silencePause), err: err})
	}
}

// broken notes that a read sent at sent was answered.
func (s *silence) broken(sent time.Time) {
	at := int64(sent.Sub(s.since))
	for was := s.answered.Load(); at > was && !s.answered.CompareAndSwap(was, at); {
		was = s.answered.Load()
	}
}
