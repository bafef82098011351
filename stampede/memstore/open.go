package memstore

import (
	"context"
	"fmt"
	"net/url"

	"github.com/paddock-go/paddock/stampede"
)

func init() {
	stampede.RegisterStore("memory", func(_ context.Context, u *url.URL) (stampede.Store, error) {
		if u.Host != "" || u.User != nil || u.Path != "" || u.RawQuery != "" {
			return nil, fmt.Errorf("%w: the URL of a store in memory is memory: and nothing else", stampede.ErrInvalid)
		}
		return New(nil), nil
	})
}
