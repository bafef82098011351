package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startLimit = time.Minute            // for a server to answer; machines of CI are slow
	probeLimit = 500 * time.Millisecond // for one question whether it does
	pollEvery  = 5 * time.Millisecond
)

var errPortTaken = errors.New("address already in use")

// Process is one running server. Its methods may be called by any goroutine.
type Process struct {
	Name string // program and port, as in failure messages
	Addr string // host:port for clients

	dir   string
	argv  []string
	env   []string
	ready func(context.Context) error
	after func()     // it was killed: sees to what outlives it; or nil
	tb    testing.TB // nil for a shared server

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// launch starts p, in a directory of its own, and returns when it is ready.
func (p *Process) launch() error {
	if p.dir == "" {
		dir, err := newDir(p.Name)
		if err != nil {
			return err
		}
		p.dir = dir
	}
	if err := p.start(); err != nil {
		return err
	}
	if err := p.await("ready", p.ready); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// adopt makes p end with the test, and its log part of a failure.
func (p *Process) adopt(tb testing.TB) *Process {
	p.tb = tb
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("the last that %s logged:\n%s", p.Name, p.logTail())
		}
		os.RemoveAll(p.dir)
	})
	return p
}

// forks starts processes on a thread that never ends: the kernel sends the
// signal that takes children along when the thread which started them ends,
// not when the process does, and Go ends threads now and then.
var forks = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

func (p *Process) start() error {
	log, err := os.OpenFile(p.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	// etcd takes flags from variables of this name.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "ETCD_") })
	cmd.Env = append(cmd.Env, p.env...)
	cmd.SysProcAttr = childAttr()

	started := make(chan error)
	forks() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, as a rule
		close(exited)
	}()
	p.mu.Lock()
	p.cmd, p.exited = cmd, exited
	p.mu.Unlock()
	return nil
}

// overTCP asks on a connection of its own, which ends with the context's time.
func overTCP(addr string, ask func(net.Conn) error) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		defer conn.Close()
		if end, ok := ctx.Deadline(); ok {
			_ = conn.SetDeadline(end)
		}
		return ask(conn)
	}
}

// await repeats probe until it succeeds.
func (p *Process) await(what string, probe func(context.Context) error) error {
	end := time.Now().Add(startLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
		err := probe(ctx)
		cancel()
		if err == nil {
			return nil
		}
		if !p.Running() {
			tail := p.logTail()
			if bytes.Contains(bytes.ToLower(tail), []byte("address already in use")) {
				return fmt.Errorf("%s: %w", p.Name, errPortTaken)
			}
			return fmt.Errorf("%s ended before it was %s:\n%s", p.Name, what, tail)
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s is not %s after %v: %w\n%s", p.Name, what, startLimit, err, p.logTail())
		}
		time.Sleep(pollEvery)
	}
}

func (p *Process) current() (cmd *exec.Cmd, exited <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.exited
}

// Pid is the process id; it changes at Restart.
func (p *Process) Pid() int {
	cmd, _ := p.current()
	return cmd.Process.Pid
}

// Running tells whether the process is there, paused or not.
func (p *Process) Running() bool {
	_, exited := p.current()
	select {
	case <-exited:
		return false
	default:
		return true
	}
}

// Pause stops the process as it stands (SIGSTOP), with its connections open,
// and returns when it has stopped. The kernel still takes what clients send.
func (p *Process) Pause() {
	cmd, _ := p.current()
	_ = cmd.Process.Signal(sigStop) // an error says that it has ended
	for p.Running() && !stopped(cmd.Process.Pid) {
		time.Sleep(pollEvery)
	}
}

// Resume lets a paused process go on.
func (p *Process) Resume() {
	cmd, _ := p.current()
	_ = cmd.Process.Signal(sigContinue)
}

// Kill ends the process at once (SIGKILL), also a paused one, and returns when
// it is gone.
func (p *Process) Kill() {
	cmd, exited := p.current()
	_ = cmd.Process.Signal(syscall.SIGKILL)
	<-exited
	if p.after != nil {
		p.after()
	}
}

// Restart runs the same command again on the same address and data, after
// killing what may still run, and returns when it answers. A server that does
// not come back fails the test.
func (p *Process) Restart() {
	p.Kill()
	err := p.start()
	if err == nil {
		err = p.await("ready again", p.ready)
	}
	if err != nil {
		p.tb.Errorf("servers: restart: %v", err)
	}
}

func (p *Process) logPath() string { return filepath.Join(p.dir, "log") }

func (p *Process) logTail() []byte {
	log, err := os.ReadFile(p.logPath())
	if err != nil {
		return []byte(err.Error())
	}
	return log[max(0, len(log)-4<<10):]
}
