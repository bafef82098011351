package memlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/internal/faulty"
)

// network is a table that Lockers reach through links.
type network struct {
	server *Locker
	sent   atomic.Int64

	mu    sync.Mutex
	links map[*faulty.Link]struct{}
}

func newNetwork() *network {
	return &network{server: New(nil), links: map[*faulty.Link]struct{}{}}
}

// open returns a Locker and the link that it has.
func (n *network) open(tb testing.TB) (*Locker, *faulty.Link) {
	var k *faulty.Link
	l := open(Options{Shared: n.server}, func(b backend.Backend) backend.Backend {
		k = faulty.New(b, &n.sent)
		return k
	}, false)
	n.mu.Lock()
	n.links[k] = struct{}{}
	n.mu.Unlock()
	tb.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.links, k)
	})
	return l, k
}

// restart is what those who are connected see of one.
func (n *network) restart(testing.TB) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range n.links {
		k.Cut()
		k.Pass()
	}
}

// forget loses the locks, and tells nobody but those who have no link.
func (n *network) forget(testing.TB) {
	t := n.server.memory.table
	for _, name := range t.held() {
		t.expire(name, "", errors.New("forgotten"))
	}
}

func (t *table) held() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var names []string
	for name, k := range t.locks {
		if k.holder != nil {
			names = append(names, name)
		}
	}
	return names
}

// left lists the locks and who waits for them.
func (t *table) left() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var left []string
	for name, k := range t.locks {
		left = append(left, name)
		for _, w := range k.queue {
			left = append(left, name+" waiter "+w.a.Owner)
		}
	}
	return left
}

// backend is the network for the suite.
func (n *network) backend() conformance.Backend {
	return conformance.Backend{
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				l, k := n.open(tb)
				return l, conformance.Link{
					DelayRequests: k.DelayRequests, DelayReplies: k.DelayReplies, LoseReplies: k.LoseReplies,
					Silence: k.Silence, Cut: k.Cut, Pass: k.Pass,
				}
			},
			Restart: n.restart,
			Forget:  n.forget,
		},
		Commands: n.sent.Load,
		Left:     func(context.Context) ([]string, error) { return n.server.memory.table.left(), nil },
	}
}

// counted counts the calls of a Locker without a link.
type counted struct {
	backend.Backend
	sent *atomic.Int64
}

func (c counted) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	c.sent.Add(1)
	return c.Backend.Try(ctx, a)
}

func (c counted) Undo(ctx context.Context, a *backend.Attempt) error {
	c.sent.Add(1)
	return c.Backend.Undo(ctx, a)
}

func (c counted) Release(ctx context.Context, a *backend.Attempt) error {
	c.sent.Add(1)
	return c.Backend.Release(ctx, a)
}

func (c counted) Renew(ctx context.Context, batch []backend.Renewal) {
	c.sent.Add(1)
	c.Backend.Renew(ctx, batch)
}
