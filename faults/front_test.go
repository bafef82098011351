//go:build linux

package faults

import (
	"io"
	"net"
	"sync"
	"testing"
)

// front is an address that leads to whichever server is the primary now, as a floating address or a DNS name does.
type front struct {
	addr string

	mu     sync.Mutex
	target string
	conns  map[net.Conn]bool
}

func newFront(tb testing.TB, target string) *front {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	f := &front{addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	tb.Cleanup(func() {
		l.Close()
		f.leadTo("")
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go f.pass(conn)
		}
	}()
	return f
}

// leadTo sends who connects from now on to target, and the others away.
func (f *front) leadTo(target string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.target = target
	for conn := range f.conns {
		conn.Close()
	}
}

func (f *front) pass(client net.Conn) {
	defer client.Close()
	f.mu.Lock()
	target := f.target
	f.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	f.mu.Lock()
	moved := f.target != target
	f.conns[client], f.conns[server] = true, true
	f.mu.Unlock()
	if !moved {
		go func() {
			_, _ = io.Copy(server, client) // either end may go at any time
			server.Close()
		}()
		_, _ = io.Copy(client, server)
	}
	f.mu.Lock()
	delete(f.conns, client)
	delete(f.conns, server)
	f.mu.Unlock()
}
