package conformance

import (
	"context"
	"strings"
	"time"

	"github.com/paddock-go/paddock"
)

const (
	ruleKeys = "a key is any non-empty valid UTF-8 of at most 1,024 bytes; distinct keys never meet."
	ruleArgs = "anything else, and a TTL below MinTTL, is ErrInvalid before any I/O."
	ruleTTL  = "Lease.TTL says what rounding and the server made of the TTL."
)

var keys = []check{
	{name: "Rule14/DistinctKeysNeverMeet", rule: ruleKeys, run: distinctKeys},
	{name: "Rule14/InvalidArguments", rule: ruleArgs, run: invalidArguments},
	{name: "Rule14/InvalidBeforeAnyIO", rule: ruleArgs, run: invalidOffline},
	{name: "Rule14/TTLs", rule: ruleTTL, run: ttls},
}

// oddKeys are keys around an id, which keeps them from meeting those of others, that a backend might confuse.
func oddKeys(id string) []string {
	up := strings.ToUpper(id)
	odd := []string{
		id, id + "/", id + "//", "/" + id, "//" + id, id + "/a", id + "/a/", id + "//a", id + "/./a", id + "/../" + id, "./" + id, "../" + id,
		id + "\\a", id + ".", id + "..", "." + id,
		"{" + id + "}", "{" + id, id + "}", "{a}" + id, "{b}" + id, "{}" + id, "{{" + id + "}}", "}" + id + "{", id + "{a}", id + "{b}",
		id + "\x00", "\x00" + id, id + "\x00a", id + "\x01", id + "\x7f", id + "\u0080", id + "\n", id + "\r\n", id + "\t", "\n" + id,
		id + " ", " " + id, id + "  ", id + "+", id + "%", id + "%20", id + "%2F", id + "%2f", id + "%2Fa", id + "%00", id + "%25",
		up, up + "/", id + "_", id + "-", id + ":", id + ":lock", id + ":fence", id + "/lock", id + "-0000000000", id + "/0000000000",
		id + "*", id + "?", id + "[a]", id + "\"", id + "'", id + "`", id + "$a", id + "$(a)", id + "#a", id + "&a=b", id + "=", id + ",", id + ";",
		id + "\u00e9", id + "e\u0301", id + "\ufb01", id + "fi", id + "\u0130", id + "i", id + "\u0131", id + "\u00df", id + "ss", id + "\u2126", id + "\u03a9",
		id + "\u200b", id + "\ufeff", "\ufeff" + id, id + "\u202e", id + "\ufffd", id + "\uffff", id + "\ue000", id + "\U0010ffff", id + "😀", id + "日本",
		"paddock/" + id, "paddock:" + id, "zookeeper/" + id, "0x" + id, "null" + id,
	}
	for _, fill := range []string{"x", "/", "é", "%", "\x00"} { // the longest, in some ways
		long := id + strings.Repeat(fill, 1024)
		long = long[:1024-(1024-len(id))%len(fill)]
		odd = append(odd, long, long[:len(long)-len(fill)])
	}
	return odd
}

func distinctKeys(t *trial) {
	a, b := t.open(), t.open()
	odd := oddKeys(t.key())
	held := make([]*paddock.Lease, len(odd))
	for i, key := range odd {
		lease, err := a.TryAcquire(t.ctx, key, forTTL(t.ttl(long)))
		if err != nil {
			t.Fatalf("TryAcquire(%q): %v; the keys held besides are %q", key, err, odd[:i])
		}
		held[i] = lease
	}
	for _, key := range odd {
		t.refused(b, key)
	}
	for i, lease := range held {
		t.release(lease)
		if i+1 < len(odd) {
			t.refused(b, odd[i+1])
		}
		next, err := b.TryAcquire(t.ctx, odd[i], forTTL(t.ttl(long)))
		if err != nil {
			t.Errorf("TryAcquire(%q) after its release: %v", odd[i], err)
			continue
		}
		t.release(next)
	}
}

// arguments of an acquisition.
type arguments struct {
	key  string
	opts *paddock.Options
}

// invalid are arguments that can never work.
func (t *trial) invalid() map[string]arguments {
	key := t.key()
	return map[string]arguments{
		"an empty key":             {"", nil},
		"a key of 1,025 bytes":     {strings.Repeat("k", 1025), nil},
		"a key of 1,026 bytes":     {strings.Repeat("é", 513), nil},
		"a key that is not UTF-8":  {key + "\xff", nil},
		"a key with half a rune":   {key + "\xc3", nil},
		"a key with a surrogate":   {key + "\xed\xa0\x80", nil},
		"a TTL below MinTTL":       {key, forTTL(t.g.MinTTL - 1)},
		"a TTL of 1 ns":            {key, forTTL(1)},
		"a negative TTL":           {key, forTTL(-time.Second)},
		"a TTL of 290 years":       {key, forTTL(1<<63 - 1)},
		"a negative MaxHold":       {key, &paddock.Options{MaxHold: -1}},
		"a Note of 257 bytes":      {key, &paddock.Options{Note: strings.Repeat("n", 257)}},
		"a Note that is not UTF-8": {key, &paddock.Options{Note: "\xff"}},
	}
}

func (t *trial) refusesInvalid(l paddock.Locker) {
	t.Helper()
	for what, args := range t.invalid() {
		for name, acquire := range map[string]func(context.Context, string, *paddock.Options) (*paddock.Lease, error){
			"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
		} {
			begun := time.Now()
			if lease, err := acquire(t.ctx, args.key, args.opts); err == nil {
				t.Errorf("%s with %s was granted", name, what)
				t.release(lease)
			} else {
				t.is(err, paddock.ErrInvalid)
			}
			if took := time.Since(begun); took > soon/2 {
				t.Errorf("%s with %s took %v", name, what, took)
			}
		}
	}
}

func invalidArguments(t *trial) {
	l := t.open()
	t.refusesInvalid(l)
	lease := t.acquire(l, t.key(), &paddock.Options{
		TTL: t.ttl(long), MaxHold: t.ttl(2 * long), Note: strings.Repeat("n", 256),
	})
	for _, ttl := range []time.Duration{0, -1, t.g.MinTTL - 1} {
		t.is(lease.Extend(t.ctx, ttl), paddock.ErrInvalid)
	}
	t.untouched(lease, t.open())
	t.release(lease)
}

// invalidOffline has a link on which nothing could be asked.
func invalidOffline(t *trial) {
	l, link := t.spoilable()
	lease := t.acquire(l, t.key(), forTTL(t.ttl(long)))
	link.silence()
	t.refusesInvalid(l)
	t.is(lease.Extend(t.ctx, t.g.MinTTL-1), paddock.ErrInvalid)
	link.pass()
	t.release(lease)
}

func ttls(t *trial) {
	l := t.open()
	for _, ttl := range []time.Duration{t.g.MinTTL, t.g.MinTTL + 1, t.g.MinTTL + t.g.TTLStep, t.lively() + t.g.TTLStep/2} {
		begun := time.Now()
		lease, err := l.Acquire(t.ctx, t.key(), unrenewed(ttl))
		if err != nil {
			t.Fatalf("Acquire with a TTL of %v, where MinTTL is %v: %v", ttl, t.g.MinTTL, err)
		}
		if lease.TTL() < t.g.MinTTL {
			t.Errorf("a TTL of %v was granted as %v, below MinTTL", ttl, lease.TTL())
		}
		if d := time.Until(lease.Deadline()); d > lease.TTL() {
			t.Errorf("Deadline is %v away; the TTL is %v", d, lease.TTL())
		}
		if err := lease.Release(t.ctx); err != nil && time.Since(begun) < ttl/2 {
			t.Errorf("Release: %v", err)
		}
	}
	lease := t.acquire(l, t.key(), nil)
	if want := max(15*time.Second, t.g.MinTTL); t.g.MinTTL <= 15*time.Second && t.g.TTLStep <= time.Second && lease.TTL() > want+t.g.TTLStep {
		t.Errorf("the default TTL was granted as %v; want %v", lease.TTL(), want)
	}
	t.release(lease)
}
