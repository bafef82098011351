package backend

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/paddock-go/paddock"
)

// Params reads the query parameters of a Locker's URL strictly: each at most once, none unknown, none malformed. Read all that
// are known, then ask Err.
type Params struct {
	rest url.Values
	err  error
	read []string
}

// NewParams reads those of u.
func NewParams(u *url.URL) *Params {
	p := &Params{}
	var err error
	if p.rest, err = url.ParseQuery(u.RawQuery); err != nil {
		p.err = fmt.Errorf("%w: the query of a %s: URL is malformed", paddock.ErrInvalid, u.Scheme)
	}
	return p
}

// String returns the parameter, or "" when it is not given. To give an empty value is an error.
func (p *Params) String(name string) string {
	p.read = append(p.read, name)
	vs, ok := p.rest[name]
	delete(p.rest, name)
	switch {
	case !ok:
		return ""
	case len(vs) > 1:
		p.fail("URL parameter %s is given %d times", name, len(vs))
	case vs[0] == "":
		p.fail("URL parameter %s is empty", name)
	}
	return vs[0]
}

// Duration returns the parameter, which has to be positive, or 0 when it is not given.
func (p *Params) Duration(name string) time.Duration {
	s := p.String(name)
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		p.fail("URL parameter %s=%q; it should be a time such as 500ms or 5s", name, s)
	}
	return d
}

// Int returns the parameter, which has to be at least 0, or 0 when it is not given.
func (p *Params) Int(name string) int {
	s := p.String(name)
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		p.fail("URL parameter %s=%q; it should be a number", name, s)
	}
	return n
}

// Bool returns the parameter, or false when it is not given.
func (p *Params) Bool(name string) bool {
	s := p.String(name)
	if s == "" {
		return false
	}
	b, err := strconv.ParseBool(s)
	if err != nil {
		p.fail("URL parameter %s=%q; it should be true or false", name, s)
	}
	return b
}

// Err is the first thing that was wrong, as paddock.ErrInvalid, or else names the parameters that were not read.
func (p *Params) Err() error {
	if p.err == nil && len(p.rest) > 0 {
		slices.Sort(p.read)
		p.fail("unknown URL parameters %q; known are %s", slices.Sorted(maps.Keys(p.rest)), strings.Join(p.read, ", "))
	}
	return p.err
}

func (p *Params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: %s", paddock.ErrInvalid, fmt.Sprintf(format, args...))
	}
}
