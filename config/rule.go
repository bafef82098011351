package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/paddock-go/paddock/stampede"
)

// rule is an entry of keys.
type rule struct {
	node    *yaml.Node
	at      map[string]*yaml.Node // the values, by field
	backend string
	policy  stampede.Policy
}

// field is a field of a rule, and what it is in a Policy.
type field struct {
	name, policy string
	set          func(r *rule, value string) error
}

var fields = []field{
	{"pattern", "Pattern", func(r *rule, v string) error { r.policy.Pattern = v; return nil }},
	{"cost", "Cost", oneOf(func(r *rule) *stampede.Cost { return &r.policy.Cost }, map[string]stampede.Cost{
		"harmless": stampede.Harmless, "wasteful": stampede.Wasteful, "harmful": stampede.Harmful,
	})},
	{"backend", "Locker", func(r *rule, v string) error { r.backend = v; return nil }},
	{"ttl", "TTL", duration(func(p *stampede.Policy) *time.Duration { return &p.TTL }, asItIs)},
	{"jitter", "Jitter", jitter},
	{"stale_for", "StaleFor", duration(func(p *stampede.Policy) *time.Duration { return &p.StaleFor }, asItIs)},
	{"refresh", "Refresh", oneOf(func(r *rule) *stampede.Refresh { return &r.policy.Refresh }, map[string]stampede.Refresh{
		"background": stampede.Background, "inline": stampede.Inline,
	})},
	{"early_beta", "EarlyBeta", earlyBeta},
	{"on_contention", "OnContention", recourse(func(p *stampede.Policy) *stampede.Recourse { return &p.OnContention }, "serve-stale", "wait", "fail")},
	{"max_wait", "MaxWait", duration(func(p *stampede.Policy) *time.Duration { return &p.MaxWait }, positive)},
	{"after_max_wait", "AfterMaxWait", recourse(func(p *stampede.Policy) *stampede.Recourse { return &p.AfterMaxWait }, "load", "fail")},
	{"lock_ttl", "LockTTL", duration(func(p *stampede.Policy) *time.Duration { return &p.LockTTL }, positive)},
	{"no_renew", "NoRenew", func(r *rule, v string) (err error) {
		if r.policy.NoRenew, err = strconv.ParseBool(v); err != nil {
			err = fmt.Errorf("should be true or false")
		}
		return err
	}},
	{"load_timeout", "LoadTimeout", duration(func(p *stampede.Policy) *time.Duration { return &p.LoadTimeout }, positive)},
	{"not_found_ttl", "NotFoundTTL", duration(func(p *stampede.Policy) *time.Duration { return &p.NotFoundTTL }, zeroIsNone)},
	{"error_ttl", "ErrorTTL", duration(func(p *stampede.Policy) *time.Duration { return &p.ErrorTTL }, zeroIsNone)},
	{"on_locker_down", "OnLockerDown", recourse(func(p *stampede.Policy) *stampede.Recourse { return &p.OnLockerDown }, "load", "fail")},
	{"on_store_down", "OnStoreDown", recourse(func(p *stampede.Policy) *stampede.Recourse { return &p.OnStoreDown }, "load", "fail")},
	{"max_concurrent_loads", "MaxConcurrentLoads", func(r *rule, v string) (err error) {
		if r.policy.MaxConcurrentLoads, err = strconv.Atoi(v); err != nil || r.policy.MaxConcurrentLoads < 1 {
			err = fmt.Errorf("should be a number, at least 1")
		}
		return err
	}},
}

func fieldNames() string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

func (f *file) readRule(n *yaml.Node) {
	r := rule{node: n, at: map[string]*yaml.Node{}}
	before := len(f.errs)
	for _, e := range f.mapping(n, "a rule of keys") {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == e.name })
		if i < 0 {
			f.fail(e.key, "unknown field %q of a rule; known are %s", e.name, fieldNames())
			continue
		}
		r.at[e.name] = e.value
		if e.value.Kind != yaml.ScalarNode || e.value.Tag == "!!null" {
			f.fail(e.value, "%s has no value, or more than one", e.name)
		} else if err := fields[i].set(&r, e.value.Value); err != nil {
			f.fail(e.value, "%s is %q; it %w", e.name, e.value.Value, err)
		}
	}
	for _, name := range []string{"pattern", "ttl"} {
		if r.at[name] == nil && len(f.errs) == before {
			f.fail(n, "a rule of keys without %s", name)
		}
	}
	f.rules = append(f.rules, r)
}

// What a time of zero, if it is written, is for a field.
const (
	asItIs = iota
	positive
	zeroIsNone // which a Policy has as a negative one
)

func duration(field func(*stampede.Policy) *time.Duration, zero int) func(*rule, string) error {
	return func(r *rule, v string) error {
		d, err := parseDuration(v)
		switch {
		case err != nil || d < 0:
			return fmt.Errorf("should be a time such as 250ms, 30s, 5m, 2h or 7d")
		case d == 0 && zero == positive:
			return fmt.Errorf("should be more than nothing; leave it out for the default")
		case d == 0 && zero == zeroIsNone:
			d = -1
		}
		*field(&r.policy) = d
		return nil
	}
}

// parseDuration is time.ParseDuration with days.
func parseDuration(s string) (time.Duration, error) {
	days, rest, ok := strings.Cut(s, "d")
	if !ok {
		return time.ParseDuration(s)
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, err
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}

func jitter(r *rule, v string) error {
	number, percent := strings.CutSuffix(v, "%")
	x, err := strconv.ParseFloat(number, 64)
	if percent {
		x /= 100
	}
	if err != nil || !(x >= 0 && x <= 1) {
		return fmt.Errorf("should be a part of ttl such as 10%% or 0.1, at most 100%%")
	}
	if x == 0 {
		x = -1 // a Policy's zero is its default
	}
	r.policy.Jitter = x
	return nil
}

func earlyBeta(r *rule, v string) error {
	x, err := strconv.ParseFloat(v, 64)
	if err != nil || !(x >= 0 && x <= 1000) {
		return fmt.Errorf("should be a number, 1 being a good one and 0 none")
	}
	r.policy.EarlyBeta = x
	return nil
}

func oneOf[T any](field func(*rule) *T, words map[string]T) func(*rule, string) error {
	return func(r *rule, v string) error {
		value, ok := words[v]
		if !ok {
			return fmt.Errorf("should be one of %s", strings.Join(slices.Sorted(maps.Keys(words)), ", "))
		}
		*field(r) = value
		return nil
	}
}

var recourses = map[string]stampede.Recourse{
	"serve-stale": stampede.ServeStale, "wait": stampede.Wait, "load": stampede.Load, "fail": stampede.Fail,
}

func recourse(field func(*stampede.Policy) *stampede.Recourse, may ...string) func(*rule, string) error {
	words := map[string]stampede.Recourse{}
	for _, w := range may {
		words[w] = recourses[w]
	}
	return oneOf(func(r *rule) *stampede.Recourse { return field(&r.policy) }, words)
}
