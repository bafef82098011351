package paddock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// OpenOptions of Open; nil is the zero OpenOptions. The rest of a Locker's options are query parameters of its URL.
type OpenOptions struct {
	Observer *Observer // defaults to none
}

// Opener makes a Locker from a parsed URL. It checks every query parameter and refuses those that it does not know. The
// Host may name several servers, separated by commas. The Locker owns the connections that the Opener made.
type Opener func(ctx context.Context, u *url.URL, opts *OpenOptions) (Locker, error)

var openers = struct {
	sync.RWMutex
	m map[string]Opener
}{m: map[string]Opener{}}

// imports of the schemes that paddock's own packages register.
var imports = map[string]string{
	"memory": "memlock",
	"redis":  "redislock", "rediss": "redislock", "redis+sentinel": "redislock", "rediss+sentinel": "redislock",
	"redis+cluster": "redislock", "rediss+cluster": "redislock",
	"redlock": "redlock", "redlocks": "redlock",
	"etcd": "etcdlock", "etcds": "etcdlock",
	"zk": "zklock",
}

// Register makes a backend available to Open under a URL scheme. Packages of backends call it from init; it panics when the
// scheme is taken, is not in lower case, or o is nil.
func Register(scheme string, o Opener) {
	openers.Lock()
	defer openers.Unlock()
	if o == nil || scheme == "" || scheme != strings.ToLower(scheme) {
		panic(fmt.Sprintf("paddock: Register(%q): needs a scheme in lower case and an Opener", scheme))
	}
	if _, ok := openers.m[scheme]; ok {
		panic(fmt.Sprintf("paddock: Register(%q): registered twice", scheme))
	}
	openers.m[scheme] = o
}

// Open makes a Locker from a URL such as redis://localhost:6379/0?prefix=billing. The package of the backend has to be
// imported, for its side effect at least, and documents its URLs. ctx bounds what is done to open it. Closing the Locker
// closes its connections. Errors are ErrInvalid for a URL that cannot work, and never show its password.
func Open(ctx context.Context, rawURL string, opts *OpenOptions) (Locker, error) {
	scheme, _, ok := strings.Cut(rawURL, ":")
	if !ok {
		return nil, fmt.Errorf("%w: backend URL without a scheme; it should be like redis://host:6379", ErrInvalid)
	}
	scheme = strings.ToLower(scheme)
	openers.RLock()
	open, ok := openers.m[scheme]
	known := slices.Sorted(maps.Keys(openers.m))
	openers.RUnlock()
	if !ok {
		if pkg, ours := imports[scheme]; ours {
			return nil, fmt.Errorf("%w: backend URL scheme %q: its package is not imported; add import _ %q",
				ErrInvalid, scheme, "github.com/paddock-go/paddock/"+pkg)
		}
		return nil, fmt.Errorf("%w: backend URL scheme %q is not registered; registered are %q", ErrInvalid, scheme, known)
	}
	u, err := parseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: backend URL of scheme %q: %w", ErrInvalid, scheme, err)
	}
	if opts == nil {
		opts = &OpenOptions{}
	}
	return open(ctx, u, opts)
}

var errURL = errors.New("it is not scheme://user:password@host:port,host:port/path?query " +
	"(percent-encode what is special in the password)")

// parseURL is url.Parse for a host that may be a list. Its errors hold no part of the URL, since any may be a secret.
func parseURL(rawURL string) (*url.URL, error) {
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
		if u, err := url.Parse("x://" + h); err != nil || u.Host != h || (h == "" && hosts != "") {
			return nil, errURL
		}
	}
	u, err := url.Parse(scheme + "://" + user + "host" + after[end:])
	if err != nil || u.Fragment != "" || (user == "" && strings.Contains(after, "@")) { // a password cut short by its / or ?
		return nil, errURL
	}
	u.Host = hosts
	return u, nil
}
