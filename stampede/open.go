package stampede

import (
	"context"
	"fmt"
	"net/url"

	"github.com/paddock-go/paddock/internal/registry"
)

// StoreOpener makes a Store from a parsed URL. It checks every query parameter and refuses those that it does not know. What the
// Store then owns is closed by its method Close() error, if it has one.
type StoreOpener func(ctx context.Context, u *url.URL) (Store, error)

var openers = registry.Registry[StoreOpener]{What: "store", Imports: map[string]string{
	"memory": "stampede/memstore",
	"redis":  "stampede/redisstore", "rediss": "stampede/redisstore", "redis+sentinel": "stampede/redisstore",
	"rediss+sentinel": "stampede/redisstore", "redis+cluster": "stampede/redisstore", "rediss+cluster": "stampede/redisstore",
}}

// RegisterStore makes a store available to OpenStore under a URL scheme. Packages of stores call it from init; it panics when
// the scheme is taken or is not in lower case.
func RegisterStore(scheme string, o StoreOpener) { openers.Register(scheme, o) }

// OpenStore makes a Store from a URL such as redis://localhost:6379/1. The package of the store has to be imported, for its
// side effect at least, and documents its URLs. Errors are ErrInvalid for a URL that cannot work, and never show its password.
func OpenStore(ctx context.Context, rawURL string) (Store, error) {
	open, u, err := openers.Find(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return open(ctx, u)
}
