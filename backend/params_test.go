package backend

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
)

func TestParams(t *testing.T) {
	read := func(query string) (s string, d time.Duration, n int, b bool, err error) {
		p := NewParams(&url.URL{Scheme: "test", RawQuery: query})
		s, d, n, b = p.String("prefix"), p.Duration("wait"), p.Int("replicas"), p.Bool("nofence")
		return s, d, n, b, p.Err()
	}
	s, d, n, b, err := read("prefix=a%2Fb&wait=500ms&replicas=2&nofence=true")
	if s != "a/b" || d != 500*time.Millisecond || n != 2 || !b || err != nil {
		t.Errorf("read %q %v %d %v %v", s, d, n, b, err)
	}
	if s, d, n, b, err := read(""); s != "" || d != 0 || n != 0 || b || err != nil {
		t.Errorf("read %q %v %d %v %v from nothing", s, d, n, b, err)
	}
	for query, says := range map[string]string{
		"prefx=a":           `"prefx"`,
		"prefix=a&prefix=b": "given 2 times",
		"prefix=":           "empty",
		"wait=5":            `wait="5"`,
		"wait=-5s":          `wait="-5s"`,
		"replicas=two":      `replicas="two"`,
		"replicas=-1":       `replicas="-1"`,
		"nofence=perhaps":   `nofence="perhaps"`,
		"a;b":               "malformed",
		"password=hunter2":  "known are nofence, prefix, replicas, wait",
	} {
		_, _, _, _, err := read(query)
		wantErr(t, query, err, paddock.ErrInvalid)
		if err != nil && (!strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v, want it to say %s and no unknown value", query, err, says)
		}
	}
}
