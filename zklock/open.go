package zklock

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

func init() { paddock.Register("zk", open) }

// open makes a Locker from a URL such as zk://user:password@one:2181,two:2181/chroot?session_timeout=10s.
func open(_ context.Context, u *url.URL, opts *paddock.OpenOptions) (paddock.Locker, error) {
	p := backend.NewParams(u)
	o := Options{
		Prefix: p.String("prefix"), Domain: p.String("domain"), Observer: opts.Observer, CloseWait: p.Duration("close_wait"),
		SessionTimeout: p.Duration("session_timeout"), TickTime: p.Duration("tick_time"),
		Chroot: u.Path,
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if u.Host == "" {
		return nil, fmt.Errorf("%w: a zk: URL names servers, as in zk://one:2181,two:2181,three:2181", paddock.ErrInvalid)
	}
	if u.User != nil {
		password, ok := u.User.Password()
		if name := u.User.Username(); !ok || name == "" || strings.Contains(name, ":") {
			return nil, fmt.Errorf("%w: a zk: URL with a user needs a password too, as in zk://user:password@one:2181", paddock.ErrInvalid)
		}
		o.Auth = []Auth{{Scheme: "digest", Credentials: []byte(u.User.Username() + ":" + password)}}
	}
	l, err := New(strings.Split(u.Host, ","), &o)
	if err != nil {
		return nil, err
	}
	return l, nil
}
