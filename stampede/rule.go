package stampede

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

// rule is a Policy that was checked and has its defaults.
type rule struct {
	Policy
	items   []item
	backend string                  // of the Locker; "" without one
	bypass  chan struct{}           // has room for as many loads as may run without the lock
	outage  *atomic.Pointer[outage] // of the Locker, for all rules that have it
}

// outage is a time in which a Locker that could not be reached is not tried again: with one that is silent, every try takes a while.
type outage struct {
	until time.Time
	err   error
}

// lockerDown is why the Locker is not to be tried now, or nil.
func (r *rule) lockerDown() error {
	if o := r.outage.Load(); o != nil && time.Now().Before(o.until) {
		return o.err
	}
	return nil
}

const (
	outagePause = time.Second

	defaultLockTTL     = 10 * time.Second
	defaultLoadTimeout = 30 * time.Second
	noRenewMargin      = 5 * time.Second
	minTTL             = time.Millisecond          // what every Store can count
	maxTime            = 50 * 365 * 24 * time.Hour // so that sums of times remain times
)

// compile checks the policies, and fills in what zero means.
func (ps Policies) compile() ([]*rule, error) {
	if len(ps) == 0 {
		return nil, fmt.Errorf("%w: no policies: at least one is needed, as {Pattern: \"*\", TTL: time.Minute}", ErrInvalid)
	}
	rules := make([]*rule, len(ps))
	for i, p := range ps {
		r := &rule{Policy: p, outage: new(atomic.Pointer[outage])}
		err := r.check()
		for j := range i {
			if err == nil && covers(rules[j].items, r.items) {
				err = wrong("Pattern", "policy %d, of pattern %q, comes first and matches all that this one does, so this one would never be used",
					j, rules[j].Pattern)
			}
		}
		if err != nil {
			return nil, newPolicyError(i, p.Pattern, err)
		}
		for _, earlier := range rules[:i] {
			if sameLocker(earlier.Locker, r.Locker) {
				r.outage = earlier.outage
			}
		}
		rules[i] = r
	}
	return rules, nil
}

func sameLocker(a, b paddock.Locker) bool {
	return a != nil && b != nil && reflect.TypeOf(a).Comparable() && reflect.TypeOf(b).Comparable() && a == b
}

// check refuses what cannot work, and fills in what zero means.
func (r *rule) check() (err error) {
	if r.items, err = compile(r.Pattern); err != nil {
		return wrong("Pattern", "%w", err)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{
		{"StaleFor", r.StaleFor}, {"MaxWait", r.MaxWait}, {"LockTTL", r.LockTTL}, {"LoadTimeout", r.LoadTimeout},
		{"TTL", r.TTL}, {"NotFoundTTL", max(r.NotFoundTTL, 0)}, {"ErrorTTL", max(r.ErrorTTL, 0)},
	} {
		if d.value < 0 {
			return wrong(d.field, "%s is negative: %v", d.field, d.value)
		}
		if d.value > maxTime {
			return wrong(d.field, "%s is %v; it can be at most %v, which is about 50 years", d.field, d.value, maxTime)
		}
	}
	switch {
	case r.TTL < minTTL:
		return wrong("TTL", "TTL is %v; it must be at least %v, which is the step of a store", r.TTL, minTTL)
	case math.IsNaN(r.Jitter) || r.Jitter > 1:
		return wrong("Jitter", "Jitter is %v; it is a part of TTL, at most 1", r.Jitter)
	case math.IsNaN(r.EarlyBeta) || math.IsInf(r.EarlyBeta, 0) || r.EarlyBeta < 0:
		return wrong("EarlyBeta", "EarlyBeta is %v; it is a finite number of load times, or 0 for none", r.EarlyBeta)
	case r.MaxConcurrentLoads < 0:
		return wrong("MaxConcurrentLoads", "MaxConcurrentLoads is negative: %d", r.MaxConcurrentLoads)
	}
	for _, f := range []struct {
		field string
		value Recourse
		may   []Recourse
	}{
		{"OnContention", r.OnContention, []Recourse{ServeStale, Wait, Fail}},
		{"AfterMaxWait", r.AfterMaxWait, []Recourse{Load, Fail}},
		{"OnLockerDown", r.OnLockerDown, []Recourse{Load, Fail}},
		{"OnStoreDown", r.OnStoreDown, []Recourse{Load, Fail}},
	} {
		if f.value != 0 && !slices.Contains(f.may, f.value) {
			return wrong(f.field, "%s is %v; it can be one of %v", f.field, f.value, f.may)
		}
	}
	if r.Cost < 0 || r.Cost > Harmful {
		return wrong("Cost", "Cost is %v; it can be one of %v", r.Cost, []Cost{Harmless, Wasteful, Harmful})
	}
	if r.Refresh < Background || r.Refresh > Inline {
		return wrong("Refresh", "Refresh is %v; it can be one of %v", r.Refresh, []Refresh{Background, Inline})
	}
	r.setDefaults()
	if err := r.checkLock(); err != nil {
		return err
	}
	r.bypass = make(chan struct{}, r.MaxConcurrentLoads)
	return nil
}

func (r *rule) setDefaults() {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	if r.Jitter == 0 {
		r.Jitter = 0.1
	}
	set(&r.LoadTimeout, defaultLoadTimeout)
	set(&r.MaxWait, r.LoadTimeout+time.Second)
	set(&r.NotFoundTTL, min(5*time.Second, r.TTL))
	set(&r.ErrorTTL, min(time.Second, r.TTL))
	if r.MaxConcurrentLoads == 0 {
		r.MaxConcurrentLoads = 4
	}
	if r.Cost == 0 {
		if r.Cost = Harmless; r.Locker != nil {
			r.Cost = Wasteful
		}
	}
	down := Load
	if r.Cost == Harmful {
		down = Fail
	}
	otherwise := func(f *Recourse, to Recourse) {
		if *f == 0 {
			*f = to
		}
	}
	otherwise(&r.OnContention, ServeStale)
	otherwise(&r.AfterMaxWait, Fail)
	otherwise(&r.OnLockerDown, down)
	otherwise(&r.OnStoreDown, down)
}

// checkLock refuses a Locker that does not bear the cost, and a lock that would end before the load.
func (r *rule) checkLock() error {
	if r.Locker == nil {
		switch {
		case r.Cost != Harmless:
			return wrong("Locker", "a %v key needs a Locker, and has none", r.Cost)
		case r.LockTTL != 0 || r.NoRenew:
			return wrong("LockTTL", "LockTTL or NoRenew is set, but there is no Locker")
		}
		return nil
	}
	g := r.Locker.Guarantees()
	r.backend = g.Backend
	switch {
	case r.Cost == Harmless:
		return wrong("Locker", "a harmless key is loaded without a lock, but has a Locker (%s); leave one of the two away", g.Backend)
	case r.LockTTL != 0 && r.LockTTL < g.MinTTL:
		return wrong("LockTTL", "LockTTL is %v, below the %v that %s can do", r.LockTTL, g.MinTTL, g.Backend)
	case r.NoRenew && r.LockTTL != 0 && r.LockTTL <= r.LoadTimeout:
		return wrong("LockTTL", "LockTTL is %v and is not renewed, so it must exceed LoadTimeout, which is %v", r.LockTTL, r.LoadTimeout)
	}
	if r.LockTTL == 0 {
		if r.LockTTL = defaultLockTTL; r.NoRenew {
			r.LockTTL = r.LoadTimeout + noRenewMargin
		}
		r.LockTTL = max(r.LockTTL, g.MinTTL)
	}
	if r.Cost != Harmful {
		return nil
	}
	if g.Exclusion < paddock.Quorum || g.Fencing < fencing.Volatile {
		return wrong("Cost", "a harmful key needs a Locker with exclusion by %v or better and %v fencing or better; %s offers %v and %v",
			paddock.Quorum, fencing.Volatile, g.Backend, g.Exclusion, g.Fencing)
	}
	for _, f := range []struct {
		field string
		value Recourse
	}{{"AfterMaxWait", r.AfterMaxWait}, {"OnLockerDown", r.OnLockerDown}, {"OnStoreDown", r.OnStoreDown}} {
		if f.value == Load {
			return wrong(f.field, "a harmful key must not be loaded without its lock, but %s is Load; it must be Fail", f.field)
		}
	}
	if r.NoRenew {
		return wrong("NoRenew", "the lock of a harmful key must be renewed, but NoRenew is set")
	}
	return nil
}
