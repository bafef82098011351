package main

import (
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/stampede"
)

// seedTTL is how long the value is there before the requests come. It is the time in which all processes are told when to begin.
const seedTTL = 150 * time.Millisecond

// expirySlack is how much later the requests come: a Redis server looks at its clock once for all commands that it finds waiting.
const expirySlack = 10 * time.Millisecond

// variant is one row of the demo: a recipe, or a policy of paddock's.
type variant struct {
	name   string
	legend []string // lines of at most 60 characters
	recipe recipe
	policy stampede.Policy
}

// safe reports whether the row promises that one recomputes, and no two at once.
func (v variant) safe() bool { return v.recipe == nil }

var variants = []variant{
	{
		name: "none", recipe: none,
		legend: []string{"GET; who finds nothing recomputes, and SETs the value"},
	},
	{
		name: "check-then-set", recipe: checkThenSet,
		legend: []string{
			"EXISTS lock; if it is not there, SET lock. Between the two",
			"commands others see no lock either. Losers GET every 20 ms",
		},
	},
	{
		name: "plain-del", recipe: plainDel,
		legend: []string{
			"SET lock NX PX 100, recompute, DEL lock. The lock expires in",
			"the middle, and the DEL is not of one's own lock any more.",
			"Losers GET and try again every 20 ms",
		},
	},
	{
		name: "token-no-renewal", recipe: tokenNoRenewal,
		legend: []string{
			"the same, but DEL only if the lock holds one's own token.",
			"It expires in the middle all the same",
		},
	},
	{
		name: "paddock-wait", policy: stampede.Policy{OnContention: stampede.Wait},
		legend: []string{"stampede.Cache; losers wait and are woken"},
	},
	{
		name: "paddock-stale", policy: stampede.Policy{OnContention: stampede.ServeStale, StaleFor: valueTTL},
		legend: []string{"stampede.Cache; all are served the old value at once, one", "recomputes in the background"},
	},
	{
		name: "paddock-renewed", policy: stampede.Policy{OnContention: stampede.Wait, LockTTL: shortTTL},
		legend: []string{"as paddock-wait, with a lock TTL of 100 ms, renewed"},
	},
}

func variantNamed(name string) (variant, bool) {
	for _, v := range variants {
		if v.name == name {
			return v, true
		}
	}
	return variant{}, false
}

// policies are those of one instance. A lock TTL that is below what the Locker can do is raised.
func (v variant) policies(locker paddock.Locker) stampede.Policies {
	p := v.policy
	p.Pattern, p.Cost, p.Locker, p.TTL, p.Jitter = "*", stampede.Wasteful, locker, valueTTL, -1
	// What is in question here is whether the lock holds: no way around it.
	p.AfterMaxWait, p.OnLockerDown, p.OnStoreDown = stampede.Fail, stampede.Fail, stampede.Fail
	if p.LockTTL != 0 {
		p.LockTTL = max(p.LockTTL, locker.Guarantees().MinTTL)
	}
	return stampede.Policies{p}
}

// seedPolicies are those under which the old value is cached.
func (v variant) seedPolicies() stampede.Policies {
	return stampede.Policies{{Pattern: "*", TTL: seedTTL, Jitter: -1, StaleFor: v.policy.StaleFor}}
}
