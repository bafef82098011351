package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/rediswire"
	"github.com/paddock-go/paddock/internal/servers"
)

func attempt(key string, ttl time.Duration) *backend.Attempt {
	return &backend.Attempt{Key: key, Owner: uuid.NewString(), TTL: ttl, Note: "note"}
}

// grant makes a Try that has to succeed.
func (f fixture) grant(tb testing.TB, a *backend.Attempt) fencing.Token {
	tb.Helper()
	g, err := f.server.Try(tb.Context(), a)
	must(tb, err)
	return g.Token
}

func (f fixture) left(tb testing.TB, key string) time.Duration {
	tb.Helper()
	lock, _ := f.server.names(key)
	left, err := f.probe.PTTL(tb.Context(), lock).Result()
	must(tb, err)
	return left
}

func TestRepeatedTry(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	a := attempt("k", time.Minute)
	token := f.grant(t, a)

	renewal := []backend.Renewal{{Attempt: a, TTL: time.Hour}}
	f.server.Renew(t.Context(), renewal)
	must(t, renewal[0].Err)
	if again := f.grant(t, a); again != token {
		t.Errorf("a repeated try drew the token %d after %d; it is the same acquisition", again, token)
	}
	if left := f.left(t, "k"); left < 59*time.Minute {
		t.Errorf("a repeated try lowered the TTL from an hour to %v", left)
	}
	a.TTL = 2 * time.Hour
	f.grant(t, a)
	if left := f.left(t, "k"); left < 119*time.Minute {
		t.Errorf("a repeated try for 2 h left a TTL of %v", left)
	}

	must(t, f.server.Release(t.Context(), a))
	if _, err := f.server.Try(t.Context(), a); !errors.Is(err, errOver) {
		t.Errorf("a try whose lock was released: %v; it must not get a second one", err)
	}
	f.grant(t, attempt("k", time.Minute))
}

func TestUndoneTry(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	for name, a := range map[string]*backend.Attempt{"undone before": attempt("before", time.Minute), "undone after": attempt("after", time.Minute)} {
		if name == "undone after" {
			f.grant(t, a)
		}
		must(t, f.server.Undo(t.Context(), a))
		if left := f.left(t, a.Key); left > 0 {
			t.Errorf("%s: the lock is still there, for %v", name, left)
		}
		next := attempt(a.Key, time.Minute)
		f.grant(t, next) // somebody else's acquisition in between changes nothing
		must(t, f.server.Release(t.Context(), next))
		if _, err := f.server.Try(t.Context(), a); !errors.Is(err, errOver) {
			t.Errorf("%s: a try that arrived late: %v; it must be refused", name, err)
		}
	}
}

func TestSlowTryIsMarkedAtRelease(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	a := attempt("k", time.Minute)
	f.grant(t, a)
	a.Slow = true
	must(t, f.server.Release(t.Context(), a))
	next := attempt("k", time.Minute)
	f.grant(t, next)
	must(t, f.server.Release(t.Context(), next))
	if _, err := f.server.Try(t.Context(), a); !errors.Is(err, errOver) {
		t.Errorf("a duplicate of a slow try, after another's acquisition: %v; it must be refused", err)
	}
	if err := f.server.Release(t.Context(), a); !errors.Is(err, paddock.ErrLost) {
		t.Errorf("a second release: %v; want ErrLost", err)
	}
}

func TestMarksAreBounded(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	kept := attempt("k", time.Minute)
	token := f.grant(t, kept)
	var last *backend.Attempt
	for range 3 * 512 {
		last = attempt("k", time.Minute)
		must(t, f.server.Undo(t.Context(), last))
	}
	_, fence := f.server.names("k")
	if n := f.probe.HLen(t.Context(), fence).Val(); n > 4+512 || n < 256 {
		t.Errorf("after 1536 abandoned attempts the fence record has %d fields; want at most 516", n)
	}
	if again := f.grant(t, kept); again != token {
		t.Errorf("the holder's token is %d after its marks were cut; want %d", again, token)
	}
	must(t, f.server.Release(t.Context(), kept))
	if _, err := f.server.Try(t.Context(), last); !errors.Is(err, errOver) {
		t.Errorf("the last attempt that was undone: %v; it must be refused", err)
	}
}

func TestWhatStays(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	keep := func(key string) time.Duration {
		_, fence := f.server.names(key)
		return f.probe.PTTL(t.Context(), fence).Val()
	}
	must(t, f.server.Undo(t.Context(), attempt("never", time.Minute)))
	if d := keep("never"); d > time.Hour || d < 59*time.Minute {
		t.Errorf("the record of an attempt that got no lock stays for %v; want an hour", d)
	}
	must(t, take(t, f, "once", patient).Release(t.Context()))
	week := 7 * 24 * time.Hour
	if d := keep("once"); d > week || d < week-time.Minute {
		t.Errorf("the fence record stays for %v; want 7 days", d)
	}
	must(t, f.server.Undo(t.Context(), attempt("once", time.Minute)))
	if d := keep("once"); d < week-time.Minute {
		t.Errorf("an undone attempt shortened the record's life to %v", d)
	}
	if left, err := servers.LocksLeft(t.Context(), f.probe, f.prefix); err != nil || len(left) > 0 {
		t.Errorf("left beside fence records: %q, %v", left, err)
	}
}

func TestTokensBeyondDoubles(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	for _, test := range []struct{ last, next string }{
		{"0009007199254740991", "9007199254740992"}, // 2^53 - 1
		{"0009007199254740992", "9007199254740993"},
		{"0009007199254740993", "9007199254740994"},
		{"0009007199999999999", "9007200000000000"}, // from the lower half into the upper
		{"1234567890123456789", "1234567890123456790"},
		{"0999999999999999999", "1000000000000000000"},
		{"9223372036854775806", "9223372036854775807"}, // 2^63 - 1
	} {
		_, fence := f.server.names(test.last)
		must(t, f.probe.HSet(t.Context(), fence, "token", test.last).Err())
		if got := fmt.Sprint(uint64(f.grant(t, attempt(test.last, time.Minute)))); got != test.next {
			t.Errorf("after the token %s comes %s; want %s", test.last, got, test.next)
		}
	}
	if _, err := f.TryAcquire(t.Context(), "9223372036854775806", patient); !errors.Is(err, paddock.ErrHeld) {
		t.Fatal(err)
	}
	lock, _ := f.server.names("9223372036854775806")
	must(t, f.probe.Del(t.Context(), lock).Err())
	if _, err := f.TryAcquire(t.Context(), "9223372036854775806", patient); !errors.Is(err, paddock.ErrUnavailable) {
		t.Errorf("after the last token: %v; want ErrUnavailable", err)
	}
}

func TestTokensAreTheServersTime(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	before := f.probe.Time(t.Context()).Val()
	lease := take(t, f, "k", patient)
	after := f.probe.Time(t.Context()).Val()
	if got := time.UnixMicro(int64(lease.Token())); got.Before(before) || got.After(after) {
		t.Errorf("a first token stands for %v; want the server's time, %v to %v", got, before, after)
	}
	if want := "redis/" + f.prefix; lease.Fence().Domain != want {
		t.Errorf("the domain is %q; want %q", lease.Fence().Domain, want)
	}
	must(t, lease.Release(t.Context()))
}

// TestOvertakenRenewal has renewals arrive in the wrong order.
func TestOvertakenRenewal(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	a := attempt("k", time.Minute)
	f.grant(t, a)
	lock, _ := f.server.names("k")
	send := func(ttl time.Duration, shorten string, number int) any {
		reply, err := f.server.eval(t.Context(), renew.Call(t.Context(), "1", lock, a.Owner, ttl.Milliseconds(), shorten, number))
		must(t, err)
		return reply
	}
	for _, step := range []struct {
		what     string
		ttl      time.Duration
		shorten  string
		number   int
		reply    int64
		min, max time.Duration
	}{
		{"a shorter Extend", 10 * time.Second, "1", 2, 1, 9 * time.Second, 10 * time.Second},
		{"an earlier one after it", time.Second, "1", 1, -1, 9 * time.Second, 10 * time.Second},
		{"a renewal", 30 * time.Second, "0", 0, 1, 29 * time.Second, 30 * time.Second},
		{"a duplicate of the shorter Extend", 10 * time.Second, "1", 2, 1, 29 * time.Second, 30 * time.Second},
		{"a numbered renewal", 20 * time.Second, "0", 3, 1, 29 * time.Second, 30 * time.Second},
		{"the shorter Extend once more", 10 * time.Second, "1", 2, -1, 29 * time.Second, 30 * time.Second},
		{"a longer renewal", time.Minute, "0", 4, 1, 59 * time.Second, time.Minute},
	} {
		if reply := send(step.ttl, step.shorten, step.number); reply != any(step.reply) {
			t.Errorf("%s: the reply is %v; want %d", step.what, reply, step.reply)
		}
		if left := f.left(t, "k"); left > step.max || left < step.min {
			t.Errorf("%s left a TTL of %v; want %v", step.what, left, step.max)
		}
	}
	if token := f.grant(t, a); token == 0 {
		t.Error("a lock with a number is not recognised by its owner")
	}
	must(t, f.server.Release(t.Context(), a))
}

func TestKeysNeverMeet(t *testing.T) {
	t.Parallel()
	f := shared(t, redis.Options{})
	keys := []string{
		"a", "A", "a ", "a/b", "a\x00b", "a\nb", "{a}", "{a", "a}", "}", "{", "{}", "{}a", "a{b}c", "%", "%7D", "%7d", "%25", "%257D",
		"}:fence", "a}:fence", ":fence", "é", "\U0001F512", strings.Repeat("}", 1024),
	}
	seen := map[string]string{}
	for _, key := range keys {
		lock, fence := f.server.names(key)
		for _, name := range []string{lock, fence} {
			if other, ok := seen[name]; ok {
				t.Errorf("keys %q and %q are both %q", key, other, name)
			}
			seen[name] = key
		}
		if got := rediswire.Untag(rediswire.Tag(key)); got != key {
			t.Errorf("key %q comes back from the channel as %q", key, got)
		}
		must(t, take(t, f, key, patient).Release(context.Background()))
	}
}

func FuzzNames(f *testing.F) {
	for _, key := range []string{"a", "}", "%7D", "{a}", "a}:fence"} {
		f.Add(key)
	}
	s := &server{keys: "p:v1:{"}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" {
			return
		}
		lock, fence := s.names(key)
		tag := func(name string) string { // as Redis finds it
			_, rest, _ := strings.Cut(name, "{")
			tag, _, ok := strings.Cut(rest, "}")
			if !ok || tag == "" {
				t.Fatalf("%q has no hash tag", name)
			}
			return tag
		}
		if tag(lock) != tag(fence) {
			t.Errorf("%q and %q may be in two slots", lock, fence)
		}
		if got := rediswire.Untag(tag(lock)); got != key {
			t.Errorf("the names of %q say %q", key, got)
		}
	})
}
