package servers

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// mesh is what the nodes of a quorum reach each other through, so that one of
// them can be cut off from the others. It consists of fronts: listeners which
// forward to a node, either for one other node, or for all. The latter are for
// etcd, whose nodes must all be told the same addresses and dial from the same
// one: there the mesh looks for the process that owns the other end.
type mesh struct {
	nodes int
	pid   func(node int) int // 0: not started

	mu        sync.Mutex
	listeners []net.Listener
	cut       map[int]bool
	silent    map[int]chan struct{} // closed when the silence ends
	links     map[*link][2]int      // from, to
}

const anyNode = -1

func newMesh(nodes int, pid func(node int) int) *mesh {
	return &mesh{nodes: nodes, pid: pid, cut: map[int]bool{}, silent: map[int]chan struct{}{}, links: map[*link][2]int{}}
}

// front makes at reach from, or anyNode, what to listens on at target. A
// greeting, if not nil, passes on the first that is sent, in its own words.
func (m *mesh) front(at string, from, to int, target string, greeting func(dst io.Writer, src io.Reader) error) error {
	l, err := listenAt(at)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.listeners = append(m.listeners, l)
	m.mu.Unlock()
	go func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go m.serve(conn.(*net.TCPConn), from, to, target, greeting)
			}
		}
	}()
	return nil
}

// isolate resets what node has with the others, and all that either side tries.
func (m *mesh) isolate(node int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cut[node] = true
	for c, ends := range m.links {
		if ends[0] == node || ends[1] == node || ends[0] == anyNode {
			c.reset()
		}
	}
}

// silence keeps what node and the others say to each other.
func (m *mesh) silence(node int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.silent[node] == nil {
		m.silent[node] = make(chan struct{})
	}
}

func (m *mesh) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.cut)
	for _, over := range m.silent {
		close(over)
	}
	clear(m.silent)
}

func (m *mesh) isolated(node int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cut[node] || m.silent[node] != nil
}

// audible waits until the ends of a link hear each other; false: it was reset.
func (m *mesh) audible(c *link, ends [2]int) bool {
	for {
		m.mu.Lock()
		over := m.silent[ends[0]]
		if over == nil {
			over = m.silent[ends[1]]
		}
		m.mu.Unlock()
		if over == nil {
			return true
		}
		select {
		case <-over:
		case <-c.broken:
			return false
		}
	}
}

func (m *mesh) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.listeners {
		l.Close()
	}
	for c := range m.links {
		c.reset()
	}
}

func (m *mesh) serve(client *net.TCPConn, from, to int, target string, greeting func(io.Writer, io.Reader) error) {
	conn, err := net.Dial("tcp", target)
	if err != nil {
		refuse(client) // and nobody asks who it was: a dead node's peers try again and again
		return
	}
	if from == anyNode {
		from = m.source(client)
	}
	c := &link{client: client, server: conn.(*net.TCPConn), broken: make(chan struct{})}
	m.mu.Lock()
	// Who has closed already cannot be found: let in while nobody is cut off.
	allowed := !m.cut[from] && !m.cut[to] && (from != anyNode || len(m.cut) == 0)
	if allowed {
		m.links[c] = [2]int{from, to}
	}
	m.mu.Unlock()
	if !allowed {
		c.reset()
		return
	}
	var halves sync.WaitGroup
	half := func(dst, src *net.TCPConn) {
		buf := make([]byte, 32<<10)
		for {
			n, err := src.Read(buf)
			if !m.audible(c, [2]int{from, to}) {
				return
			}
			if _, failed := dst.Write(buf[:n]); err != nil || failed != nil {
				break
			}
		}
		_ = dst.CloseWrite()
	}
	halves.Go(func() {
		if greeting == nil || m.audible(c, [2]int{from, to}) && greeting(c.server, c.client) == nil {
			half(c.server, c.client)
		} else {
			c.reset()
		}
	})
	halves.Go(func() { half(c.client, c.server) })
	halves.Wait()
	c.reset()
	m.mu.Lock()
	delete(m.links, c)
	m.mu.Unlock()
}

// source returns the node at the other end of conn, or anyNode.
func (m *mesh) source(conn net.Conn) int {
	inodes := socketInodes(conn.RemoteAddr().(*net.TCPAddr).Port, conn.LocalAddr().(*net.TCPAddr).Port)
	for node := range m.nodes {
		pid := m.pid(node)
		if pid == 0 {
			continue
		}
		open, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
		for _, fd := range open {
			file, err := os.Readlink(fd)
			if err == nil && slices.Contains(inodes, file) {
				return node
			}
		}
	}
	return anyNode
}

// socketInodes lists the sockets between two ports, as /proc/PID/fd names
// them. There may be several: on other loopback addresses the same pair of
// ports is another connection.
func socketInodes(local, remote int) []string {
	var inodes []string
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return nil
	}
	defer f.Close()
	here := fmt.Sprintf(":%04X ", local)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if !bytes.Contains(lines.Bytes(), []byte(here)) {
			continue
		}
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		if w := strings.Fields(lines.Text()); len(w) > 9 && hexPort(w[1]) == local && hexPort(w[2]) == remote {
			inodes = append(inodes, "socket:["+w[9]+"]")
		}
	}
	return inodes
}

// hexPort reads the port of an address like 0100007F:1F90.
func hexPort(addr string) int {
	_, port, _ := strings.Cut(addr, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return -1
	}
	return int(n)
}
