package redisstore

import (
	"context"
	"fmt"
	"net/url"

	"github.com/paddock-go/paddock/internal/redisurl"
	"github.com/paddock-go/paddock/stampede"
)

func init() {
	for _, scheme := range redisurl.Schemes {
		stampede.RegisterStore(scheme, open)
	}
}

func open(_ context.Context, u *url.URL) (stampede.Store, error) {
	mine, theirs, err := redisurl.Take(u, "prefix")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", stampede.ErrInvalid, u.Scheme, err)
	}
	q := mine.Query()
	if q.Has("prefix") && (len(q["prefix"]) > 1 || q.Get("prefix") == "") {
		return nil, fmt.Errorf("%w: %s: URL: the parameter prefix is empty or given twice", stampede.ErrInvalid, u.Scheme)
	}
	client, err := redisurl.Connect(theirs)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: URL: %w", stampede.ErrInvalid, u.Scheme, err)
	}
	s, err := New(client, &Options{Prefix: q.Get("prefix")})
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	s.owned = client
	return s, nil
}
