package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
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
	watches chan struct{} // likewise; nil, or closed when the watches of the link before were sent
	sent    sync.Once     // they were
}

// Offsets in a packet of ZooKeeper's protocol, after its length of four bytes. A connect request and its response are
// (version, last zxid seen, ...) and (version, timeout, session id, ...), another request (xid, opcode, ...). In a multi a
// list of operations follows, each of them (opcode, done, error, path, ...).
const (
	atZxid      = 8
	atTimeout   = 8
	atID        = 12
	atOpcode    = 8
	atOperation = 12
	atPath      = 21

	opMulti           = 14
	opCreateContainer = 19
	opSetWatches      = 101
)

func (c *link) Write(b []byte) (int, error) {
	if c.asked.IsZero() {
		c.asked = time.Now()
		if len(b) >= atZxid+8 && c.session.forgotten() {
			b = slices.Clone(b)
			binary.BigEndian.PutUint64(b[atZxid:], 0)
		}
		return c.Conn.Write(b)
	}
	if c.watches != nil && len(b) >= atOpcode+4 && binary.BigEndian.Uint32(b[atOpcode:]) == opSetWatches {
		c.sent.Do(func() { close(c.watches) })
	}
	path := named(b)
	if path == nil {
		return c.Conn.Write(b)
	}
	m := c.session.leaving(path)
	if m == nil {
		return c.Conn.Write(b)
	}
	defer close(m.left)
	if m.container {
		b = slices.Clone(b)
		binary.BigEndian.PutUint32(b[atOperation:], opCreateContainer)
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
		c.await()
		return n, err
	}
	c.answer = append(c.answer, b[:n]...)
	if len(c.answer) >= 4 && len(c.answer) >= 4+int(binary.BigEndian.Uint32(c.answer)) {
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

// watchesWait is for how long replies wait for the watches to be sent, should they not be.
const watchesWait = time.Second

// await keeps replies back until go-zookeeper has sent the watches that it had on the link before. It asks for those with the zxid of
// the last reply; one that comes first would change that while it is read, and hide what has happened in between.
func (c *link) await() {
	if c.watches == nil {
		return
	}
	select {
	case <-c.watches:
		return
	default:
	}
	limit := time.NewTimer(watchesWait)
	defer limit.Stop()
	select {
	case <-c.watches:
	case <-limit.C:
		c.sent.Do(func() { close(c.watches) })
	case <-c.session.life.Done():
	}
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

// named returns the path that the first operation of a multi names; nil for other requests.
func named(packet []byte) []byte {
	if len(packet) < atPath+4 || binary.BigEndian.Uint32(packet[atOpcode:]) != opMulti {
		return nil
	}
	path := packet[atPath+4:]
	if n := binary.BigEndian.Uint32(packet[atPath:]); uint64(n) <= uint64(len(path)) {
		return path[:n]
	}
	return nil
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

// Next returns true when go-zookeeper should look whether it was closed, and fail the requests that it has not sent,
// for both of which it then takes a second.
func (h *hosts) Next() (string, bool) {
	server := h.servers[h.next%len(h.servers)]
	h.next++
	return server, h.session.stuck()
}

const (
	minRedial  = 20 * time.Millisecond // between two rounds over the servers
	maxRedial  = time.Second
	flushEvery = 5 * time.Second
)

// stuck reports whether the session is over, or, now and then, that its client is not connected again soon: the requests
// that it was given at the last moment, or by somebody who had seen it connected and was not let run since, would wait
// for that.
func (s *session) stuck() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return true
	}
	stuck := !s.joined && !s.flush.IsZero() && time.Now().After(s.flush)
	if stuck {
		s.flush = time.Now().Add(flushEvery)
	}
	return stuck
}

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

// dialAny connects to any address of a server's name, which may stand for several servers.
func dialAny(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return nil, err
	}
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	var d net.Dialer
	var conn net.Conn
	for _, addr := range addrs {
		if conn, err = d.DialContext(ctx, network, net.JoinHostPort(addr, port)); err == nil {
			break
		}
	}
	return conn, err
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
