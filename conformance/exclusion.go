package conformance

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const ruleExclusion = "at no moment are two leases on one key inside their trust windows."

var exclusion = []check{
	{name: "Rule01/OneKey", rule: ruleExclusion, alone: true, run: oneKey},
	{name: "Rule01/ManyKeys", rule: ruleExclusion, alone: true, run: manyKeys},
	{name: "Rule01/LeasesThatRunOut", rule: ruleExclusion, run: leasesThatRunOut},
	{name: "Rule01/ManyTriesOneWinner", rule: ruleExclusion, run: manyTries},
}

// span is the part of a trust window that a holder used.
type span struct {
	from, to time.Time
	owner    string
	token    fencing.Token
}

// log collects spans. The zero value is ready.
type spanLog struct {
	mu    sync.Mutex
	spans []span
}

// ended records that lease, returned at from, is about to be given up.
func (s *spanLog) ended(lease *paddock.Lease, from time.Time) {
	to := time.Now()
	if d := lease.Deadline(); d.Before(to) {
		to = d
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans = append(s.spans, span{from, to, lease.Owner(), lease.Token()})
}

// inOrder checks that the spans, all on one key, are disjoint, and that tokens rise along them.
func (s *spanLog) inOrder(t *trial) {
	t.Helper()
	slices.SortFunc(s.spans, func(a, b span) int { return a.from.Compare(b.from) })
	for i := 1; i < len(s.spans); i++ {
		a, b := s.spans[i-1], s.spans[i]
		if over := a.to.Sub(b.from); over > 0 {
			t.Errorf("two holders for %v: %s (token %d) and %s (token %d)", over, a.owner, a.token, b.owner, b.token)
		}
		if t.g.Fencing > fencing.None && b.token <= a.token {
			t.Errorf("token %d was followed by %d. Rule 11: %s", a.token, b.token, ruleTokens)
		}
	}
}

// fleet opens n Lockers.
func (t *trial) fleet(n int) []paddock.Locker {
	t.Helper()
	ls := make([]paddock.Locker, n)
	for i := range ls {
		ls[i] = t.open()
	}
	return ls
}

func oneKey(t *trial) {
	const perLocker, rounds = 16, 4
	enough := time.Now().Add(time.Second) // a quick backend has time for more rounds
	key, opts := t.key(), forTTL(t.ttl(5*time.Second))
	var log spanLog
	var holders sync.WaitGroup
	counter, granted := 0, atomic.Int64{} // nothing but the lock protects the counter
	for _, l := range t.fleet(4) {
		for range perLocker {
			holders.Go(func() {
				for i := 0; i < rounds || time.Now().Before(enough); i++ {
					lease, err := l.Acquire(t.ctx, key, opts)
					from := time.Now()
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					granted.Add(1)
					was := counter
					runtime.Gosched()
					counter = was + 1
					log.ended(lease, from)
					if err := lease.Release(t.ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	holders.Wait()
	if want := int(granted.Load()); counter != want {
		t.Errorf("%d holders counted to %d: some wrote over each other", want, counter)
	}
	log.inOrder(t)
}

func manyKeys(t *trial) {
	const keys, perLocker, rounds = 12, 8, 16
	opts := forTTL(t.ttl(5 * time.Second))
	prefix := t.key()
	logs := make([]spanLog, keys)
	counters := make([]int, keys)
	var holders sync.WaitGroup
	fleet := t.fleet(4)
	for _, l := range fleet {
		for range perLocker {
			holders.Go(func() {
				for range rounds {
					k := rand.N(keys)
					lease, err := l.Acquire(t.ctx, fmt.Sprintf("%s/%d", prefix, k), opts)
					from := time.Now()
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					was := counters[k]
					runtime.Gosched()
					counters[k] = was + 1
					logs[k].ended(lease, from)
					if err := lease.Release(t.ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	holders.Wait()
	sum := 0
	for k := range logs {
		logs[k].inOrder(t)
		sum += counters[k]
	}
	if want := len(fleet) * perLocker * rounds; sum != want && !t.Failed() {
		t.Errorf("%d holders counted to %d: some wrote over each other", want, sum)
	}
}

// leasesThatRunOut has holders that never release: the next may enter only when their windows have closed.
func leasesThatRunOut(t *trial) {
	key, opts := t.key(), unrenewed(t.brief())
	var log spanLog
	var holders sync.WaitGroup
	for _, l := range t.fleet(2) {
		for range 2 {
			holders.Go(func() {
				lease, err := l.Acquire(t.ctx, key, opts)
				from := time.Now()
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				<-lease.Context().Done()
				log.ended(lease, from)
			})
		}
	}
	holders.Wait()
	log.inOrder(t)
}

func manyTries(t *trial) {
	key, opts := t.key(), forTTL(t.ttl(long))
	wins := make(chan *paddock.Lease, 64)
	var tries sync.WaitGroup
	for _, l := range t.fleet(4) {
		for range 16 {
			tries.Go(func() {
				switch lease, err := l.TryAcquire(t.ctx, key, opts); {
				case err == nil:
					wins <- lease
				default:
					t.onlyHeld(err)
				}
			})
		}
	}
	tries.Wait()
	close(wins)
	if len(wins) != 1 {
		t.Errorf("%d of 64 tries at once were granted; want 1", len(wins))
	}
	for lease := range wins {
		t.release(lease)
	}
}
