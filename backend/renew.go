package backend

import (
	"container/heap"
	"context"
	"errors"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	maxRenewing  = 64 // renewal calls at once: enough that silence in some does not make the rest late
	maxRetry     = 500 * time.Millisecond
	minRenewWait = 5 * time.Millisecond
)

// task is something that the plan does at a time: renew a lease, or beat for a session.
type task struct {
	from, due time.Time // it may be done together with others from, it has to be done by due
	index     int       // in the heap, plus one; 0: not planned
	lease     *held
	session   *Session
}

// schedule is the one renewal loop of a Keeper, whose mu guards it: a heap of tasks and a timer for the first.
type schedule struct {
	keeper  *Keeper
	tasks   []*task
	timer   *time.Timer
	running int
}

func (s *schedule) Len() int           { return len(s.tasks) }
func (s *schedule) Less(i, j int) bool { return s.tasks[i].due.Before(s.tasks[j].due) }
func (s *schedule) Swap(i, j int) {
	s.tasks[i], s.tasks[j] = s.tasks[j], s.tasks[i]
	s.tasks[i].index, s.tasks[j].index = i+1, j+1
}
func (s *schedule) Push(x any) {
	t := x.(*task)
	s.tasks = append(s.tasks, t)
	t.index = len(s.tasks)
}
func (s *schedule) Pop() any {
	last := len(s.tasks) - 1
	t := s.tasks[last]
	s.tasks[last] = nil
	s.tasks = s.tasks[:last]
	t.index = 0
	return t
}

// plan does t between early before due and due, unless the Keeper is closed.
func (s *schedule) plan(t *task, due time.Time, early time.Duration) {
	if s.keeper.closed {
		return
	}
	t.from, t.due = due.Add(-early), due
	if t.index == 0 {
		heap.Push(s, t)
	} else {
		heap.Fix(s, t.index-1)
	}
	s.arm()
}

func (s *schedule) remove(t *task) {
	if t.index != 0 {
		heap.Remove(s, t.index-1)
	}
}

// stop forgets all tasks.
func (s *schedule) stop() {
	for _, t := range s.tasks {
		t.index = 0
	}
	s.tasks = nil
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (s *schedule) arm() {
	if len(s.tasks) == 0 || s.running >= maxRenewing {
		return
	}
	d := time.Until(s.tasks[0].due)
	if s.timer == nil {
		s.timer = time.AfterFunc(d, s.keeper.renew)
	} else {
		s.timer.Reset(d)
	}
}

// period is the time between two renewals of a lease or session that the server keeps for ttl.
func period(ttl time.Duration) time.Duration { return ttl / 3 }

// planRenewal plans the next renewal of a lease after one sent at sent. The caller holds k.mu.
func (k *Keeper) planRenewal(t *task, sent time.Time, ttl time.Duration) {
	p := period(ttl)
	k.plan.plan(t, sent.Add(p-rand.N(p/10+1)), p/20)
}

// planRetry plans the repetition of a renewal that failed. The caller holds k.mu.
func (k *Keeper) planRetry(t *task, ttl time.Duration) {
	p := min(ttl/20, maxRetry) + 1
	k.plan.plan(t, time.Now().Add(p/2+rand.N(p)), p/4)
}

// reschedule plans what follows a renewal, sent at sent, that the server has answered or not.
func (k *Keeper) reschedule(h *held, sent time.Time, answered bool) {
	over := h.lease.Err() != nil // which may lose it: not under the Keeper's mu
	ttl := h.least()
	h.mu.Lock()
	byItself := h.session == nil && !h.a.NoRenew // it needs renewals of its own
	unsure := h.unsure
	h.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case over || !(byItself || unsure):
		k.plan.remove(&h.task)
	case answered:
		k.planRenewal(&h.task, sent, ttl)
	default:
		k.planRetry(&h.task, ttl)
	}
}

// renew does what is due: leases in batches of similar TTLs, which bound the call, and sessions one by one.
func (k *Keeper) renew() {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &k.plan
	now := time.Now()
	batches := map[int][]*held{}
	flush := func(class int) {
		if leases := batches[class]; len(leases) > 0 {
			k.dispatch(func() { k.renewBatch(leases) })
			batches[class] = nil
		}
	}
	for len(s.tasks) > 0 && s.running < maxRenewing && !s.tasks[0].from.After(now) {
		t := heap.Pop(s).(*task)
		if t.session != nil {
			k.dispatch(t.session.renew)
			continue
		}
		class := bits.Len64(uint64(t.lease.least()))
		batches[class] = append(batches[class], t.lease)
		if len(batches[class]) >= k.o.BatchSize {
			flush(class)
		}
	}
	for class := range batches {
		flush(class)
	}
	s.arm()
}

// dispatch runs one renewal call. The caller holds k.mu.
func (k *Keeper) dispatch(f func()) {
	k.plan.running++
	k.refs++
	go func() {
		f()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.plan.running--
		k.plan.arm()
		k.unref()
	}()
}

// renewBatch makes one Renew call.
func (k *Keeper) renewBatch(leases []*held) {
	now := time.Now()
	batch := make([]Renewal, 0, len(leases))
	asked := leases[:0]
	wait := maxTTL
	for _, h := range leases {
		select {
		case h.turn <- struct{}{}:
		default: // an Extend is under way, which plans the next renewal
			continue
		}
		if h.lease.Err() != nil { // which looks at both clocks
			<-h.turn
			continue
		}
		asked = append(asked, h)
		batch = append(batch, h.renewal(now))
		wait = min(wait, h.least()/6)
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(wait, minRenewWait))
	defer cancel()
	sent := time.Now()
	answered := k.call(ctx, context.Background(), func() { k.b.Renew(ctx, batch) })
	for i, h := range asked {
		r := Renewal{Err: errSilent}
		if answered {
			r = batch[i]
		}
		switch {
		case r.Err == nil:
			h.renewed(sent, &r)
		case errors.Is(r.Err, paddock.ErrLost):
			h.gone(r.Err)
		default:
			h.late(r.Err)
		}
		k.reschedule(h, sent, r.Err == nil)
		<-h.turn
	}
}

// late tells the observer that a renewal has failed.
func (h *held) late(err error) {
	if obs := h.keeper.obs.RenewalLate; obs != nil && h.lease.Err() == nil {
		obs(h.public(), time.Until(h.lease.Deadline()), err)
	}
}
