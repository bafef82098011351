package redlock

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

func init() {
	paddock.Register("redlock", open)
	paddock.Register("redlocks", open)
}

// theirs are the parameters that go-redis' ParseURL reads; each node's client gets them.
var theirs = []string{
	"protocol", "client_name", "dial_timeout", "read_timeout", "write_timeout", "pool_fifo", "pool_size", "pool_timeout",
	"min_idle_conns", "max_idle_conns", "max_active_conns", "conn_max_idle_time", "conn_max_lifetime", "max_retries",
	"min_retry_backoff", "max_retry_backoff", "skip_verify",
}

func open(_ context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: the query of a %s: URL is malformed", paddock.ErrInvalid, u.Scheme)
	}
	clientQuery := url.Values{}
	for _, name := range theirs {
		values, ok := query[name]
		switch {
		case !ok:
			continue
		case len(values) > 1 || values[0] == "":
			return nil, fmt.Errorf("%w: URL parameter %s is given more than once, or empty", paddock.ErrInvalid, name)
		}
		clientQuery[name] = values
		delete(query, name)
	}
	p := backend.NewParams(&url.URL{Scheme: u.Scheme, RawQuery: query.Encode()})
	o := Options{
		Prefix: p.String("prefix"), Domain: p.String("domain"), Observer: opts.Observer, CloseWait: p.Duration("close_wait"),
		FenceQuorum: p.Int("fence_quorum"), NoFence: p.Bool("no_fence"), NodeTimeout: p.Duration("node_timeout"),
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	clients, err := connect(u, clientQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrInvalid, u.Scheme, err)
	}
	l, err := newLocker(clients, &o, true)
	if err != nil {
		for _, c := range clients {
			_ = c.Close()
		}
		return nil, err
	}
	return l, nil
}

// connect makes the clients, which dial later.
func connect(u *url.URL, query url.Values) ([]redis.UniversalClient, error) {
	scheme := strings.Replace(u.Scheme, "redlock", "redis", 1)
	var options []*redis.Options
	for host := range strings.SplitSeq(u.Host, ",") {
		node := url.URL{Scheme: scheme, User: u.User, Host: withPort(host), Path: u.Path, RawQuery: query.Encode()}
		o, err := redis.ParseURL(node.String())
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(options, func(other *redis.Options) bool { return other.Addr == o.Addr }) {
			return nil, fmt.Errorf("it names %s twice", o.Addr)
		}
		o.ContextTimeoutEnabled = true // a node that is silent costs no more than its NodeTimeout
		if !query.Has("max_retries") {
			o.MaxRetries = -1 // others answer meanwhile, and what is to be repeated the Locker repeats
		}
		o.DialerRetries = 1
		options = append(options, o)
	}
	clients := make([]redis.UniversalClient, len(options))
	for i, o := range options {
		clients[i] = redis.NewClient(o)
	}
	return clients, nil
}

// withPort completes host.
func withPort(host string) string {
	u := url.URL{Host: host}
	name, port := u.Hostname(), u.Port()
	if name == "" {
		name = "localhost"
	}
	if port == "" {
		port = "6379"
	}
	return net.JoinHostPort(name, port)
}
