package conformance_test

import (
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
