package redlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/paddock-go/paddock/internal/rediswire"
)

// debt is a lock that the node could not be told to give up.
type debt struct {
	*seat
	until time.Time // the node must have dropped it by itself
}

// owe has the node told until it confirms, for as long as it may keep a lock for ttl.
func (n *node) owe(s *seat, ttl time.Duration) {
	c := s.claim
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.debts == nil {
		n.debts = map[string]debt{}
	}
	if len(n.debts) >= maxDebts {
		return // that one is left to expire
	}
	n.debts[c.owner] = debt{s, time.Now().Add(ttl + c.timeout)}
	if !n.paying {
		n.paying = true
		n.begin(1)
		go n.pay()
	}
}

const (
	minPayWait = 20 * time.Millisecond
	maxPayWait = time.Second
	payTimeout = time.Second
	maxDebts   = 10_000
)

// pay settles what the node owes, a batch at a time, until that is nothing.
func (n *node) pay() {
	defer n.end(1)
	wait, most, closing := minPayWait, maxPayWait, n.closing
	for {
		batch := n.due()
		if len(batch) == 0 {
			return
		}
		if n.settle(batch) {
			wait = minPayWait
			continue
		}
		t := time.NewTimer(wait/2 + rand.N(wait))
		wait = min(2*wait, most)
		select {
		case <-t.C:
		case <-closing: // Close waits for us
			wait, most, closing = minPayWait, maxPayWait/10, nil
		case <-n.stopped:
			t.Stop()
			return
		}
	}
}

// due returns debts to be paid. When there are none, the node is not paying any more.
func (n *node) due() []*seat {
	n.mu.Lock()
	defer n.mu.Unlock()
	var batch []*seat
	now := time.Now()
	for owner, d := range n.debts {
		switch {
		case now.After(d.until):
			delete(n.debts, owner)
		case len(batch) < batchSize:
			batch = append(batch, d.seat)
		}
	}
	n.paying = len(batch) > 0
	return batch
}

// settle reports whether the node has confirmed all of it, or had nothing to confirm.
func (n *node) settle(batch []*seat) bool {
	ctx, cancel := context.WithTimeout(context.Background(), payTimeout)
	defer cancel()
	var calls []*rediswire.Call
	var told, settled []*seat
	for _, s := range batch {
		if s.clean() { // by what was heard since
			settled = append(settled, s)
			continue
		}
		told = append(told, s)
		calls = append(calls, n.releasing(ctx, s.claim, true))
	}
	rediswire.Send(ctx, n.client, calls...)
	for i, s := range told {
		if _, err := calls[i].Result(); err == nil {
			settled = append(settled, s)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range settled {
		delete(n.debts, s.claim.owner)
	}
	return len(settled) == len(batch)
}
