//go:build linux

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/paddock-go/paddock/internal/servers"
)

const workEnv = "PADDOCK_FAULTS_WORK"

func TestMain(m *testing.M) {
	if arg := os.Getenv(workEnv); arg != "" {
		var w Work
		err := json.Unmarshal([]byte(arg), &w)
		if err == nil {
			err = w.Run(os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// worker is a process that takes turns with others.
type worker struct {
	tb     testing.TB
	index  int
	cmd    *exec.Cmd
	in     io.Writer
	events chan Said

	mu       sync.Mutex
	leases   []Lease // of this round
	failures []Failure
}

// start starts a worker. The calling goroutine has to be bound to its thread: the kernel kills the worker when that ends.
func start(tb testing.TB, work Work) *worker {
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	arg, err := json.Marshal(work)
	if err != nil {
		tb.Fatal(err)
	}
	w := &worker{tb: tb, index: work.Index, cmd: exec.Command(self, "-test.run=^$"), events: make(chan Said, 1)}
	w.cmd.Env = append(os.Environ(), workEnv+"="+string(arg))
	w.cmd.Stderr = os.Stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	})
	go func() {
		defer close(w.events)
		for in := json.NewDecoder(bufio.NewReader(out)); ; {
			var s Said
			if in.Decode(&s) != nil {
				return
			}
			w.mu.Lock()
			switch {
			case s.Lease != nil:
				w.leases = append(w.leases, *s.Lease)
			case s.Failure != nil:
				w.failures = append(w.failures, *s.Failure)
			}
			w.mu.Unlock()
			if s.Event != "" {
				w.events <- s
			}
		}
	}()
	return w
}

func (w *worker) tell(line string) {
	if _, err := fmt.Fprintln(w.in, line); err != nil {
		w.tb.Fatalf("worker %d: %v", w.index, err)
	}
}

// hear waits until the worker says event.
func (w *worker) hear(event string, within time.Duration) Said {
	w.tb.Helper()
	select {
	case s, ok := <-w.events:
		if !ok || s.Event != event {
			w.tb.Fatalf("worker %d said %+v, or has ended; it was to say %q", w.index, s, event)
		}
		return s
	case <-time.After(within):
		w.tb.Fatalf("worker %d has not said %q within %v", w.index, event, within)
	}
	return Said{}
}

// take returns what the worker has recorded, and begins anew.
func (w *worker) take() ([]Lease, []Failure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	leases, failures := w.leases, w.failures
	w.leases, w.failures = nil, nil
	return leases, failures
}

func wipe(p *servers.Process) {
	c := redis.NewClient(&redis.Options{Addr: p.Addr})
	defer c.Close()
	if err := c.FlushAll(context.Background()).Err(); err != nil {
		panic(fmt.Sprintf("%s: %v", p.Name, err)) // the one before was healed: it answers
	}
}
