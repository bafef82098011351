package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/internal/redisurl"
	"github.com/paddock-go/paddock/internal/registry"
)

// connectors make clients of the Redis servers that a URL names.
var connectors = registry.Registry[func(*url.URL) ([]redis.UniversalClient, error)]{What: "Redis"}

func init() {
	for _, scheme := range redisurl.Schemes {
		connectors.Register(scheme, func(u *url.URL) ([]redis.UniversalClient, error) {
			c, err := redisurl.Connect(u)
			return []redis.UniversalClient{c}, err
		})
	}
	for _, scheme := range []string{"redlock", "redlocks"} {
		connectors.Register(scheme, func(u *url.URL) (clients []redis.UniversalClient, err error) {
			for host := range strings.SplitSeq(u.Host, ",") {
				node := *u
				node.Scheme, node.Host = strings.Replace(u.Scheme, "redlock", "redis", 1), host
				c, err := redisurl.Connect(&node)
				if err != nil {
					return clients, err
				}
				clients = append(clients, c)
			}
			return clients, nil
		})
	}
}

// schemeOf is what a URL begins with.
func schemeOf(rawURL string) string {
	scheme, _, _ := strings.Cut(rawURL, ":")
	return strings.ToLower(scheme)
}

// isRedis reports whether cached values can be kept at the URL.
func isRedis(rawURL string) bool { return slices.Contains(redisurl.Schemes, schemeOf(rawURL)) }

// ofLockers are the parameters of a Locker's URL that are no business of a client's.
var ofLockers = []string{
	"prefix", "domain", "close_wait", "min_replicas", "replica_wait", "fence_quorum", "no_fence", "node_timeout",
}

// connect returns clients of the Redis servers that the URL names, with connections for all requests.
func connect(rawURL string) ([]redis.UniversalClient, error) {
	connector, u, err := connectors.Find(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", paddock.ErrInvalid, err)
	}
	query := u.Query()
	for _, name := range ofLockers {
		query.Del(name)
	}
	query.Set("pool_size", strconv.Itoa(requests+10))
	// With a newer protocol go-redis 9.23 negotiates what is of no use here, and has a race when several Conns of a client
	// find out that the server does not have it.
	query.Set("protocol", "2")
	u.RawQuery = query.Encode()
	clients, err := connector(u)
	if err != nil {
		closeAll(clients)
		return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrInvalid, u.Scheme, err)
	}
	return clients, nil
}

func closeAll(clients []redis.UniversalClient) {
	for _, c := range clients {
		if c != nil {
			_ = c.Close()
		}
	}
}

// each calls do for each server that has keys of its own.
func each(ctx context.Context, client redis.UniversalClient, do func(context.Context, *redis.Client) error) error {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, do)
	case *redis.Client:
		return do(ctx, c)
	}
	return fmt.Errorf("a %T cannot be asked for all keys", client)
}

// warm opens so many connections.
func warm(ctx context.Context, client redis.UniversalClient, connections int) error {
	return each(ctx, client, func(ctx context.Context, c *redis.Client) error {
		var (
			wg   sync.WaitGroup
			errs = make([]error, connections)
			conn = make([]*redis.Conn, connections)
		)
		for i := range connections {
			conn[i] = c.Conn()
			wg.Go(func() { errs[i] = conn[i].Ping(ctx).Err() })
		}
		wg.Wait()
		for i := range connections {
			_ = conn[i].Close() // back to the pool
		}
		return errors.Join(errs...)
	})
}

// sweep deletes all keys with the prefix.
func sweep(ctx context.Context, client redis.UniversalClient, prefix string) error {
	return each(ctx, client, func(ctx context.Context, c *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := c.Scan(ctx, cursor, globEscape.Replace(prefix)+"*", 1000).Result()
			if err == nil && len(keys) > 0 {
				_, err = c.Pipelined(ctx, func(p redis.Pipeliner) error {
					for _, key := range keys { // in a Cluster they have slots of their own
						p.Del(ctx, key)
					}
					return nil
				})
			}
			if err != nil {
				return fmt.Errorf("clean-up of the keys that begin with %q: %w", prefix, err)
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}

var globEscape = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
