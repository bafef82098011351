package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// link is one connection of a session, between go-zookeeper and the network. It sees what go-zookeeper keeps to itself:
// when the connect request was sent and which timeout was negotiated, when the server was last heard, and when a request
// has left.
type link struct {
	net.Conn
	session *session

	asked    time.Time // when the connect request was sent; go-zookeeper's loop alone uses this and what follows
	answer   []byte    // as much of the connect response as was read
	answered bool

	heard   atomic.Int64  // when the server was last heard, as time since the session's beginning
	timeout time.Duration // as negotiated; set before anybody else sees the link
}

// Offsets in a packet of ZooKeeper's protocol, each after its length of four bytes: a connect request and response are
// (version, last zxid seen, ...) and (version, timeout, session id, ...), another request (xid, opcode, ...).
const (
	atLength  = 0
	atZxid    = 8
	atTimeout = 8
	atID      = 12
	atOpcode  = 8
	atRequest = 12
	ofSubtype = 9 // the header of an operation within a multi

	opMulti           = 14
	opCreateContainer = 19
)

func (c *link) Write(b []byte) (int, error) {
	if !c.asked.IsZero() {
		n, err := c.Conn.Write(b)
		if err == nil {
			c.session.passed(b)
		}
		return n, err
	}
	c.asked = time.Now()
	if len(b) >= atZxid+8 && c.session.forgotten() {
		b = slices.Clone(b)
		binary.BigEndian.PutUint64(b[atZxid:], 0)
	}
	return c.Conn.Write(b)
}

func (c *link) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 {
		return n, err
	}
	c.heard.Store(int64(time.Since(c.session.begun)))
	if c.answered {
		return n, err
	}
	c.answer = append(c.answer, b[:n]...)
	if len(c.answer) >= 4 && len(c.answer) >= 4+int(binary.BigEndian.Uint32(c.answer[atLength:])) {
		c.answered = true
		_ = c.Conn.SetDeadline(time.Time{}) // an error shows at the next Read
		if len(c.answer) < atID+8 {
			return n, errors.Join(err, errAnswer)
		}
		c.timeout = time.Duration(binary.BigEndian.Uint32(c.answer[atTimeout:])) * time.Millisecond
		c.session.established(c, int64(binary.BigEndian.Uint64(c.answer[atID:])))
		c.answer = nil
	}
	return n, err
}

var errAnswer = errors.New("zklock: the answer to a connect request is too short")

// go-zookeeper gives a server that says nothing to its connect request seven session timeouts, so until it has answered
// the deadline is ours.

func (c *link) SetDeadline(t time.Time) error {
	if !c.answered {
		return nil
	}
	return c.Conn.SetDeadline(t)
}

func (c *link) SetReadDeadline(t time.Time) error {
	if !c.answered {
		return nil
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *link) SetWriteDeadline(t time.Time) error {
	if !c.answered {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// named returns the path that a request names first, of those requests that others line up behind; else nil.
func named(packet []byte) []byte {
	if len(packet) < atRequest {
		return nil
	}
	at := atRequest
	switch binary.BigEndian.Uint32(packet[atOpcode:]) {
	case opMulti:
		at += ofSubtype
	case opCreateContainer:
	default:
		return nil
	}
	if len(packet) < at+4 {
		return nil
	}
	n := uint64(binary.BigEndian.Uint32(packet[at:]))
	if at += 4; uint64(len(packet)-at) < n {
		return nil
	}
	return packet[at : at+int(n)]
}

// hosts hands out the servers in turn. go-zookeeper's own provider looks names up once and for all, and makes the
// client wait for a second before it tries a single server again; here every dial looks its name up, and the waiting
// is dial's.
type hosts struct {
	session *session
	servers []string
	next    int
}

func (h *hosts) Init(servers []string) error { h.servers = servers; return nil } // in random order
func (h *hosts) Len() int                    { return len(h.servers) }
func (h *hosts) Connected()                  {}

// Next returns true, upon which go-zookeeper looks whether it was closed, when the session is over.
func (h *hosts) Next() (string, bool) {
	server := h.servers[h.next%len(h.servers)]
	h.next++
	return server, h.session.isOver()
}

const (
	minRedial = 20 * time.Millisecond // between two rounds over the servers
	maxRedial = time.Second
)

// dial is what go-zookeeper connects with.
func (s *session) dial(network, server string, _ time.Duration) (net.Conn, error) {
	s.mu.Lock()
	tries, ended := s.tries, s.ended
	s.tries++
	s.mu.Unlock()
	if ended {
		return nil, errEnded
	}
	if n := len(s.e.servers); tries > 0 && tries%n == 0 {
		pause := min(minRedial<<min(tries/n-1, 10), maxRedial)
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-s.life.Done():
			timer.Stop()
			return nil, errEnded
		}
	}
	wait := s.e.handshake()
	ctx, cancel := context.WithTimeout(s.life, wait)
	defer cancel()
	conn, err := s.e.o.Dialer(ctx, network, server)
	if err != nil {
		s.failed(err)
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(wait)) // an error shows at the first Write
	return &link{Conn: conn, session: s}, nil
}

// forgotten reports whether the servers may have lost their data: they answer, but none lets the session in. A server
// refuses a client that has seen more than it has itself, by closing the connection, for ever; asked by a client that
// has seen nothing, it says whether it knows the session.
func (s *session) forgotten() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id != 0 && s.tries > 2*len(s.e.servers)
}

// handshake is how long a server may take to be connected, and then to let the session in.
func (e *ensemble) handshake() time.Duration { return max(e.o.SessionTimeout/4, 500*time.Millisecond) }

var _ zk.HostProvider = (*hosts)(nil)
