package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/paddock-go/paddock"
	"github.com/paddock-go/paddock/fencing"
)

const childEnv = "PADDOCK_CONFORMANCE_CHILD"

// errand is what a child is started for.
type errand struct {
	Key string
	TTL time.Duration
}

// Child makes this process a holder for the crash cases, and does not return then. In every other process it does nothing.
// Call it from TestMain, before m.Run:
//
//	func TestMain(m *testing.M) {
//		conformance.Child(func() paddock.Locker { return dial(os.Getenv("MYLOCK_ADDR")) })
//		os.Exit(m.Run())
//	}
//
// The child inherits the environment of the test that starts it, which tells open where the service is.
func Child(open func() paddock.Locker) {
	arg := os.Getenv(childEnv)
	if arg == "" {
		return
	}
	var e errand
	if err := json.Unmarshal([]byte(arg), &e); err != nil {
		fmt.Fprintln(os.Stderr, "conformance: child:", err)
		os.Exit(2)
	}
	l := open()
	say(report{Said: "ready"})
	lease, err := l.Acquire(context.Background(), e.Key, forTTL(e.TTL))
	if err != nil {
		say(report{Said: "failed", Err: err.Error()})
		os.Exit(1)
	}
	say(report{Said: "held", Token: lease.Token()})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); { // ends with the parent
		switch in.Text() {
		case "err":
			err = lease.Err()
		case "release":
			err = lease.Release(context.Background())
		}
		r := report{Said: in.Text(), Lost: errors.Is(err, paddock.ErrLost)}
		if err != nil {
			r.Err = err.Error()
		}
		say(r)
	}
	os.Exit(0)
}

// report is a line that a child says.
type report struct {
	Said  string
	Token fencing.Token
	Err   string
	Lost  bool
}

func say(r report) {
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		os.Exit(1) // nobody listens any more
	}
}

// child is such a process.
type child struct {
	t     *trial
	cmd   *exec.Cmd
	ask   func(string) error
	lines chan report
}

// child starts a process that acquires key, and returns when it has its Locker.
func (t *trial) child(key string, ttl time.Duration) *child {
	t.Helper()
	if !t.b.Child {
		t.skip("Child")
	}
	arg, err := json.Marshal(errand{key, ttl})
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(arg))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: cmd, lines: make(chan report, 16), ask: func(s string) error {
		_, err := fmt.Fprintln(in, s)
		return err
	}}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // or it has ended already
		_ = cmd.Wait()
	})
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			var r report
			if json.Unmarshal(s.Bytes(), &r) == nil {
				c.lines <- r
			}
		}
	}()
	c.hear("ready")
	return c
}

// hear returns the next thing that the child says, which has to be this.
func (c *child) hear(said string) report {
	c.t.Helper()
	r := await(c.t, c.lines, soon+2*c.t.lively(), "a child process saying "+said)
	if r.Said != said {
		c.t.Fatalf("the child process said %+v; want %q (does TestMain call conformance.Child?)", r, said)
	}
	return r
}

// answer asks the child and returns its answer.
func (c *child) answer(question string) report {
	c.t.Helper()
	if err := c.ask(question); err != nil {
		c.t.Fatal(err)
	}
	return c.hear(question)
}
