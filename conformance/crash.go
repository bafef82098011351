package conformance

import (
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const (
	ruleCrash = "a killed holder's key is free at most the granted TTL + TTLStep later."
	rulePause = "a process that was paused past its lease learns so when it runs again, from Err at once; its late Release " +
		"touches nobody else's lock."
)

var crash = []check{
	{name: "Rule12/KilledHolder", rule: ruleCrash, only: otherProcesses, run: killedHolder},
	{name: "Rule12/KilledWaiter", rule: ruleCrash, only: otherProcesses, run: killedWaiter},
	{name: "Rule12/StoppedHolder", rule: rulePause, only: otherProcesses, run: stoppedHolder},
}

func otherProcesses(g paddock.Guarantees) bool { return g.Exclusion > paddock.ProcessOnly }

// crashed is the time after which a dead holder's key must have been given on.
func (t *trial) crashed(ttl time.Duration) time.Duration { return ttl + t.g.TTLStep + poll }

func killedHolder(t *trial) {
	l, key := t.open(), t.key()
	c := t.child(key, t.lively())
	first := c.hear("held")
	t.pass(t.lively()) // so that it was renewed
	t.refused(l, key)
	waiter := acquiring(t.ctx, l, key, forTTL(t.ttl(long)))
	t.pass(queued)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	next, _ := t.granted(waiter, t.crashed(t.lively()), "the waiter behind a killed holder")
	if t.g.Fencing > fencing.None && next.Token() <= first.Token {
		t.Errorf("token %d was followed by %d. Rule 11: %s", first.Token, next.Token(), ruleTokens)
	}
	t.release(next)
}

func killedWaiter(t *trial) {
	l, key := t.open(), t.key()
	held := t.acquire(l, key, forTTL(t.ttl(long)))
	c := t.child(key, t.lively())
	t.pass(2 * queued)
	waiter := acquiring(t.ctx, l, key, forTTL(t.ttl(long)))
	t.pass(queued)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	t.release(held)
	next, _ := t.granted(waiter, t.crashed(t.lively()), "the waiter behind a killed waiter")
	t.release(next)
}

func stoppedHolder(t *trial) {
	l, key := t.open(), t.key()
	c := t.child(key, t.lively())
	c.hear("held")
	if r := c.answer("err"); r.Err != "" {
		t.Fatalf("Err of a live lease in another process: %s", r.Err)
	}
	waiter := acquiring(t.ctx, l, key, forTTL(t.ttl(long)))
	t.pass(queued)
	if !stop(c.cmd.Process) {
		t.Skipf("%s: this system cannot stop processes", t.check.name)
	}
	next, _ := t.granted(waiter, t.crashed(t.lively()), "the waiter behind a stopped holder")
	if err := c.ask("err"); err != nil {
		t.Fatal(err)
	}
	resume(c.cmd.Process)
	if r := c.hear("err"); !r.Lost {
		t.Errorf("Err of a holder that was stopped for longer than its TTL is %q; want ErrLost", r.Err)
	}
	if r := c.answer("release"); !r.Lost {
		t.Errorf("Release of a holder that was stopped for longer than its TTL is %q; want ErrLost", r.Err)
	}
	if err := next.Err(); err != nil {
		t.Errorf("the next holder's lease: %v", err)
	}
	t.refused(t.open(), key)
	t.release(next)
}
