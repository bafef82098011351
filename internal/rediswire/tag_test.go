package rediswire

import (
	"strings"
	"testing"
)

// FuzzTag: every key has a tag of its own, which is one for Redis.
func FuzzTag(f *testing.F) {
	for _, key := range []string{"a", "}", "%7D", "%257D", "%25", "{a}", "%", "\xff}"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		tag := Tag(key)
		if strings.Contains(tag, "}") {
			t.Errorf("the tag %q of %q ends early", tag, key)
		}
		if got := Untag(tag); got != key {
			t.Errorf("%q comes back as %q", key, got)
		}
	})
}
