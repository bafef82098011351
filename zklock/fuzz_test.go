package zklock

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/paddock-go/paddock"
)

// FuzzNames: every key is one element of a path that ZooKeeper takes, and comes back from it.
func FuzzNames(f *testing.F) {
	for _, key := range []string{"a", ".", "..", "...", "/", "a/b", "%", "%2F", "a\x00", "\xff", "zookeeper", "\u00e9", "\U0001F512"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" {
			return
		}
		e := element(key)
		if e == "" || e == "." || e == ".." || strings.Contains(e, "/") || !utf8.ValidString(e) || strings.ContainsFunc(e, unfit) || len(e) > 3*len(key) {
			t.Errorf("the element of %q is %q", key, e)
		}
		if back, err := url.PathUnescape(e); err != nil || back != key {
			t.Errorf("%q comes back from %q as %q, %v", key, e, back, err)
		}
	})
}

// FuzzPlaces: a name is in the queue only if it is one that the servers make of ours.
func FuzzPlaces(f *testing.F) {
	owner := strings.Repeat("o", ownerSize)
	for _, name := range []string{
		"lock-" + owner + "-0000000007", "lock-" + owner + "--000000007", "lock-" + owner + "-+000000007", "lock-" + owner + "-2147483648",
		"lock-" + owner + "-", "lock-", "", "lock-" + owner + "-7", "lock-" + owner + "-0x00000007", "lock-" + owner + "-0000_00007",
	} {
		f.Add(name, "lock-"+owner+"-0000000001")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		p, ok := parsePlace(name)
		if ok && nodePrefix+p.owner+"-"+fmt.Sprintf("%010d", p.seq) != name {
			t.Errorf("%q is read as %+v", name, p)
		}
		places := queue([]string{name, other})
		if _, also := parsePlace(other); len(places) == 2 != (ok && also) {
			t.Errorf("the queue of %q and %q is %v", name, other, places)
		}
		if before, there := ahead([]string{other, name}, p.owner); ok && !there || len(before) > 1 {
			t.Errorf("ahead of %q are %v, %v", name, before, there)
		}
	})
}

// FuzzOpen: a URL that cannot work is ErrInvalid, and whatever it is, its password is not shown.
func FuzzOpen(f *testing.F) {
	const secret = "hunter2"
	for _, rest := range []string{
		"@h", "@h:1,h:2/a/b?prefix=a", "/x@h", "?x@h", "#x@h", "@ss/word@h", "@ss?word@h", "%zz@h", "%40@h", ":@h", " @h", "\u00e9@h", "", "@[::1]:2", "@h//",
		"@h/a/../b", "@h/\x00", "@h?session_timeout=1e9s", "@h?tick_time=1ns", "@h:x", "@,", "@h?session_timeout=9999999h",
	} {
		f.Add(rest)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		if strings.Contains(rest, secret) {
			return
		}
		for _, begin := range []string{"zk://u:", "zk://u:p%2F"} {
			l, err := paddock.Open(t.Context(), begin+secret+rest, nil)
			switch {
			case err == nil:
				if printed := fmt.Sprintf("%v %+v", l, l); strings.Contains(printed, secret) {
					t.Errorf("the Locker of %q shows the password: %s", begin+secret+rest, printed)
				}
				_ = l.Close()
			case !errors.Is(err, paddock.ErrInvalid):
				t.Errorf("Open(%q): %v; want ErrInvalid", begin+secret+rest, err)
			case strings.Contains(err.Error(), secret):
				t.Errorf("Open(%q) shows the password: %v", begin+secret+rest, err)
			}
		}
	})
}

// TestAuthIsSecret: options are printed without what the client introduces itself with.
func TestAuthIsSecret(t *testing.T) {
	o := Options{Auth: []Auth{{"digest", []byte("user:hunter2")}}}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, value := range []any{o, &o, o.Auth, o.Auth[0], &o.Auth[0]} {
			printed := fmt.Sprintf(format, value)
			for _, secret := range []string{"hunter2", fmt.Sprintf("%x", "hunter2"), fmt.Sprint([]byte("hunter2"))[1:20], "0x68, 0x75"} {
				if strings.Contains(printed, secret) {
					t.Errorf("%s of a %T shows the password: %s", format, value, printed)
				}
			}
		}
	}
}
