package paddock

import (
	"context"
	"fmt"
	"net/url"

	"github.com/paddock-go/paddock/internal/registry"
)

// OpenOptions of Open; nil is the zero OpenOptions. The rest of a Locker's options are query parameters of its URL.
type OpenOptions struct {
	Observer *Observer // defaults to none
}

// Opener makes a Locker from a parsed URL. It checks every query parameter and refuses those that it does not know. The
// Host may name several servers, separated by commas. The Locker owns the connections that the Opener made.
type Opener func(ctx context.Context, u *url.URL, opts *OpenOptions) (Locker, error)

var openers = registry.Registry[Opener]{What: "backend", Imports: map[string]string{
	"memory": "memlock",
	"redis":  "redislock", "rediss": "redislock", "redis+sentinel": "redislock", "rediss+sentinel": "redislock",
	"redis+cluster": "redislock", "rediss+cluster": "redislock",
	"redlock": "redlock", "redlocks": "redlock",
	"etcd": "etcdlock", "etcds": "etcdlock",
	"zk": "zklock",
}}

// Register makes a backend available to Open under a URL scheme. Packages of backends call it from init; it panics when the
// scheme is taken or is not in lower case.
func Register(scheme string, o Opener) { openers.Register(scheme, o) }

// Open makes a Locker from a URL such as redis://localhost:6379/0?prefix=billing. The package of the backend has to be
// imported, for its side effect at least, and documents its URLs. ctx bounds what is done to open it. Closing the Locker
// closes its connections. Errors are ErrInvalid for a URL that cannot work, and never show its password.
func Open(ctx context.Context, rawURL string, opts *OpenOptions) (Locker, error) {
	open, u, err := openers.Find(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if opts == nil {
		opts = &OpenOptions{}
	}
	return open(ctx, u, opts)
}
