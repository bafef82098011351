package etcdlock

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/paddock-go/paddock"
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

// FuzzOpen: a URL that cannot work is ErrInvalid, one that can goes as far as the authentication, and whatever it is, its password
// is not shown.
func FuzzOpen(f *testing.F) {
	const secret = "hunter2"
	for _, rest := range []string{
		"@h", "@h:1,h:2?prefix=a", "/x@h", "?x@h", "#x@h", "@ss/word@h", "@ss?word@h", "%zz@h", "%40@h", ":@h", " @h", "\u00e9@h", "", ":1",
		"@[::1]:2", "@h//", "@h/a", "@h?dial_timeout=1e9s", "@h?ca_file=x", "@h:x", "@,", "@h?domain=", "@h?a;b",
	} {
		f.Add(rest)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	f.Fuzz(func(t *testing.T, rest string) {
		if strings.Contains(rest, secret) {
			return
		}
		for _, begin := range []string{"etcd://u:", "etcds://u:p%2F"} {
			l, err := paddock.Open(ended, begin+secret+rest, nil)
			switch {
			case err == nil:
				_ = l.Close()
				t.Errorf("Open(%q) succeeded without an authentication", begin+secret+rest)
			case strings.Contains(err.Error(), secret):
				t.Errorf("Open(%q) shows the password: %v", begin+secret+rest, err)
			case !errors.Is(err, paddock.ErrInvalid) && !errors.Is(err, paddock.ErrUnavailable) && !errors.Is(err, context.Canceled):
				t.Errorf("Open(%q): %v; want ErrInvalid or ErrUnavailable", begin+secret+rest, err)
			}
		}
	})
}
