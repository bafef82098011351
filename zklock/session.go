package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/backend"
)

// session is one ZooKeeper session and the go-zookeeper client that has it. A client would begin a new session by itself
// when the servers have ended the old one, with the requests that still wait in it; so each session has a client of
// its own, which cannot connect any more once the session is over.
type session struct {
	e      *ensemble
	begun  time.Time
	life   context.Context // ends with the session
	cancel context.CancelFunc

	logins sync.Mutex // held while the client introduces itself
	authed int        // so many of the ensemble's Auth it has

	mu      sync.Mutex
	conn    *zk.Conn
	events  <-chan zk.Event
	id      int64            // 0 before it was established
	keeper  *backend.Session // nil before
	link    *link            // the latest that the server has answered on
	joined  bool             // go-zookeeper takes requests: the link stands
	known   bool             // the server knows who we are
	up      chan struct{}    // closed while both are so
	ended   bool
	cause   error     // why it has
	failure error     // of the last dial
	tries   int       // dials since the session was last let in
	flush   time.Time // when requests that were not sent fail, if the link is still down; zero before it first stood
	busy    int       // attempts and leases that hang on it
	proof   proof
	watches map[string]*watch
	multis  map[string][]*multi // by the path that they name first: not sent yet
}

var (
	errEnded        = errors.New("zklock: the session has ended")
	errDisconnected = errors.New("zklock: the connection to ZooKeeper was lost")
)

// begin starts a session; it dials at once, in the background. The caller holds e.mu.
func (e *ensemble) begin() *session {
	s := &session{
		e: e, begun: time.Now(), up: make(chan struct{}),
		known: len(e.o.Auth) == 0, watches: map[string]*watch{}, multis: map[string][]*multi{},
	}
	s.life, s.cancel = context.WithCancel(context.Background())
	s.mu.Lock() // the client calls back before Connect returns
	defer s.mu.Unlock()
	e.clients.Add(1)
	var err error
	s.conn, s.events, err = zk.Connect(e.servers, e.o.SessionTimeout,
		zk.WithHostProvider(&hosts{session: s}), zk.WithDialer(s.dial), zk.WithEventCallback(s.event),
		zk.WithLogger(e.o.Logger), zk.WithLogInfo(false), zk.WithMaxConnBufferSize(sendBuffer))
	if err != nil { // for an empty list of servers
		panic("zklock: " + err.Error())
	}
	return s
}

// sendBuffer has room for any request of ours, and for the 128 KiB of watches that go-zookeeper sets anew at once.
const sendBuffer = 256 << 10

// event is called by go-zookeeper for everything that happens. Its channel has room for six and drops what is more.
func (s *session) event(ev zk.Event) {
	switch {
	case ev.Path != "":
		s.changed(ev)
	case ev.Type == zk.EventSession && ev.State == zk.StateHasSession:
		s.mu.Lock()
		s.joined = true
		login := !s.known
		s.admit()
		s.mu.Unlock()
		if login {
			go s.login()
		}
	case ev.Type == zk.EventSession && ev.State == zk.StateDisconnected:
		s.mu.Lock()
		if s.joined && s.known {
			s.up = make(chan struct{})
		}
		if s.joined {
			s.flush = time.Now().Add(maxRedial)
		}
		s.joined = false
		s.mu.Unlock()
	}
}

// admit opens the gate when everything is in place for it. The caller holds s.mu and has just changed something.
func (s *session) admit() {
	if s.joined && s.known {
		close(s.up)
	}
}

// established is called when a server has answered a connect request; an id of zero says that the session has ended.
func (s *session) established(c *link, id int64) {
	s.mu.Lock()
	s.link = c
	if len(s.e.o.Auth) == 0 { // credentials are sent before all else, and answered, while the watches are collected
		for _, w := range s.watches {
			if w.link != nil && c.watches == nil { // it was set, and will be again
				c.watches = make(chan struct{})
			}
		}
	}
	first := s.id == 0
	if id != 0 {
		s.id, s.tries, s.failure = id, 0, nil
		s.proof = proof{asked: c.asked, timeout: c.timeout, between: s.e.o.TickTime}
	}
	s.mu.Unlock()
	switch {
	case id == 0:
		s.end(fmt.Errorf("%w: %w", errEnded, zk.ErrSessionExpired))
	case c.timeout > s.e.o.SessionTimeout:
		s.end(backend.Permanent(fmt.Errorf("%w: zklock: a SessionTimeout of %v: the server makes it %v, its least",
			paddock.ErrInvalid, s.e.o.SessionTimeout, c.timeout)))
	case c.timeout < 2*s.e.o.TickTime:
		s.end(backend.Permanent(fmt.Errorf("%w: zklock: a TickTime of %v: the server makes the session timeout %v, which "+
			"is less than two ticks", paddock.ErrInvalid, s.e.o.TickTime, c.timeout)))
	case first:
		k := s.e.keeper.Session(c.asked, c.timeout, s.beat)
		s.mu.Lock()
		s.keeper = k
		s.mu.Unlock()
	}
}

// login introduces the client to the server, once: go-zookeeper repeats it on later connections.
func (s *session) login() {
	s.logins.Lock()
	defer s.logins.Unlock()
	for s.authed < len(s.e.o.Auth) {
		a := s.e.o.Auth[s.authed]
		switch err := s.conn.AddAuth(a.Scheme, a.Credentials); {
		case err == nil:
			s.authed++
		case errors.Is(err, zk.ErrAuthFailed):
			s.end(backend.Permanent(fmt.Errorf("zklock: scheme %q: %w", a.Scheme, err)))
			return
		default: // the connection is gone; with the next the rest follows
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		s.known = true
		s.admit()
	}
}

// failed records why a server could not be dialled.
func (s *session) failed(err error) {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) { // which is not to be taken for a caller's
		err = errors.New(err.Error())
	}
	err = fmt.Errorf("zklock: no connection to ZooKeeper: %w", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// await returns the link when requests can be sent. Before that they would pile up in the client, out of anybody's reach.
func (s *session) await(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		up, c, ended, cause := s.up, s.link, s.ended, s.cause
		s.mu.Unlock()
		if ended {
			return nil, cause
		}
		select {
		case <-up:
			return c, nil
		default:
		}
		select {
		case <-up:
		case <-s.life.Done():
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.failure != nil {
				return nil, s.failure
			}
			return nil, errDisconnected
		}
	}
}

// end ends the session here, because it has ended on the servers or is of no use. Leases that hang on it are lost.
func (s *session) end(cause error) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended, s.cause = true, cause
	k := s.keeper
	s.mu.Unlock()
	s.e.drop(s)
	s.cancel()
	if k != nil {
		k.Lost(cause)
	}
	go s.hangUp()
}

// hangUp ends the client, which tells the server, if it can be reached, that the session is over.
func (s *session) hangUp() {
	s.mu.Lock()
	conn, events := s.conn, s.events
	s.mu.Unlock()
	conn.Close() // waits for the answer, for a second at most
	s.mu.Lock()
	c := s.link
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
	for range events { // until its goroutines have ended
	}
	s.e.clients.Done()
}

// close ends the session, and keeps another from beginning, once the Keeper has no use for it any more.
func (e *ensemble) close() {
	e.mu.Lock()
	e.closed = true
	s := e.session
	e.mu.Unlock()
	if s != nil {
		s.end(paddock.ErrClosed)
	}
}

// refused makes an error of a request part of the session's life: one that says so ends it.
func (s *session) refused(err error) error {
	if err == nil || errors.Is(err, paddock.ErrLost) {
		return err
	}
	if errors.Is(err, zk.ErrSessionExpired) {
		s.end(fmt.Errorf("%w: %w", errEnded, err))
	}
	if s.isOver() {
		return fmt.Errorf("%w: %w", paddock.ErrLost, s.cause)
	}
	return err
}
