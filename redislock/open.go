package redislock

import (
	"context"
	"fmt"
	"net/url"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/internal/redisurl"
)

func init() {
	for _, scheme := range redisurl.Schemes {
		paddock.Register(scheme, open)
	}
}

func open(_ context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
	mine, theirs, err := redisurl.Take(u, "prefix", "domain", "close_wait", "min_replicas", "replica_wait")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrInvalid, u.Scheme, err)
	}
	p := backend.NewParams(mine)
	o := Options{
		Prefix: p.String("prefix"), Domain: p.String("domain"), Observer: opts.Observer, CloseWait: p.Duration("close_wait"),
		MinReplicas: p.Int("min_replicas"), ReplicaWait: p.Duration("replica_wait"),
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	client, err := redisurl.Connect(theirs)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", paddock.ErrInvalid, u.Scheme, err)
	}
	l, err := newLocker(client, &o, true)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return l, nil
}
