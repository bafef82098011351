package etcdlock

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock/backend"
)

// FuzzNames: what is below the directory of a key is that key's alone.
func FuzzNames(f *testing.F) {
	for _, key := range []string{"a", "/", "a/", "a/b", "%2F", "..", "", "\x00", "\xff", "\u00e9"} {
		f.Add(key, "a")
	}
	s := &server{root: "p" + version}
	owner := uuid.NewString()
	f.Fuzz(func(t *testing.T, key, other string) {
		dir := s.dir(key)
		if strings.Contains(strings.TrimPrefix(dir, s.root), version) {
			t.Errorf("the directory %q of %q could be another prefix's", dir, key)
		}
		if back, err := url.PathUnescape(strings.TrimSuffix(strings.TrimPrefix(dir, s.root+"lock/"), "/")); err != nil || back != key {
			t.Errorf("%q comes back as %q, %v", key, back, err)
		}
		if key != other && strings.HasPrefix(s.dir(other), dir) {
			t.Errorf("the directory of %q is below that of %q", other, key)
		}
		if marker := s.marker(&backend.Attempt{Key: key, Owner: owner}); strings.HasPrefix(marker, dir) {
			t.Errorf("the marker %q is below %q", marker, dir)
		}
	})
}
