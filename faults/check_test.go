package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock/fencing"
)

const ms = time.Millisecond

func lease(owner string, token fencing.Token, call, start, released time.Duration) Lease {
	return Lease{Worker: "w", Key: "k", Owner: owner, Token: token, Call: call * ms, Start: start * ms, Deadline: 10000 * ms, Released: released * ms}
}

func with(l Lease, change func(*Lease)) Lease {
	change(&l)
	return l
}

// Histories that are as they should be, and histories with one breach each.
func TestChecks(t *testing.T) {
	t.Parallel()
	const slack = 500 * ms
	a := lease("a", 1, 0, 1, 10)
	writes := func(l Lease, values ...int64) Lease {
		at := l.Start
		for _, v := range values {
			l.Ops = append(l.Ops, Op{Write: true, Value: v, Call: at, Return: at + ms, Accepted: true})
			at += 2 * ms
		}
		return l
	}
	read := func(v int64, at time.Duration, accepted bool) Op {
		return Op{Value: v, Call: at * ms, Return: (at + 1) * ms, Accepted: accepted}
	}
	for name, c := range map[string]struct {
		leases []Lease
		writes []Write
		want   string // what is found, of which kind; empty: nothing
	}{
		"turns":       {leases: []Lease{a, lease("b", 2, 0, 11, 20), lease("c", 3, 15, 21, 30)}},
		"others keys": {leases: []Lease{a, with(lease("b", 1, 0, 5, 20), func(l *Lease) { l.Key = "other" })}},
		"two holders": {leases: []Lease{a, lease("b", 2, 0, 9, 20)}, want: Overlap},
		"two holders, not neighbours": {leases: []Lease{
			lease("a", 1, 0, 1, 100), with(lease("b", 2, 0, 2, 90), func(l *Lease) { l.Deadline = 0 }), lease("c", 3, 0, 50, 60),
		}, want: Overlap},
		"asleep past the deadline": {leases: []Lease{
			with(lease("a", 1, 0, 1, 5000), func(l *Lease) { l.Deadline, l.Ended, l.Stalled = 8*ms, 4990*ms, 4980*ms }), lease("b", 2, 0, 9, 20),
		}},
		"told before the deadline": {leases: []Lease{
			with(lease("a", 1, 0, 1, 50), func(l *Lease) { l.Ended = 8 * ms }), lease("b", 2, 0, 9, 20),
		}},
		"granted too late to count": {leases: []Lease{
			with(lease("a", 1, 0, 30, 31), func(l *Lease) { l.Deadline, l.Ended = 20*ms, 30*ms }), lease("b", 2, 0, 29, 40),
		}},
		"the same token twice":                 {leases: []Lease{a, lease("b", 1, 5, 11, 20)}, want: Order},
		"a token falls":                        {leases: []Lease{lease("a", 5, 0, 1, 10), lease("b", 4, 5, 11, 20)}, want: Order},
		"a token falls behind one that waited": {leases: []Lease{lease("a", 5, 0, 1, 10), lease("b", 4, 0, 11, 20)}, want: Order},
		"a token falls where leases overlap": {leases: []Lease{
			lease("a", 5, 0, 1, 100), with(lease("b", 4, 5, 11, 100), func(l *Lease) { l.Deadline = 11 * ms }),
		}, want: Order},
		"registers": {leases: []Lease{
			writes(a, 1, 2), with(lease("b", 2, 0, 11, 20), func(l *Lease) { l.Ops = []Op{read(2, 12, true)} }),
		}},
		"a late write is refused": {leases: []Lease{
			with(a, func(l *Lease) {
				l.Ops = []Op{read(0, 1, true), {Write: true, Value: 1, Call: 14 * ms, Return: 15 * ms}}
			}),
			with(lease("b", 2, 0, 11, 20), func(l *Lease) { l.Ops = []Op{read(0, 12, true)} }),
		}},
		"a late write is accepted": {leases: []Lease{
			with(a, func(l *Lease) {
				l.Ops = []Op{read(0, 1, true), {Write: true, Value: 1, Call: 14 * ms, Return: 15 * ms, Accepted: true}}
			}),
			with(lease("b", 2, 0, 11, 20), func(l *Lease) { l.Ops = []Op{read(0, 12, true)} }),
		}, want: Register},
		"a good write is refused": {leases: []Lease{
			with(a, func(l *Lease) { l.Ops = []Op{{Write: true, Value: 1, Call: ms, Return: 2 * ms}} }),
		}, want: Register},
		"a stale read": {leases: []Lease{
			writes(a, 1, 2), with(lease("b", 2, 0, 11, 20), func(l *Lease) { l.Ops = []Op{read(1, 12, true)} }),
		}, want: Register},
		"an equal token of another": {leases: []Lease{
			writes(with(a, func(l *Lease) { l.Token = 2 }), 1),
			writes(lease("b", 2, 0, 11, 20), 2),
		}, want: Order + Register},
		"writes in order": {writes: []Write{{Key: "k", Owner: "a", Token: 1, Value: 1}, {Key: "k", Owner: "b", Token: 2, Value: 2, Base: 1, Previous: 1}}},
		"a write out of order": {writes: []Write{
			{Key: "k", Owner: "b", Token: 2, Value: 1}, {Key: "k", Owner: "a", Token: 1, Value: 2, Base: 1, Previous: 1},
		}, want: Stale},
		"an update is lost": {writes: []Write{
			{Key: "k", Owner: "a", Token: 1, Value: 1}, {Key: "k", Owner: "b", Token: 2, Value: 2, Previous: 1},
		}, want: Stale},
		"told late": {leases: []Lease{
			with(lease("a", 1, 0, 1, 5000), func(l *Lease) { l.Deadline, l.Ended = 8*ms, 600*ms }),
		}, want: LateLoss},
		"never told": {leases: []Lease{with(lease("a", 1, 0, 1, 5000), func(l *Lease) { l.Deadline = 8 * ms })}, want: LateLoss},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := ""
			for _, check := range [][]Finding{
				CheckExclusion(c.leases), CheckTokens(c.leases), CheckRegister(c.leases), CheckWrites(c.writes), CheckLosses(c.leases, slack),
			} {
				for _, f := range check {
					found += f.What
				}
			}
			if found != c.want {
				t.Errorf("found %q; want %q", found, c.want)
			}
		})
	}
	if gap := LongestGap([]Lease{a, lease("b", 2, 0, 90, 95)}, 0); gap != 80*ms {
		t.Errorf("the longest gap is %v; want 80ms", gap)
	}
	if s := a.String(); !strings.Contains(s, "token 1") {
		t.Errorf("a lease reads %q", s)
	}
}
