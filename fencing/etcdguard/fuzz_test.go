package etcdguard

import (
	"strings"
	"testing"

	"github.com/paddock-go/paddock/fencing"
)

// FuzzNames: what is below the directory of a resource is its own, marks are in the order of their tokens, and come back.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"a", "/", "a/b", "%2F", "..", "\x00", "\u00e9", "a0"} {
		f.Add(name, "a", name, "owner/"+name, uint64(1), uint64(fencing.MaxToken))
	}
	g := &Guard{prefix: "p" + version + "mark/"}
	f.Fuzz(func(t *testing.T, resource, other, domain, owner string, low, high uint64) {
		have := fencing.Fence{Domain: domain, Token: fencing.Token(low), Owner: owner}
		if fencing.Validate(resource, have) != nil {
			return
		}
		all, ofDomain, _, mark := g.names(resource, have)
		if seen, ok := g.parse(all, mark, resource); !ok || seen != have {
			t.Errorf("%v comes back from %q as %v, %v", have, mark, seen, ok)
		}
		if elsewhere, _, _, _ := g.names(other, have); resource != other && strings.HasPrefix(elsewhere, all) {
			t.Errorf("the marks of %q are below those of %q", other, resource)
		}
		if mark < all || mark >= after(all) || mark >= after(ofDomain) {
			t.Errorf("%q is outside of its ranges", mark)
		}
		later := have
		later.Token = fencing.Token(high)
		if _, _, _, next := g.names(resource, later); later.Token.Valid() && low < high && next <= mark {
			t.Errorf("%q is not after %q", next, mark)
		}
	})
}

// FuzzMarks: what is read as a mark is written as it is read.
func FuzzMarks(f *testing.F) {
	for _, name := range []string{
		"d/0000000000000000001/o", "d/1/o", "a%2fb/0000000000000000001/o", "a/0000000000000000001/o/", "/0000000000000000001/o",
		"%zz/0000000000000000001/o", "d/9999999999999999999/o", "d/0000000000000000000/", "",
	} {
		f.Add(name)
	}
	g := &Guard{prefix: "p" + version + "mark/"}
	f.Fuzz(func(t *testing.T, name string) {
		all, _, _, _ := g.names("r", fencing.Fence{})
		seen, ok := g.parse(all, all+name, "r")
		if _, _, _, mark := g.names("r", seen); ok && (mark != all+name || seen.Domain == "" || seen.Token > fencing.MaxToken) {
			t.Errorf("%q is read as %v, which is %q", name, seen, mark)
		}
	})
}
