// Package registry is what paddock.Open and stampede.OpenStore have in common: a table of openers by URL scheme, and the
// parsing of a URL whose host may be a list.
package registry

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// Registry is a table of openers by scheme. All methods may be called concurrently.
type Registry[Opener any] struct {
	// What is what a scheme opens, for messages: "backend" or "store".
	What string
	// Imports are the packages that register our own schemes.
	Imports map[string]string

	mu      sync.RWMutex
	openers map[string]Opener
}

// Register adds a scheme. It panics when the scheme is taken or is not in lower case.
func (r *Registry[Opener]) Register(scheme string, o Opener) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if scheme == "" || scheme != strings.ToLower(scheme) {
		panic(fmt.Sprintf("paddock: registering the %s scheme %q: it has to be in lower case", r.What, scheme))
	}
	if _, ok := r.openers[scheme]; ok {
		panic(fmt.Sprintf("paddock: registering the %s scheme %q twice", r.What, scheme))
	}
	if r.openers == nil {
		r.openers = map[string]Opener{}
	}
	r.openers[scheme] = o
}

// Find returns the opener for a URL, and the URL taken apart. Its errors hold no part of the URL but the scheme, since any may be
// a secret.
func (r *Registry[Opener]) Find(rawURL string) (o Opener, u *url.URL, err error) {
	scheme, _, ok := strings.Cut(rawURL, ":")
	if !ok {
		return o, nil, fmt.Errorf("%s URL without a scheme; it should be like redis://host:6379", r.What)
	}
	scheme = strings.ToLower(scheme)
	r.mu.RLock()
	o, ok = r.openers[scheme]
	known := slices.Sorted(maps.Keys(r.openers))
	r.mu.RUnlock()
	if !ok {
		if pkg, ours := r.Imports[scheme]; ours {
			return o, nil, fmt.Errorf("%s URL scheme %q: its package is not imported; add import _ %q",
				r.What, scheme, "github.com/paddock-go/paddock/"+pkg)
		}
		return o, nil, fmt.Errorf("%s URL scheme %q is not registered; registered are %q", r.What, scheme, known)
	}
	if u, err = parse(rawURL); err != nil {
		return o, nil, fmt.Errorf("%s URL of scheme %q: %w", r.What, scheme, err)
	}
	return o, u, nil
}

var errURL = errors.New("it is not scheme://user:password@host:port,host:port/path?query " +
	"(percent-encode what is special in the password)")

// parse is url.Parse for a host that may be a list.
func parse(rawURL string) (*url.URL, error) {
	scheme, rest, _ := strings.Cut(rawURL, ":")
	after, ok := strings.CutPrefix(rest, "//")
	if !ok && rest != "" && rest[0] != '?' {
		return nil, errURL
	}
	end := strings.IndexAny(after, "/?#")
	if end < 0 {
		end = len(after)
	}
	user, hosts := "", after[:end]
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, hosts = hosts[:at+1], hosts[at+1:]
	}
	for h := range strings.SplitSeq(hosts, ",") {
		if u, err := url.Parse("x://" + h); err != nil || u.Host != h || (h == "" && hosts != "") || h != "" && h[0] != '[' && strings.Count(h, ":") > 1 {
			return nil, errURL
		}
	}
	u, err := url.Parse(scheme + "://" + user + "host" + after[end:])
	if err != nil || u.Fragment != "" || strings.Contains(after[end:], "@") { // perhaps a password that was cut short by its / or ?
		return nil, errURL
	}
	u.Host = hosts
	return u, nil
}
