package conformance_test

import (
	"context"
	"errors"
	"net"
	"net/rpc"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
	"github.com/paddock-go/paddock/conformance"
	"github.com/paddock-go/paddock/fencing"
	"github.com/paddock-go/paddock/internal/faulty"
)

// Call is a request to a shelf.
type Call struct {
	Key, Owner, Note string
	TTL, MaxHold     time.Duration
	Shorten          bool
}

// Answer is what it comes to.
type Answer struct {
	Held, Lost, Free bool
	RetryAfter       time.Duration
	Token            fencing.Token
	Holder           paddock.Holder
}

// Service is a shelf as net/rpc sees it.
type Service struct{ shelf *shelf }

func (c Call) attempt() *backend.Attempt {
	return &backend.Attempt{Key: c.Key, Owner: c.Owner, Note: c.Note, TTL: c.TTL, MaxHold: c.MaxHold}
}

func (s Service) Try(c Call, a *Answer) (err error) {
	a.Token, err = s.shelf.try(c.attempt())
	var held *paddock.HeldError
	if errors.As(err, &held) {
		a.Held, a.RetryAfter = true, held.RetryAfter
		return nil
	}
	return err
}

func (s Service) Undo(c Call, _ *Answer) error {
	s.shelf.undo(c.attempt())
	return nil
}

func (s Service) Release(c Call, a *Answer) error {
	a.Lost = s.shelf.release(c.attempt()) != nil
	return nil
}

func (s Service) Renew(batch []Call, as *[]Answer) error {
	for _, c := range batch {
		*as = append(*as, Answer{Lost: s.shelf.renew(c.attempt(), c.TTL, c.Shorten) != nil})
	}
	return nil
}

func (s Service) Inspect(key string, a *Answer) (err error) {
	a.Holder, err = s.shelf.inspect(key)
	a.Free = err != nil
	return nil
}

// server serves a shelf on loopback.
type server struct {
	*shelf
	addr string
	rpc  *rpc.Server
	sent atomic.Int64

	mu    sync.Mutex
	l     net.Listener
	conns []net.Conn
}

func serve(tb testing.TB, s *shelf) *server {
	srv := &server{shelf: s, addr: "127.0.0.1:0", rpc: rpc.NewServer()}
	if err := srv.rpc.Register(Service{s}); err != nil {
		tb.Fatal(err)
	}
	srv.start(tb)
	tb.Cleanup(srv.stop)
	return srv
}

func (s *server) start(tb testing.TB) {
	l, err := net.Listen("tcp", s.addr)
	if err != nil {
		tb.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.l, s.addr = l, l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			go s.rpc.ServeConn(c)
		}
	}()
}

func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.l.Close()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

func (s *server) restart(tb testing.TB) {
	s.stop()
	s.start(tb)
}

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

// watch has the Keeper woken until stop.
func (s *shelf) watch(k *backend.Keeper) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers[k]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watchers[k]--; s.watchers[k] == 0 {
			delete(s.watchers, k)
		}
	}
}

// backend is the server for the suite.
func (s *server) backend() conformance.Backend {
	return conformance.Backend{
		Open: func(testing.TB) paddock.Locker {
			l, _ := dial(s.addr, s.flaw, s.shelf, &s.sent)
			return l
		},
		Child: true,
		Faults: &conformance.Faults{
			Open: func(testing.TB) (paddock.Locker, conformance.Link) {
				l, k := dial(s.addr, s.flaw, s.shelf, &s.sent)
				return l, conformance.Link{
					DelayRequests: k.DelayRequests, DelayReplies: k.DelayReplies, LoseReplies: k.LoseReplies,
					Silence: k.Silence, Cut: k.Cut, Pass: k.Pass,
				}
			},
			Restart: s.restart,
			Forget:  func(testing.TB) { s.forget() },
		},
		Commands: s.sent.Load,
		Left:     s.left,
	}
}
