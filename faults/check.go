package faults

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/paddock-go/paddock/fencing"
)

// Finding is a breach of a promise.
type Finding struct {
	What string
	At   time.Duration // when it began
	Text string
}

// What findings are of.
const (
	Overlap    = "exclusion"
	Order      = "order of tokens"
	Register   = "guarded register"
	Stale      = "stale write accepted"
	LateLoss   = "loss signalled late"
	NoProgress = "waiters do not get on"
	Left       = "left behind"
)

// checkLimit is what porcupine may take for one key of one round.
const checkLimit = time.Minute

func byKey(leases []Lease) map[string][]Lease {
	keys := map[string][]Lease{}
	for _, l := range leases {
		keys[l.Key] = append(keys[l.Key], l)
	}
	for _, of := range keys {
		slices.SortStableFunc(of, func(a, b Lease) int { return cmp.Compare(a.Start, b.Start) })
	}
	return keys
}

// CheckExclusion finds leases of one key that were trusted at the same time. Each is reported once, with the one before it that
// was trusted the longest.
func CheckExclusion(leases []Lease) []Finding {
	var found []Finding
	for _, of := range byKey(leases) {
		var before *Lease
		for i := range of {
			l := &of[i]
			if l.Start >= l.End() {
				continue // it was over when it came
			}
			if before != nil && l.Start < before.End() {
				found = append(found, Finding{Overlap, l.Start, fmt.Sprintf("for %v, two holders:\n  %v\n  %v",
					min(before.End(), l.End())-l.Start, before, l)})
			}
			if before == nil || l.End() > before.End() {
				before = l
			}
		}
	}
	return found
}

// CheckTokens finds tokens that do not rise: from a lease to one that was asked for after it had been granted, and from a lease to one
// that was granted after its end.
func CheckTokens(leases []Lease) []Finding {
	var found []Finding
	for key, of := range byKey(leases) {
		for _, strict := range []bool{true, false} {
			var ops []porcupine.Operation
			for _, l := range of {
				call, end := l.Call, l.Start
				if strict {
					call, end = l.Start, l.End()
				}
				if call < end {
					ops = append(ops, porcupine.Operation{Output: l.Token, Call: int64(call), Return: int64(end)})
				}
			}
			if linearizable(risingTokens, ops) {
				continue
			}
			found = append(found, falling(key, of, strict))
			break
		}
	}
	return found
}

// falling finds the first pair of leases that is out of order.
func falling(key string, of []Lease, strict bool) Finding {
	for i := range of {
		for j := range of {
			a, b := &of[i], &of[j]
			after := a.Start < b.Call
			if strict {
				after = a.Start < a.End() && b.Start < b.End() && a.End() < b.Start
			}
			if after && a.Token >= b.Token {
				return Finding{Order, b.Start, fmt.Sprintf("token %d after %d:\n  %v\n  %v", b.Token, a.Token, a, b)}
			}
		}
	}
	return Finding{Order, of[0].Start, fmt.Sprintf("no order of the leases of %s that has rising tokens was found", key)}
}

// risingTokens is a counter of which each operation sees a larger value.
var risingTokens = porcupine.Model{
	Init: func() any { return fencing.Token(0) },
	Step: func(state, _, output any) (bool, any) {
		return output.(fencing.Token) > state.(fencing.Token), output
	},
	Equal: func(a, b any) bool { return a == b },
}

func linearizable(m porcupine.Model, ops []porcupine.Operation) bool {
	return porcupine.CheckOperationsTimeout(m, ops, checkLimit) == porcupine.Ok
}

// marked is the state of a guarded register: its value and the highest fence that it was shown.
type marked struct {
	token fencing.Token
	owner string
	value int64
}

type shown struct {
	token fencing.Token
	owner string
	op    Op
}

var guardedRegister = porcupine.Model{
	Init: func() any { return marked{} },
	Step: func(state, input, _ any) (bool, any) {
		s, in := state.(marked), input.(shown)
		stale := in.token < s.token || in.token == s.token && in.owner != s.owner
		if stale || !in.op.Accepted {
			return stale != in.op.Accepted, s
		}
		if !in.op.Write {
			return in.op.Value == s.value, marked{in.token, in.owner, s.value}
		}
		return true, marked{in.token, in.owner, in.op.Value}
	},
	Equal: func(a, b any) bool { return a == b },
}

// CheckRegister finds out whether what the workers were told by the guarded registers can be so.
func CheckRegister(leases []Lease) []Finding {
	var found []Finding
	for key, of := range byKey(leases) {
		var ops []porcupine.Operation
		for _, l := range of {
			for _, op := range l.Ops {
				ops = append(ops, porcupine.Operation{
					Input: shown{l.Token, l.Owner, op}, Call: int64(op.Call), Return: int64(op.Return),
				})
			}
		}
		if len(ops) > 0 && !linearizable(guardedRegister, ops) {
			found = append(found, Finding{Register, of[0].Start, fmt.Sprintf(
				"what %d operations on %s were answered is in no order that a guarded register has", len(ops), key)})
		}
	}
	return found
}

// CheckWrites finds writes that a guard ought to have refused, in the order in which the resource has made them.
func CheckWrites(writes []Write) []Finding {
	var found []Finding
	last := map[string]Write{}
	for _, w := range writes {
		before := last[w.Key]
		switch {
		case w.Token < before.Token, w.Token == before.Token && w.Owner != before.Owner:
			found = append(found, Finding{What: Stale, Text: fmt.Sprintf("out of order: %+v after %+v", w, before)})
		case w.Base != w.Previous:
			found = append(found, Finding{What: Stale, Text: fmt.Sprintf("an update is lost: %+v over %+v", w, before)})
		}
		last[w.Key] = w
	}
	return found
}

// CheckLosses finds leases that still passed for held when their deadline had been over for longer than slack, not counting the time
// in which the process did not run.
func CheckLosses(leases []Lease, slack time.Duration) []Finding {
	var found []Finding
	for i := range leases {
		l := &leases[i]
		told := l.Released
		if l.Ended > 0 {
			told = min(told, l.Ended)
		}
		if late := told - l.Deadline - l.Stalled; late > slack {
			found = append(found, Finding{LateLoss, l.Deadline, fmt.Sprintf("%v after the deadline:\n  %v", late, l)})
		}
	}
	return found
}

// LongestGap is the longest time in which nobody held a key, from the beginning of a round on.
func LongestGap(leases []Lease, began time.Duration) time.Duration {
	var longest time.Duration
	for _, of := range byKey(leases) {
		free := began
		for i := range of {
			longest = max(longest, of[i].Start-free)
			free = max(free, of[i].End())
		}
	}
	return longest
}
