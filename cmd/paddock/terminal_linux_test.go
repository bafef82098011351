package main

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal with a shell script that has it to itself.
type terminal struct {
	keyboard *os.File
	screen   *output
	cmd      *exec.Cmd
}

func onTerminal(t *testing.T, env []string, script string, args ...string) *terminal {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	var n int
	conn, err := keyboard.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var unlock, name error
	if err := conn.Control(func(fd uintptr) {
		unlock = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		n, name = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
	}); err != nil || unlock != nil || name != nil {
		t.Fatal(err, unlock, name)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	c := &terminal{keyboard: keyboard, screen: &output{}}
	c.cmd = exec.Command("sh", append([]string{"-c", script, os.Args[0]}, args...)...)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = tty, tty, tty
	c.cmd.Env = append(append(os.Environ(), programEnv+"=1", "TERM=xterm"), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		_, _ = keyboard.WriteTo(c.screen) // ends with an error when nobody has the terminal any more
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		_ = c.cmd.Wait()
		keyboard.Close()
		<-shown
	})
	return c
}

func (c *terminal) sees(t *testing.T, what string) {
	t.Helper()
	eventually(t, "the screen shows "+what, func() bool {
		return bytes.Contains([]byte(c.screen.String()), []byte(what))
	})
}

func (c *terminal) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := c.keyboard.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// A command at a terminal can be talked to, Ctrl-C is its own, Ctrl-Z does not leave it halted with a lock, and the shell has
// its terminal back afterwards.
func TestRunOnTerminal(t *testing.T) {
	t.Parallel()
	url, locker := lockService(t)
	c := onTerminal(t, []string{urlEnv + "=" + url}, `
		"$0" run -key k -- sh -c 'echo your na""me; read name; echo hello $name; exit 3'; echo status $?
		"$0" run -key k -- sh -c 'trap "echo inter""rupted; exit 4" INT; echo read""y; while :; do sleep 0.05; done'; echo status $?
		echo and yo""u; read name; echo goodbye $name`)
	c.sees(t, "your name")
	held(t, locker, "k")
	c.types(t, "\x1aAda\n")
	c.sees(t, "hello Ada")
	c.sees(t, "status 3")
	c.sees(t, "ready")
	c.types(t, "\x03")
	c.sees(t, "interrupted")
	c.sees(t, "status 4")
	c.sees(t, "and you")
	c.types(t, "Bob\n")
	c.sees(t, "goodbye Bob")
	mustBeFree(t, locker, "k")
}

func TestDemoInColour(t *testing.T) {
	for _, c := range []struct {
		env    string
		colour bool
	}{{"NO_COLOR=", true}, {"NO_COLOR=1", false}, {"TERM=dumb", false}} {
		term := onTerminal(t, []string{"NO_COLOR=", c.env}, `"$0" demo`)
		term.sees(t, "broken")
		if got := strings.Contains(term.screen.String(), "\x1b["); got != c.colour {
			t.Errorf("with %s: colour is %v:\n%s", c.env, got, term.screen)
		}
	}
}
