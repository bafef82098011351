package conformance

import (
	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const (
	ruleTokens = "tokens are strictly larger for every later acquisition of a key; never 0; at most 2^63-1."
	ruleNone   = "where Guarantees.Fencing is none, nobody is to fence with a token."
)

var tokens = []check{
	{name: "Rule11/TokensRise", rule: ruleTokens, only: fenced, run: tokensRise},
	{name: "Rule11/TokensRiseAfterExpiry", rule: ruleTokens, only: fenced, run: tokensAfterExpiry},
	{name: "Rule11/TokensRiseAfterRestart", rule: ruleTokens, alone: true, run: tokensAfterRestart,
		only: func(g paddock.Guarantees) bool { return g.Fencing == fencing.Durable }},
	{name: "Rule11/NoFencingNoToken", rule: ruleNone, run: noToken,
		only: func(g paddock.Guarantees) bool { return g.Fencing == fencing.None }},
}

func fenced(g paddock.Guarantees) bool { return g.Fencing > fencing.None }

// after checks that lease has a valid token above last, and returns it.
func (t *trial) after(last fencing.Token, lease *paddock.Lease) fencing.Token {
	t.Helper()
	if !lease.Token().Valid() || lease.Fence().Domain == "" {
		t.Errorf("the fence %v is not a valid one", lease.Fence())
	}
	if lease.Token() <= last {
		t.Errorf("token %d was followed by %d", last, lease.Token())
	}
	return lease.Token()
}

func tokensRise(t *trial) {
	key := t.key()
	var last fencing.Token
	for range 5 { // Lockers come and go
		l := t.b.Open(t.T)
		for i := range 8 {
			acquire := l.Acquire
			if i%2 == 0 {
				acquire = l.TryAcquire
			}
			lease, err := acquire(t.ctx, key, nil)
			if err != nil {
				t.Fatal(err)
			}
			last = t.after(last, lease)
			if i%3 == 0 {
				t.extended(lease, t.ttl(long))
				if lease.Token() != last {
					t.Errorf("Extend changed the token %d to %d", last, lease.Token())
				}
			}
			t.release(lease)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func tokensAfterExpiry(t *trial) {
	a, b := t.open(), t.open()
	key := t.key()
	last := t.after(0, t.acquire(a, key, unrenewed(t.brief())))
	for _, l := range []paddock.Locker{b, a} {
		last = t.after(last, t.acquire(l, key, unrenewed(t.brief())))
	}
	lease := t.acquire(b, key, nil)
	t.after(last, lease)
	t.release(lease)
}

func tokensAfterRestart(t *trial) {
	if t.b.Faults == nil || t.b.Faults.Restart == nil {
		t.skip("Faults.Restart")
	}
	a, b := t.open(), t.open()
	key := t.key()
	lease := t.acquire(a, key, forTTL(t.lively()))
	last := t.after(0, lease)
	t.release(lease)
	t.b.Faults.Restart(t.T)
	for _, l := range []paddock.Locker{a, b} {
		lease := t.acquire(l, key, forTTL(t.lively()))
		last = t.after(last, lease)
		if err := lease.Release(t.ctx); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
}

func noToken(t *trial) {
	lease := t.acquire(t.open(), t.key(), nil)
	if lease.Token() != 0 {
		t.Errorf("token %d; Guarantees.Fencing is none", lease.Token())
	}
	t.release(lease)
}
