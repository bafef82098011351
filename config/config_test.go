package config_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock/config"
	_ "github.com/paddock-go/paddock/etcdlock"
	_ "github.com/paddock-go/paddock/memlock"
	_ "github.com/paddock-go/paddock/redislock"
	"github.com/paddock-go/paddock/stampede"
	_ "github.com/paddock-go/paddock/stampede/memstore"
	_ "github.com/paddock-go/paddock/stampede/redisstore"
)

const secret = "hunter2/@:?#%&+ ü"

func env(name string) (string, bool) {
	switch name {
	case "REDIS_PASSWORD":
		return secret, true
	case "MEMORY":
		return "memory:?prefix=env", true
	}
	return "", false
}

func parse(t *testing.T, text string) (*config.Config, error) {
	c, err := config.Parse(t.Context(), "paddock.yaml", []byte(text), &config.Options{LookupEnv: env})
	if err == nil {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	return c, err
}

func TestDocumentedExample(t *testing.T) {
	data, err := os.ReadFile("../docs/paddock.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := parse(t, string(data))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Lockers) != 2 || c.Store == nil || len(c.Policies) != 4 {
		t.Fatalf("read %d lockers, store %v, %d policies", len(c.Lockers), c.Store, len(c.Policies))
	}
	if b := c.Lockers["safe"].Guarantees().Backend; b != "etcd" {
		t.Errorf("safe is %q", b)
	}
	got := c.Policies[1]
	want := stampede.Policy{
		Pattern: "inventory:*", Cost: stampede.Wasteful, Locker: c.Lockers["safe"], TTL: 5 * time.Second, Jitter: -1,
		OnContention: stampede.Wait, MaxWait: 2 * time.Second, AfterMaxWait: stampede.Load, MaxConcurrentLoads: 2,
		LockTTL: 10 * time.Second, LoadTimeout: 3 * time.Second, NotFoundTTL: time.Second, ErrorTTL: -1,
		OnLockerDown: stampede.Load, OnStoreDown: stampede.Load,
	}
	if got != want {
		t.Errorf("read %+v\nwant %+v", got, want)
	}
	if p := c.Policies[0]; p.Jitter != 0.1 || p.EarlyBeta != 1 || p.OnContention != stampede.ServeStale || p.Refresh != stampede.Background {
		t.Errorf("read %+v", p)
	}
	if strings.Join(c.Backends, ",") != "fast,safe,safe," {
		t.Errorf("backends of the policies: %q", c.Backends)
	}
}

func TestURLFromTheEnvironment(t *testing.T) {
	c, err := parse(t, "backends: {m: \"${MEMORY}\"}\nkeys: [{pattern: \"*\", ttl: 1m, backend: m}]")
	if err != nil {
		t.Fatal(err)
	}
	if l := c.Lockers["m"]; l == nil || l.Guarantees().Backend != "memory" {
		t.Errorf("opened %v", l)
	}
}

func TestTimes(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"250ms": 250 * time.Millisecond, "90s": 90 * time.Second, "2h": 2 * time.Hour, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour,
	} {
		c, err := parse(t, `keys: [{pattern: "*", ttl: `+text+`}]`)
		if err != nil || c.Policies[0].TTL != want {
			t.Errorf("ttl %s: %v", text, err)
		}
	}
}

func TestWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"empty":          {"", "the file is empty"},
		"no mapping":     {"- a", "1:1: the file should be a mapping"},
		"syntax":         {"keys: [", "not YAML"},
		"unknown field":  {"keyz: []", `1:1: unknown field "keyz"; known are backends, store and keys`},
		"twice":          {"keys: []\nkeys: []", `2:1: "keys" is there twice`},
		"no keys":        {"backends: {m: 'memory:'}", "no keys"},
		"keys no list":   {"keys: {a: b}", "1:7: keys should be a list"},
		"rule field":     {"keys:\n  - pattern: '*'\n    tll: 1m", `3:5: unknown field "tll" of a rule; known are pattern, cost`},
		"no ttl":         {"keys:\n  - pattern: '*'", "2:5: a rule of keys without ttl"},
		"no pattern":     {"keys:\n  - ttl: 1m", "2:5: a rule of keys without pattern"},
		"time":           {"keys:\n  - {pattern: '*', ttl: 60}", `2:25: ttl is "60"; it should be a time such as`},
		"negative":       {"keys: [{pattern: '*', ttl: -1s}]", `ttl is "-1s"`},
		"zero ttl":       {"keys: [{pattern: '*', ttl: 0s}]", "1:28: keys \"*\": TTL is 0s; it must be at least 1ms"},
		"zero wait":      {"keys: [{pattern: '*', ttl: 1m, max_wait: 0s}]", "should be more than nothing"},
		"null":           {"keys: [{pattern: '*', ttl: }]", "1:28: ttl has no value"},
		"list":           {"keys: [{pattern: '*', ttl: [1m]}]", "ttl has no value, or more than one"},
		"jitter":         {"keys: [{pattern: '*', ttl: 1m, jitter: 110%}]", `1:40: jitter is "110%"`},
		"jitter NaN":     {"keys: [{pattern: '*', ttl: 1m, jitter: NaN}]", `jitter is "NaN"`},
		"beta":           {"keys: [{pattern: '*', ttl: 1m, early_beta: -1}]", `early_beta is "-1"`},
		"cost":           {"keys: [{pattern: '*', ttl: 1m, cost: cheap}]", `cost is "cheap"; it should be one of harmful, harmless, wasteful`},
		"contention":     {"keys: [{pattern: '*', ttl: 1m, on_contention: load}]", "should be one of fail, serve-stale, wait"},
		"bool":           {"keys: [{pattern: '*', ttl: 1m, no_renew: 7}]", "should be true or false"},
		"backend":        {"backends: {m: 'memory:'}\nkeys: [{pattern: '*', ttl: 1m, backend: n}]", `2:41: backend "n" is not among backends, which are ["m"]`},
		"backend name":   {"backends: {'a b': 'memory:'}\nkeys: [{pattern: '*', ttl: 1m}]", `1:12: backend name "a b"`},
		"backend URL":    {"backends: {m: [1]}\nkeys: [{pattern: '*', ttl: 1m}]", "1:15: m should be a URL"},
		"scheme":         {"backends: {m: 'zk://h'}\nkeys: [{pattern: '*', ttl: 1m}]", `1:15: backend "m": paddock: invalid: backend URL scheme "zk": its package is not imported; add import _`},
		"store scheme":   {"store: 'mongo://h'\nkeys: [{pattern: '*', ttl: 1m}]", `1:8: store: `},
		"parameter":      {"backends: {m: 'memory:?prfix=a'}\nkeys: [{pattern: '*', ttl: 1m}]", `unknown URL parameters ["prfix"]`},
		"variable":       {"backends: {m: 'redis://:${NOPE}@h'}\nkeys: [{pattern: '*', ttl: 1m}]", "1:15: m: the environment variable NOPE is not set"},
		"open variable":  {"backends: {m: 'redis://:${NOPE@h'}\nkeys: [{pattern: '*', ttl: 1m}]", "${ without a variable's name and }"},
		"secret":         {"backends: {m: 'redis://:${REDIS_PASSWORD}@h/x'}\nkeys: [{pattern: '*', ttl: 1m}]", `1:15: backend "m"`},
		"shadowed":       {"keys:\n  - {pattern: 'a*', ttl: 1m}\n  - {pattern: 'ab*', ttl: 1m}", `3:15: keys "ab*": policy 0, of pattern "a*", comes first`},
		"pattern":        {"keys: [{pattern: 'a[', ttl: 1m}]", `1:18: keys "a["`},
		"cannot bear":    {"backends: {m: 'redis://h'}\nkeys: [{pattern: 'pay:*', ttl: 1m, cost: harmful, backend: m}]", `2:42: keys "pay:*": a harmful key needs a Locker with exclusion by quorum or better and volatile fencing or better; redis offers single server`},
		"harmful load":   {"backends: {m: 'etcd://h'}\nkeys: [{pattern: 'pay:*', ttl: 1m, cost: harmful, backend: m, on_store_down: load}]", "must not be loaded without its lock"},
		"lock too short": {"backends: {m: 'memory:'}\nkeys: [{pattern: '*', ttl: 1m, backend: m, lock_ttl: 1s, no_renew: true}]", "must exceed LoadTimeout"},
	} {
		_, err := parse(t, c.text)
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "paddock.yaml:") {
			t.Errorf("%s: %v\nwant it to say %s", name, err, c.says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v shows the secret", name, err)
		}
	}
}

func TestEverythingThatIsWrongIsSaid(t *testing.T) {
	_, err := parse(t, "store: [1]\nkeys:\n  - {pattern: '*', tll: 1m}\n  - {pattern: 'a', ttl: 1m, jitter: x}\nmore: 1")
	if err == nil {
		t.Fatal("no error")
	}
	lines := strings.Split(err.Error(), "\n")
	for i, says := range []string{":1:8: store", `:3:20: unknown field "tll"`, ":4:37: jitter", ":5:1: unknown field"} {
		if i >= len(lines) || !strings.Contains(lines[i], says) {
			t.Fatalf("%v\nline %d does not say %s", err, i, says)
		}
	}
	var first *config.Error
	if !errors.As(err, &first) || first.Line != 1 || first.File != "paddock.yaml" {
		t.Errorf("%#v is no *config.Error with a line", err)
	}
}

func TestLoad(t *testing.T) {
	if _, err := config.Load(t.Context(), "no-such-file.yaml", nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of what is not there: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("backends: {m: 'memory:'}\nstore: 'memory:'\nkeys: [{pattern: 'a*', ttl: 1m, backend: m, jitter: 5%}]")
	f.Add("keys: &a [*a]")
	f.Add("keys: [{<<: {ttl: 1m}, pattern: '*'}]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := config.Parse(t.Context(), "fuzz", []byte(text), &config.Options{LookupEnv: env})
		if err != nil {
			if !errors.Is(err, config.ErrInvalid) || strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if err := c.Policies.Check(); err != nil {
			t.Errorf("%q was read, and its policies are refused: %v", text, err)
		}
		c.Close()
	})
}
