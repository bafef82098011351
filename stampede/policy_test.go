package stampede_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/memlock"
	"github.com/paddock-go/paddock/stampede"
	"github.com/paddock-go/paddock/stampede/memstore"
)

// locker is a Locker that is only asked for its guarantees.
type locker struct {
	paddock.Locker
	g paddock.Guarantees
}

func (l locker) Guarantees() paddock.Guarantees { return l.g }

var (
	weak   = locker{g: paddock.Guarantees{Backend: "weak", Exclusion: paddock.SingleServer, Fencing: fencing.Volatile, MinTTL: time.Millisecond}}
	strong = locker{g: paddock.Guarantees{Backend: "strong", Exclusion: paddock.Quorum, Fencing: fencing.Volatile, MinTTL: 20 * time.Second}}
	blunt  = locker{g: paddock.Guarantees{Backend: "blunt", Exclusion: paddock.Consensus, Fencing: fencing.None}}
)

func TestRefusedPolicies(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	for name, c := range map[string]struct {
		p    stampede.Policy
		says []string
	}{
		"no pattern":               {stampede.Policy{TTL: minute}, []string{"empty"}},
		"open bracket":             {stampede.Policy{Pattern: "a[b", TTL: minute}, []string{`a[b`, `\[`}},
		"no TTL":                   {stampede.Policy{Pattern: "p:*"}, []string{"p:*", "TTL is 0s"}},
		"TTL below the step":       {stampede.Policy{Pattern: "*", TTL: time.Microsecond}, []string{"TTL is 1µs", "1ms"}},
		"TTL for ever":             {stampede.Policy{Pattern: "*", TTL: math.MaxInt64}, []string{"TTL is", "50 years"}},
		"LoadTimeout for ever":     {stampede.Policy{Pattern: "*", TTL: minute, LoadTimeout: math.MaxInt64}, []string{"LoadTimeout is", "50 years"}},
		"negative StaleFor":        {stampede.Policy{Pattern: "*", TTL: minute, StaleFor: -1}, []string{"StaleFor"}},
		"negative MaxWait":         {stampede.Policy{Pattern: "*", TTL: minute, MaxWait: -1}, []string{"MaxWait"}},
		"negative LoadTimeout":     {stampede.Policy{Pattern: "*", TTL: minute, LoadTimeout: -1}, []string{"LoadTimeout"}},
		"negative LockTTL":         {stampede.Policy{Pattern: "*", TTL: minute, Locker: weak, LockTTL: -1}, []string{"LockTTL"}},
		"jitter above 1":           {stampede.Policy{Pattern: "*", TTL: minute, Jitter: 1.1}, []string{"Jitter is 1.1"}},
		"jitter NaN":               {stampede.Policy{Pattern: "*", TTL: minute, Jitter: math.NaN()}, []string{"Jitter"}},
		"beta NaN":                 {stampede.Policy{Pattern: "*", TTL: minute, EarlyBeta: math.NaN()}, []string{"EarlyBeta"}},
		"negative beta":            {stampede.Policy{Pattern: "*", TTL: minute, EarlyBeta: -1}, []string{"EarlyBeta"}},
		"infinite beta":            {stampede.Policy{Pattern: "*", TTL: minute, EarlyBeta: math.Inf(1)}, []string{"EarlyBeta"}},
		"negative loads":           {stampede.Policy{Pattern: "*", TTL: minute, MaxConcurrentLoads: -1}, []string{"MaxConcurrentLoads"}},
		"no such cost":             {stampede.Policy{Pattern: "*", TTL: minute, Cost: 9}, []string{"Cost"}},
		"no such refresh":          {stampede.Policy{Pattern: "*", TTL: minute, Refresh: 9}, []string{"Refresh"}},
		"contention by load":       {stampede.Policy{Pattern: "*", TTL: minute, OnContention: stampede.Load}, []string{"OnContention is load", "serve stale"}},
		"store down by wait":       {stampede.Policy{Pattern: "*", TTL: minute, OnStoreDown: stampede.Wait}, []string{"OnStoreDown is wait"}},
		"harmless with a locker":   {stampede.Policy{Pattern: "*", TTL: minute, Cost: stampede.Harmless, Locker: weak}, []string{"harmless", "weak"}},
		"wasteful without one":     {stampede.Policy{Pattern: "*", TTL: minute, Cost: stampede.Wasteful}, []string{"wasteful", "needs a Locker"}},
		"harmful without one":      {stampede.Policy{Pattern: "pay:*", TTL: minute, Cost: stampede.Harmful}, []string{"pay:*", "harmful", "needs a Locker"}},
		"lock TTL without one":     {stampede.Policy{Pattern: "*", TTL: minute, LockTTL: minute}, []string{"no Locker"}},
		"lock TTL below the least": {stampede.Policy{Pattern: "*", TTL: minute, Locker: strong, LockTTL: time.Second}, []string{"LockTTL is 1s", "20s", "strong"}},
		"lock ends before load": {
			stampede.Policy{Pattern: "*", TTL: minute, Locker: weak, NoRenew: true, LockTTL: time.Second, LoadTimeout: time.Second},
			[]string{"not renewed", "exceed LoadTimeout"},
		},
		"harmful on one server": {
			stampede.Policy{Pattern: "pay:*", TTL: minute, Cost: stampede.Harmful, Locker: weak},
			[]string{"pay:*", "quorum", "volatile", "weak offers single server"},
		},
		"harmful without fences": {
			stampede.Policy{Pattern: "pay:*", TTL: minute, Cost: stampede.Harmful, Locker: blunt},
			[]string{"pay:*", "blunt offers consensus and none"},
		},
		"harmful, loads without lock": {
			stampede.Policy{Pattern: "*", TTL: minute, Cost: stampede.Harmful, Locker: strong, OnLockerDown: stampede.Load}, []string{"OnLockerDown is Load"},
		},
		"harmful, loads without store": {
			stampede.Policy{Pattern: "*", TTL: minute, Cost: stampede.Harmful, Locker: strong, OnStoreDown: stampede.Load}, []string{"OnStoreDown is Load"},
		},
		"harmful, loads after MaxWait": {
			stampede.Policy{Pattern: "*", TTL: minute, Cost: stampede.Harmful, Locker: strong, AfterMaxWait: stampede.Load}, []string{"AfterMaxWait is Load"},
		},
		"harmful, not renewed": {
			stampede.Policy{Pattern: "*", TTL: minute, Cost: stampede.Harmful, Locker: strong, NoRenew: true}, []string{"renewed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := stampede.New[int](memstore.New(nil), stampede.Policies{{Pattern: "first", TTL: minute}, c.p}, nil)
			if !errors.Is(err, stampede.ErrInvalid) {
				t.Fatalf("got %v, want ErrInvalid", err)
			}
			for _, s := range append(c.says, "policy 1") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%q does not say %q", err, s)
				}
			}
		})
	}
	for name, make := range map[string]func() error{
		"no store": func() error {
			_, err := stampede.New[int](nil, stampede.Policies{{Pattern: "*", TTL: minute}}, nil)
			return err
		},
		"no policies": func() error { _, err := stampede.New[int](memstore.New(nil), nil, nil); return err },
		"a name with a slash": func() error {
			_, err := stampede.New(memstore.New(nil), stampede.Policies{{Pattern: "*", TTL: minute}}, &stampede.Options[int]{Name: "a/b"})
			return err
		},
		"a negative timeout": func() error {
			_, err := stampede.New(memstore.New(nil), stampede.Policies{{Pattern: "*", TTL: minute}}, &stampede.Options[int]{StoreTimeout: -1})
			return err
		},
	} {
		if err := make(); !errors.Is(err, stampede.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestPolicyDefaults(t *testing.T) {
	t.Parallel()
	c, err := stampede.New[int](memstore.New(nil), stampede.Policies{
		{Pattern: "short", TTL: 100 * time.Millisecond, Locker: weak},
		{Pattern: "slow", TTL: time.Hour, Locker: strong, Cost: stampede.Harmful, LoadTimeout: time.Minute},
		{Pattern: "once", TTL: time.Hour, Locker: weak, NoRenew: true},
		{Pattern: "none", TTL: time.Hour, Jitter: -1, ErrorTTL: -1, NotFoundTTL: -1},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for key, want := range map[string]stampede.Policy{
		"short": {
			Cost: stampede.Wasteful, Locker: weak, TTL: 100 * time.Millisecond, Jitter: 0.1, LockTTL: 10 * time.Second, LoadTimeout: 30 * time.Second,
			MaxWait: 31 * time.Second, NotFoundTTL: 100 * time.Millisecond, ErrorTTL: 100 * time.Millisecond,
			OnContention: stampede.ServeStale, AfterMaxWait: stampede.Fail, OnLockerDown: stampede.Load, OnStoreDown: stampede.Load, MaxConcurrentLoads: 4,
		},
		"slow": {
			Cost: stampede.Harmful, Locker: strong, TTL: time.Hour, Jitter: 0.1, LockTTL: 20 * time.Second, LoadTimeout: time.Minute,
			MaxWait: 61 * time.Second, NotFoundTTL: 5 * time.Second, ErrorTTL: time.Second,
			OnContention: stampede.ServeStale, AfterMaxWait: stampede.Fail, OnLockerDown: stampede.Fail, OnStoreDown: stampede.Fail, MaxConcurrentLoads: 4,
		},
		"once": {
			Cost: stampede.Wasteful, Locker: weak, TTL: time.Hour, Jitter: 0.1, NoRenew: true, LockTTL: 35 * time.Second, LoadTimeout: 30 * time.Second,
			MaxWait: 31 * time.Second, NotFoundTTL: 5 * time.Second, ErrorTTL: time.Second,
			OnContention: stampede.ServeStale, AfterMaxWait: stampede.Fail, OnLockerDown: stampede.Load, OnStoreDown: stampede.Load, MaxConcurrentLoads: 4,
		},
		"none": {
			Cost: stampede.Harmless, TTL: time.Hour, Jitter: -1, LoadTimeout: 30 * time.Second,
			MaxWait: 31 * time.Second, NotFoundTTL: -1, ErrorTTL: -1,
			OnContention: stampede.ServeStale, AfterMaxWait: stampede.Fail, OnLockerDown: stampede.Load, OnStoreDown: stampede.Load, MaxConcurrentLoads: 4,
		},
	} {
		want.Pattern = key
		if got, ok := c.Policy(key); !ok || got != want {
			t.Errorf("%s:\n%+v, want\n%+v", key, got, want)
		}
	}
	if _, ok := c.Policy("other"); ok {
		t.Error("a key that no pattern matches has a policy")
	}
	if _, err := c.Get(context.Background(), "other", func(context.Context) (int, error) { return 1, nil }); !errors.Is(err, stampede.ErrInvalid) {
		t.Errorf("a key without a policy: %v, want ErrInvalid", err)
	}
}

func TestRefusedKeys(t *testing.T) {
	t.Parallel()
	lock := memlock.New(nil)
	defer lock.Close()
	c, err := stampede.New[int](memstore.New(nil), stampede.Policies{{Pattern: "*", TTL: time.Minute, Locker: lock}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	load := func(context.Context) (int, error) { return 1, nil }
	longest := 1024 - len("cache/default/")
	for _, key := range []string{"", "\xff", strings.Repeat("x", longest+1)} {
		if _, err := c.Get(t.Context(), key, load); !errors.Is(err, stampede.ErrInvalid) {
			t.Errorf("key %.20q: %v, want ErrInvalid", key, err)
		}
	}
	for _, key := range []string{strings.Repeat("x", longest), "a/b c{}\x00\n*é"} {
		if _, err := c.Get(t.Context(), key, load); err != nil {
			t.Errorf("key %.20q: %v", key, err)
		}
	}
}

// TestJitterSpreads: of 10,000 keys set at once with a TTL of 600 s and 10 %, no second sees more than 3 % expire.
func TestJitterSpreads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(nil)
		c, err := stampede.New[int](store, stampede.Policies{{Pattern: "*", TTL: 600 * time.Second}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		const keys = 10_000
		for i := range keys {
			if err := c.Set(t.Context(), fmt.Sprint(i), i); err != nil {
				t.Fatal(err)
			}
		}
		perSecond := map[int]int{}
		for i := range keys {
			es, err := store.Get(t.Context(), fmt.Sprint("default/", i))
			if err != nil || es[0].Left < 600*time.Second || es[0].Left > 660*time.Second {
				t.Fatalf("%v left, %v; want 600 to 660 s", es[0].Left, err)
			}
			perSecond[int(es[0].Left/time.Second)]++
		}
		for second, n := range perSecond {
			if n > keys*3/100 {
				t.Errorf("%d of %d keys expire in second %d", n, keys, second)
			}
		}
	})
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"*", "anything/at:all", true}, {"a*", "a", true}, {"a*", "ba", false}, {"*a", "ba", true}, {"a*c", "abc", true}, {"a*c", "abcd", false},
		{"a*b*c", "axbxbxc", true}, {"a**c", "ac", true}, {"trending:*", "trending:posts/1", true}, {"trending:*", "Trending:posts", false},
		{"?", "é", true}, {"?", "ab", false}, {"a?c", "abc", true}, {"[a-c]x", "bx", true}, {"[a-c]x", "dx", false}, {"[^a-c]x", "dx", true},
		{"[^a-c]x", "ax", false}, {"[a-]", "-", true}, {`[\]]`, "]", true}, {`\*`, "*", true}, {`\*`, "a", false}, {`a\\`, `a\`, true},
		{"exact", "exact", true}, {"exact", "exactly", false}, {"*é*", "caféé!", true},
		{"a*a*a*a*a*a*a*a*b", strings.Repeat("a", 200), false},
	} {
		if got, err := stampede.Match(c.pattern, c.key); got != c.want || err != nil {
			t.Errorf("%q matches %q: %v, %v; want %v", c.pattern, c.key, got, err, c.want)
		}
	}
	for _, pattern := range []string{"", "\xff", `a\`, "[", "[]", "[^]", "[b-a]", "[a", `[\`} {
		if _, err := stampede.Match(pattern, "x"); err == nil {
			t.Errorf("%q is a pattern", pattern)
		}
	}
}
