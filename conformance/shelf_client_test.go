package conformance_test

import (
	"context"
	"errors"
	"net/rpc"
	"sync"
	"sync/atomic"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/faulty"
)

// client is the backend of a shelf at an address.
type client struct {
	addr string
	flaw string

	mu   sync.Mutex
	conn *rpc.Client
}

func (c *client) call(method string, args, reply any) error {
	c.mu.Lock()
	if c.conn == nil {
		conn, err := rpc.Dial("tcp", c.addr)
		if err != nil {
			c.mu.Unlock()
			return err
		}
		c.conn = conn
	}
	conn := c.conn
	c.mu.Unlock()
	err := conn.Call("Service."+method, args, reply)
	var answered rpc.ServerError
	if err != nil && !errors.As(err, &answered) {
		conn.Close()
		c.mu.Lock()
		if c.conn == conn {
			c.conn = nil
		}
		c.mu.Unlock()
	}
	return err
}

func request(a *backend.Attempt) Call {
	return Call{Key: a.Key, Owner: a.Owner, Note: a.Note, TTL: a.TTL, MaxHold: a.MaxHold}
}

func (c *client) Try(_ context.Context, a *backend.Attempt) (backend.Grant, error) {
	var r Answer
	if err := c.call("Try", request(a), &r); err != nil {
		return backend.Grant{}, err
	}
	if r.Held {
		return backend.Grant{}, &paddock.HeldError{Key: a.Key, RetryAfter: r.RetryAfter}
	}
	return backend.Grant{Token: r.Token, Domain: "shelf"}, nil
}

func (c *client) Undo(_ context.Context, a *backend.Attempt) error {
	return c.call("Undo", request(a), &Answer{})
}

func (c *client) Release(_ context.Context, a *backend.Attempt) error {
	var r Answer
	if err := c.call("Release", request(a), &r); err != nil {
		return err
	}
	if r.Lost {
		return paddock.ErrLost
	}
	return nil
}

func (c *client) Renew(_ context.Context, batch []backend.Renewal) {
	calls := make([]Call, len(batch))
	for i, r := range batch {
		calls[i] = request(r.Attempt)
		calls[i].TTL, calls[i].Shorten = r.TTL, r.Shorten
	}
	var rs []Answer
	err := c.call("Renew", calls, &rs)
	for i := range batch {
		if batch[i].Err = err; err == nil && rs[i].Lost {
			batch[i].Err = paddock.ErrLost
		}
		batch[i].Ordered = c.flaw == claimsOrder
	}
}

// hasty counts the trust window from the reply.
type hasty struct{ backend.Backend }

func (h hasty) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	g, err := h.Backend.Try(ctx, a)
	g.Sent = time.Now()
	return g, err
}

// shelfLocker is a Locker over a shelf.
type shelfLocker struct {
	*backend.Keeper
	client *client
}

func (l shelfLocker) Inspect(ctx context.Context, key string) (paddock.Holder, error) {
	if err := backend.CheckKey(key); err != nil {
		return paddock.Holder{}, err
	}
	var r Answer
	if err := errors.Join(ctx.Err(), l.client.call("Inspect", key, &r)); err != nil {
		return paddock.Holder{}, err
	}
	if r.Free {
		return paddock.Holder{}, paddock.ErrFree
	}
	return r.Holder, nil
}

// dial returns a Locker on the shelf at addr, and the link that it has. local is that shelf, if it is in this process.
func dial(addr, flaw string, local *shelf, sent *atomic.Int64) (paddock.Locker, *faulty.Link) {
	c := &client{addr: addr, flaw: flaw}
	link := faulty.New(c, sent)
	var b backend.Backend = link
	if flaw == countsFromTheReply {
		b = hasty{b}
	}
	var k *backend.Keeper
	k = backend.NewKeeper(paddock.Guarantees{
		Backend: "shelf", Exclusion: paddock.SingleServer, Fencing: fencing.Volatile, MinTTL: 50 * time.Millisecond,
		Assumes: "The test process lives.",
	}, b, &backend.KeeperOptions{Watch: func(string) func() {
		if local == nil { // then there are timers
			return func() {}
		}
		return local.watch(k)
	}})
	go func() {
		<-k.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.conn != nil {
			c.conn.Close()
		}
	}()
	return shelfLocker{k, c}, link
}
