//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that run passes on to its command.
var passedOn = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// endings are the signals that end the demo early.
var endings = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM}

// processGroup is a command and what it started.
type processGroup struct {
	cmd      *exec.Cmd
	terminal int // the file descriptor of the terminal that it was given; -1: none
}

// startGroup starts cmd in a process group of its own, to which the terminal is handed if paddock has it: a command in the
// background could not ask for a password. Ctrl-Z is switched off for both. It would stop the command alone, and nobody
// would be there to let it go on; stopped together they would outlive the lease.
func startGroup(cmd *exec.Cmd) (*processGroup, error) {
	signal.Ignore(syscall.SIGTSTP) // the command inherits it
	g := &processGroup{cmd: cmd, terminal: -1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if stdin := int(os.Stdin.Fd()); foreground(stdin) {
		g.terminal = stdin
		cmd.SysProcAttr.Foreground = true
		cmd.SysProcAttr.Ctty = stdin
	}
	endWithParent(cmd.SysProcAttr)
	runtime.LockOSThread() // the death that a child is told of is that of the thread which started it
	if err := cmd.Start(); err != nil {
		g.foregone()
		return nil, err
	}
	return g, nil
}

// foreground reports whether fd is a terminal that this process may read from.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// foregone takes the terminal back.
func (g *processGroup) foregone() {
	if g.terminal < 0 {
		return
	}
	signal.Ignore(syscall.SIGTTOU) // what a process in the background gets for it
	_ = unix.IoctlSetPointerInt(g.terminal, unix.TIOCSPGRP, unix.Getpgrp())
	signal.Reset(syscall.SIGTTOU)
}

// signal sends s to the command and what it started.
func (g *processGroup) signal(s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-g.cmd.Process.Pid, n)
	}
}

// alive reports whether any process of the group is left. One that ended and that nobody has waited for counts.
func (g *processGroup) alive() bool { return syscall.Kill(-g.cmd.Process.Pid, 0) == nil }

// end ends the group, in the end by force, and returns when the command, which closes exited, and what it started are gone.
func (g *processGroup) end(exited <-chan struct{}, grace time.Duration) {
	g.signal(syscall.SIGTERM)
	g.signal(syscall.SIGCONT) // a stopped process would not hear of it
	over := time.NewTimer(grace)
	defer over.Stop()
	select {
	case <-exited:
	case <-over.C:
		g.signal(syscall.SIGKILL)
		<-exited
		return
	}
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for g.alive() {
		select {
		case <-look.C:
		case <-over.C:
			g.signal(syscall.SIGKILL)
			return
		}
	}
}

// status is what a shell would make of the command's end.
func (g *processGroup) status() int {
	if w, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return exitSignal + int(w.Signal())
	}
	return g.cmd.ProcessState.ExitCode()
}
