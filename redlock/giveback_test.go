package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/backend"
)

// TestReleaseHungUpOn has a node hang up after it did what it was told, and be told again at once, while the other that had the lock is
// slow: that is a release, and no loss.
func TestReleaseHungUpOn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up = []int{0, 1}
	c.nodes[2].Kill()
	addrs, links := c.behind(t, []int{0})
	opts := Options{Prefix: newPrefix()}
	l := openAt(t, addrs[:3], impatient, &opts)
	closing(t, l)
	must(t, take(t, l, "warm").Release(t.Context())) // the nodes know the scripts
	lease := take(t, l, "k")
	l.quorum.wait(time.Minute)
	links[0].LoseReplies()
	c.nodes[1].Pause()
	released := make(chan error, 1)
	go func() { released <- lease.Release(context.Background()) }()
	until(t, "lost", links[0].Lost)
	links[0].Cut()
	links[0].Pass()
	until(t, "told again", func() bool {
		n := l.quorum.nodes[0]
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.debts != nil && len(n.debts) == 0
	})
	c.nodes[1].Resume()
	must(t, <-released)
	c.empty(t, opts.Prefix)
}

// anAttempt is a claim that no Locker makes, and its seat on the first node.
func anAttempt(l *Locker) *seat {
	a := &backend.Attempt{Key: "k", Owner: uuid.NewString(), TTL: time.Minute}
	return &l.quorum.claim(context.Background(), a).seats[0]
}

// TestDebtRunsOut has a debt run out before the undo gives up, which then tells the node itself.
func TestDebtRunsOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	l := c.open(t, impatient, Options{Prefix: newPrefix()})
	s := anAttempt(l)
	n := s.node
	if a := n.grant(s.claim, func() {}); a.ballot != granted {
		t.Fatalf("the node answers %+v", a)
	}
	s.strays, s.owed = 1, true
	n.debts = map[string]debt{s.claim.owner: {s, time.Now().Add(-time.Second)}}
	if due := n.due(); len(due) > 0 {
		t.Errorf("%d debts are due; the one there was has run out", len(due))
	}
	if had, err := s.giveBack(true); err != nil || !had {
		t.Errorf("giveBack = %v, %v; want the lock given back", had, err)
	}
	if owner := c.holder(l, "k", 0); owner != "" {
		t.Errorf("%s holds the lock still", owner)
	}
}

// TestReleaseOutOfMemory has a node that takes no more data give up a lock, and note that it did.
func TestReleaseOutOfMemory(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	opts := Options{Prefix: newPrefix()}
	l := c.open(t, impatient, opts)
	s := anAttempt(l)
	if a := s.node.grant(s.claim, func() {}); a.ballot != granted {
		t.Fatalf("the node answers %+v", a)
	}
	must(t, c.probes[0].ConfigSet(t.Context(), "maxmemory", "1").Err())
	had, _, err := s.node.release(s.claim, true)
	must(t, c.probes[0].ConfigSet(t.Context(), "maxmemory", "0").Err())
	if err != nil || !had {
		t.Errorf("release = %v, %v; want the lock released", had, err)
	}
	if owner := c.holder(l, "k", 0); owner != "" {
		t.Errorf("%s holds the lock still", owner)
	}
	if a := s.node.grant(s.claim, func() {}); a.ballot == granted {
		t.Error("a request that was on its way got the lock")
	}
}
