package stampede

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		p, q string
		want bool
	}{
		{"*", "a:*", true}, {"a:*", "*", false}, {"a:*", "a:*", true}, {"a:*", "a:b*", true}, {"a:*", "a", false},
		{"*b*", "abc", true}, {"a?c", "a[b-d]c", true}, {"a[b-d]c", "a?c", false}, {"a[b-d]c", "a[bd]c", true},
		{"*a", "*aa", true}, {"*aa", "*a", false}, {"a*b*c", "abc", true}, {"?*", "*", false}, {"?*", "*?", true},
		{"[^a]*", "b*", true}, {"[^a]*", "a*", false}, {"*:[0-9]", "user:*:[1-3]", true}, {`\*`, "*", false}, {"*", `\*`, true},
		{"a**b", "a*b", true}, {"*x*y*", "*xy*", true}, {"*xy*", "*x*y*", false},
	} {
		p, err := compile(c.p)
		q, err2 := compile(c.q)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		if got := covers(p, q); got != c.want {
			t.Errorf("covers(%q, %q) = %v", c.p, c.q, got)
		}
	}
}

// What covers says is true of every key that can be tried.
func TestCoversAgreesWithMatch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func(letters string, n int) string {
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	yes := 0
	for range 5000 {
		p, err := compile("a" + text("ab?*", 5))
		q, err2 := compile("a" + text("ab?*", 5))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		covered := covers(p, q)
		for range 200 {
			if key := "a" + text("abc", 8); match(q, key) && !match(p, key) {
				if covered {
					t.Fatalf("covers is true, but %q is matched by the covered pattern alone", key)
				}
			}
		}
		if covered {
			yes++
		}
	}
	if yes < 100 {
		t.Errorf("only %d of 5000 pairs were covered: the test does not test", yes)
	}
}

func TestShadowedPolicy(t *testing.T) {
	err := Policies{{Pattern: "user:*", TTL: time.Second}, {Pattern: "*", TTL: time.Second}, {Pattern: "user:[0-9]", TTL: time.Second}}.Check()
	var p *PolicyError
	if !errors.Is(err, ErrInvalid) || !errors.As(err, &p) || p.Index != 2 || p.Field != "Pattern" || p.Pattern != "user:[0-9]" {
		t.Errorf("Check: %#v, want a PolicyError about the third policy's pattern", err)
	}
}
