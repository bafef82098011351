package servers

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections to a server and spoils them on demand. Its
// methods may be called by any goroutine. What happens to a piece of data is
// decided when it reaches the proxy; the order within a connection stays.
type Proxy struct {
	Addr string // where clients connect to

	target string
	tb     testing.TB

	mu       sync.Mutex
	listener net.Listener // nil while cut
	requests time.Duration
	replies  time.Duration
	hold     chan struct{}   // not nil: what arrives now waits for its closing
	held     []chan struct{} // all not closed yet
	lose     bool
	conns    map[*link]struct{}
}

// NewProxy starts a proxy before the server at target. It lets everything
// pass until told otherwise, and ends with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p := &Proxy{Addr: address(), target: target, tb: tb, conns: map[*link]struct{}{}}
	p.Pass()
	tb.Cleanup(p.Cut)
	return p
}

// Pass delivers what Hold kept and everything from now on, without delay; what
// is delayed already keeps its time. Connections of which LoseReplies dropped
// something are reset, since a later reply would be taken for the lost one.
func (p *Proxy) Pass() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	p.requests, p.replies = 0, 0
	if p.listener == nil {
		p.listen()
	}
}

// DelayRequests delivers what clients send from now on after d. Back at 0,
// newer requests on other connections overtake those which are still delayed:
// so a request arrives after the one that cleans up behind it.
func (p *Proxy) DelayRequests(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = d
}

// DelayReplies delivers what the server sends from now on after d.
func (p *Proxy) DelayReplies(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replies = d
}

// Hold keeps connections open, accepts new ones and delivers nothing, in
// either direction, until Pass: to both sides the network has gone silent.
// What a client sent before it gave up and closed is delivered at Pass as well.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	p.hold = make(chan struct{})
	p.held = append(p.held, p.hold)
}

// PassNew lets pass what arrives from now on; what Hold kept, and what comes
// behind it on the same connections, stays kept until Pass.
func (p *Proxy) PassNew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = nil
}

// LoseReplies delivers requests and drops all that the server sends, until
// Pass: commands are executed and nobody hears of it.
func (p *Proxy) LoseReplies() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settle()
	p.lose = true
}

// Lost reports whether LoseReplies, which is in force, has dropped an answer.
// That a command was executed does not tell: its answer may still come, and
// pass if Pass is first.
func (p *Proxy) Lost() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.lost {
			return true
		}
	}
	return false
}

// Cut resets all connections, forgets what was held or delayed, and refuses
// new ones until Pass.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.reset()
	}
	p.settle()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// settle ends the mode in force. Called with mu held.
func (p *Proxy) settle() {
	for _, c := range p.held {
		close(c)
	}
	p.hold, p.held = nil, nil
	if p.lose {
		for c := range p.conns {
			if c.lost {
				c.reset()
			}
		}
	}
	p.lose = false
}

// listen is called with mu held.
func (p *Proxy) listen() {
	l, err := listenAt(p.Addr)
	if err != nil {
		p.tb.Errorf("servers: proxy: %v", err)
		return
	}
	p.listener = l
	go func() {
		for {
			client, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go p.serve(l, client.(*net.TCPConn))
			}
		}
	}()
}

// link is one connection through a proxy.
type link struct {
	client, server *net.TCPConn
	lost           bool // a reply was dropped; guarded by Proxy.mu
	broken         chan struct{}
	once           sync.Once
}

// reset ends both halves at once, as a connection whose host has gone.
func (c *link) reset() {
	c.once.Do(func() {
		close(c.broken)
		refuse(c.client)
		refuse(c.server)
	})
}

// refuse closes with a reset, as a host does that knows of no connection.
func refuse(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	conn.Close()
}

func (p *Proxy) serve(l net.Listener, client *net.TCPConn) {
	p.mu.Lock()
	wait := p.hold
	p.mu.Unlock()
	if wait != nil { // a silent network does not tell either that the server is gone
		<-wait
	}
	conn, err := net.Dial("tcp", p.target)
	if err != nil {
		refuse(client)
		return
	}
	c := &link{client: client, server: conn.(*net.TCPConn), broken: make(chan struct{})}
	p.mu.Lock()
	if p.listener != l { // Cut came first
		c.reset()
	}
	p.conns[c] = struct{}{}
	p.mu.Unlock()

	var halves sync.WaitGroup
	halves.Go(func() { p.forward(c, c.server, c.client, false) })
	halves.Go(func() { p.forward(c, c.client, c.server, true) })
	halves.Wait()
	c.reset()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}

// piece is what one read gave, with its fate.
type piece struct {
	data []byte // nil: the sender closed
	due  time.Time
	hold <-chan struct{}
}

// forward moves data from src to dst. Reading goes on while delivery waits, so
// that what a client has sent is on its way, whatever the client does next.
func (p *Proxy) forward(c *link, dst, src *net.TCPConn, reply bool) {
	way := make(chan piece, 4096)
	go func() {
		defer close(way)
		for {
			buf := make([]byte, 16<<10)
			n, err := src.Read(buf)
			if n > 0 {
				if next, ok := p.judge(c, buf[:n], reply); ok {
					way <- next
				}
			}
			if err != nil {
				if next, ok := p.judge(c, nil, reply); ok {
					way <- next
				}
				return
			}
		}
	}()
	gone := false // dst is; what comes for it is read and dropped
	for next := range way {
		if gone || !c.deliverable(next) {
			continue
		}
		if next.data == nil {
			_ = dst.CloseWrite()
		} else if _, err := dst.Write(next.data); err != nil {
			gone = true
		}
	}
}

// judge decides, by what is asked of the proxy now, when a piece is delivered;
// false: never.
func (p *Proxy) judge(c *link, data []byte, reply bool) (piece, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if reply && p.lose {
		c.lost = true
		return piece{}, false
	}
	delay := p.requests
	if reply {
		delay = p.replies
	}
	return piece{data: data, due: time.Now().Add(delay), hold: p.hold}, true
}

// deliverable waits until the piece may go; false: its connection was reset.
func (c *link) deliverable(next piece) bool {
	if next.hold != nil {
		select {
		case <-next.hold:
		case <-c.broken:
			return false
		}
	}
	if wait := time.Until(next.due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.broken:
			return false
		}
	}
	return true
}
