package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/rediswire"
)

// debt is a lock that the node could not be told to give up.
type debt struct {
	*seat
	until time.Time // the node must have dropped it by itself
}

// owe has the node told until it confirms, for as long as it may keep a lock for ttl. It reports whether it will be: what is too
// much is left to expire. The claim's mu is held.
func (n *node) owe(s *seat, ttl time.Duration) bool {
	c := s.claim
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.debts == nil {
		n.debts = map[string]debt{}
	}
	if len(n.debts) >= maxDebts {
		return false
	}
	n.debts[c.owner] = debt{s, time.Now().Add(ttl + c.timeout)}
	if !n.paying {
		n.paying = true
		n.begin(1)
		go n.pay()
	}
	return true
}

const (
	minPayWait = 20 * time.Millisecond
	maxPayWait = time.Second
	maxTold    = time.Second // for one try to tell a node
	maxDebts   = 10_000
)

// pay settles what the node owes, a batch at a time, until that is nothing. What was not answered in time is told again on a
// new connection: those that the client keeps may have gone silent, all of them, while the node is well.
func (n *node) pay() {
	defer n.end(1)
	p := &payment{node: n, client: n.client, heeds: n.heeds}
	defer p.close()
	wait, most, closing := minPayWait, maxPayWait, n.closing
	for {
		batch := n.due()
		if len(batch) == 0 {
			return
		}
		err := p.settle(batch)
		if err == nil {
			wait = minPayWait
			continue
		}
		if errors.Is(err, errSilent) {
			p.reconnect()
		}
		t := time.NewTimer(wait/2 + rand.N(wait))
		wait = min(2*wait, most)
		select {
		case <-t.C:
		case <-closing: // Close waits for us
			t.Stop()
			wait, most, closing = minPayWait, maxPayWait/10, nil
		case <-n.stopped:
			t.Stop()
			return
		}
	}
}

// due returns debts to be paid. When there are none, the node is not paying any more. Those that have run out are owed no more: what
// comes of them late, an undo that goes on tells the node itself.
func (n *node) due() []*seat {
	batch, over := n.split(time.Now())
	for _, s := range over {
		s.claim.mu.Lock()
		s.owed = false
		s.claim.tell()
		s.claim.mu.Unlock()
	}
	return batch
}

// split returns debts to be paid, and those that have run out, which it drops.
func (n *node) split(now time.Time) (batch, over []*seat) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for owner, d := range n.debts {
		switch {
		case now.After(d.until):
			delete(n.debts, owner)
			over = append(over, d.seat)
		case len(batch) < batchSize:
			batch = append(batch, d.seat)
		}
	}
	n.paying = len(batch) > 0
	return batch, over
}

// payment is a series of tries to settle.
type payment struct {
	*node
	client redis.UniversalClient
	heeds  bool
}

// reconnect goes on with a client that has one connection, a new one, and no patience.
func (p *payment) reconnect() {
	c, ok := p.node.client.(*redis.Client)
	if !ok {
		return // a client of another kind has to cope by itself
	}
	p.close()
	o := *c.Options()
	o.PoolSize, o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 1, 0, 0, 0
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
	p.client, p.heeds = redis.NewClient(&o), true
}

func (p *payment) close() {
	if p.client != p.node.client {
		_ = p.client.Close() // nobody is left to be told
	}
}

// settle tells the node of a batch. Nil: it has confirmed all of that.
func (p *payment) settle(batch []*seat) error {
	n := p.node
	var told []*seat
	var paid []string
	for _, s := range batch {
		if s.settled() {
			paid = append(paid, s.claim.owner)
		} else {
			told = append(told, s)
		}
	}
	failed := p.tell(told, &paid)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, owner := range paid {
		delete(n.debts, owner)
	}
	return failed
}

// tell makes the calls of a batch, and adds the owners that the node has confirmed to paid.
func (p *payment) tell(batch []*seat, paid *[]string) (failed error) {
	if len(batch) == 0 {
		return nil
	}
	n := p.node
	ctx, cancel := context.WithTimeout(context.Background(), maxTold)
	defer cancel()
	var calls []*rediswire.Call
	var owners []*rediswire.Counted
	for _, s := range batch {
		owner := &rediswire.Counted{Arg: s.claim.owner}
		owners = append(owners, owner)
		calls = append(calls, n.releasing(ctx, s.claim, owner, true))
	}
	sent := send(ctx, p.client, p.heeds, func(error, bool) {}, calls...)
	for i, s := range batch {
		err, had := sent, false
		if !errors.Is(sent, errAbandoned) {
			var reply any
			reply, err = calls[i].Result()
			had = reply == any(int64(1)) || owners[i].Twice()
		}
		if err = n.explain(err); err != nil && failed == nil {
			failed = err
		}
		s.claim.mu.Lock()
		if err == nil {
			s.returned(had)
			*paid = append(*paid, s.claim.owner)
		} else {
			s.untold(err, mayArrive(owners[i], err))
		}
		s.claim.mu.Unlock()
	}
	return failed
}
