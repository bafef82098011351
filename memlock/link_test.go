package memlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/conformance"
)

// link stands between a Keeper and the memory as a network would: what was sent arrives even when the sender has given up,
// answers get lost, and nothing is told that was not asked, since the table gets to see copies of the attempts.
type link struct {
	*memory
	sent *atomic.Int64

	mu       sync.Mutex
	changed  chan struct{} // closed when one of the following changes
	requests time.Duration
	replies  time.Duration
	lose     bool
	silent   bool
	broken   bool
	kept     []func() // requests sent into silence by callers that have gone
}

var (
	errRefused = errors.New("connection refused")
	errReset   = errors.New("connection reset")
	errNoSound = errors.New("no sign of life on the connection")
)

func (l *link) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

// spoil is what conformance sees of it.
func (l *link) spoil() conformance.Link {
	return conformance.Link{
		DelayRequests: func(d time.Duration) { l.set(func() { l.requests = d }) },
		DelayReplies:  func(d time.Duration) { l.set(func() { l.replies = d }) },
		LoseReplies:   func() { l.set(func() { l.lose = true }) },
		Silence:       func() { l.set(func() { l.silent = true }) },
		Cut:           func() { l.set(func() { l.broken = true }) },
		Pass: func() {
			l.set(func() {
				l.requests, l.replies, l.lose, l.silent, l.broken = 0, 0, false, false, false
				for _, deliver := range l.kept {
					go deliver()
				}
				l.kept = nil
			})
		},
	}
}

// state is that of the link now.
func (l *link) state() (requests, replies time.Duration, lose, silent, broken bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests, l.replies, l.lose, l.silent, l.broken, l.changed
}

// request returns when a request has arrived. If ctx ends first, deliver is what it does when it arrives.
func (l *link) request(ctx context.Context, deliver func()) error {
	l.sent.Add(1)
	if d, _, _, _, broken, _ := l.state(); broken {
		return errRefused
	} else if due := time.Now().Add(d); !sleep(ctx, d) {
		time.AfterFunc(time.Until(due), deliver)
		return ctx.Err()
	}
	for {
		_, _, _, silent, broken, changed := l.state()
		switch {
		case broken:
			return errReset
		case !silent:
			return nil
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		case <-time.After(aliveWithin):
		}
		l.set(func() { l.kept = append(l.kept, deliver) })
		return errors.Join(errNoSound, ctx.Err())
	}
}

// aliveWithin is the silence after which a client gives its connection up.
const aliveWithin = time.Second

// reply returns when the answer to a request has arrived.
func (l *link) reply(ctx context.Context) error {
	_, d, _, _, _, _ := l.state()
	if !sleep(ctx, d) {
		return ctx.Err()
	}
	for lost := false; ; {
		_, _, lose, silent, broken, changed := l.state()
		lost = lost || lose
		switch {
		case broken, lost && !lose:
			return errReset
		case !lose && !silent:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(aliveWithin):
			return errNoSound
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// onWire is a as a request says it: without the Keeper's part.
func onWire(a *backend.Attempt, waits bool) *backend.Attempt {
	return &backend.Attempt{
		Key: a.Key, Owner: a.Owner, Note: a.Note, TTL: a.TTL, MaxHold: a.MaxHold, NoRenew: a.NoRenew, Waits: waits, Slow: a.Slow,
	}
}

func (l *link) Try(ctx context.Context, a *backend.Attempt) (backend.Grant, error) {
	ever := context.Background()
	if err := l.request(ctx, func() { _, _ = l.memory.Try(ever, onWire(a, false)) }); err != nil {
		return backend.Grant{}, err
	}
	if !a.Waits {
		g, err := l.memory.Try(ever, onWire(a, false))
		return g, errors.Join(err, l.reply(ctx))
	}
	type answer struct {
		backend.Grant
		error
	}
	answered := make(chan answer, 1)
	hung, hangUp := context.WithCancel(ever)
	defer hangUp() // the place in the queue stays until Undo
	go func() {
		g, err := l.memory.Try(hung, onWire(a, true))
		answered <- answer{g, err}
	}()
	for {
		_, _, _, silent, broken, changed := l.state()
		if broken {
			return backend.Grant{}, errReset
		}
		listen, heard := answered, time.After(100*time.Millisecond)
		if silent {
			listen, heard = nil, time.After(aliveWithin)
		}
		select {
		case g := <-listen:
			return g.Grant, errors.Join(g.error, l.reply(ctx))
		case <-ctx.Done():
			return backend.Grant{}, ctx.Err()
		case <-changed:
		case <-heard:
			if silent {
				return backend.Grant{}, errNoSound
			}
			a.Contended(0) // the place in the queue was asked for again
		}
	}
}

func (l *link) Undo(ctx context.Context, a *backend.Attempt) error {
	ever, a := context.Background(), onWire(a, false)
	if err := l.request(ctx, func() { _ = l.memory.Undo(ever, a) }); err != nil {
		return err
	}
	return errors.Join(l.memory.Undo(ever, a), l.reply(ctx))
}

func (l *link) Release(ctx context.Context, a *backend.Attempt) error {
	ever, a := context.Background(), onWire(a, false)
	if err := l.request(ctx, func() { _ = l.memory.Release(ever, a) }); err != nil {
		return err
	}
	err := l.memory.Release(ever, a)
	if lost := l.reply(ctx); lost != nil {
		return lost
	}
	return err
}

func (l *link) Renew(ctx context.Context, batch []backend.Renewal) {
	ever := context.Background()
	request := make([]backend.Renewal, len(batch))
	for i, r := range batch {
		request[i] = backend.Renewal{Attempt: onWire(r.Attempt, false), TTL: r.TTL, Shorten: r.Shorten}
	}
	err := l.request(ctx, func() { l.memory.Renew(ever, request) })
	if err == nil {
		l.memory.Renew(ever, request)
		err = l.reply(ctx)
	}
	for i := range batch {
		if batch[i].Err = err; err == nil {
			batch[i].Err = request[i].Err
		}
	}
}

// network is a table that Lockers reach through links.
type network struct {
	server *Locker
	sent   atomic.Int64

	mu    sync.Mutex
	links map[*link]struct{}
}

func newNetwork() *network {
	return &network{server: New(nil), links: map[*link]struct{}{}}
}

// open returns a Locker and the link that it has.
func (n *network) open(tb testing.TB) (*Locker, *link) {
	k := &link{sent: &n.sent, changed: make(chan struct{})}
	l := open(Options{Shared: n.server}, func(b backend.Backend) backend.Backend {
		k.memory = b.(*memory)
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
		s := k.spoil()
		s.Cut()
		s.Pass()
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

// backend is the network for the suite. Lockers without a link make their calls inline, as users' do.
func (n *network) backend() conformance.Backend {
	return conformance.Backend{
		Open: func(tb testing.TB) paddock.Locker {
			return open(Options{Shared: n.server}, func(b backend.Backend) backend.Backend { return counted{b, &n.sent} }, true)
		},
		Commands: n.sent.Load,
		Faults: &conformance.Faults{
			Open: func(tb testing.TB) (paddock.Locker, conformance.Link) {
				l, k := n.open(tb)
				return l, k.spoil()
			},
			Restart: n.restart,
			Forget:  n.forget,
		},
		Left: func(context.Context) ([]string, error) { return n.server.memory.table.left(), nil },
	}
}
