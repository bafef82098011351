//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// passedOn are the signals that run passes on to its command.
var passedOn = []os.Signal{os.Interrupt, syscall.SIGTERM}

// endings are the signals that end the demo early.
var endings = passedOn

// processGroup is a command. Here it cannot be asked to end, and what it started is out of reach.
type processGroup struct{ cmd *exec.Cmd }

func startGroup(cmd *exec.Cmd) (*processGroup, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &processGroup{cmd: cmd}, nil
}

func (g *processGroup) foregone() {}

func (g *processGroup) signal(s os.Signal) {
	if g.cmd.Process.Signal(s) != nil {
		_ = g.cmd.Process.Kill()
	}
}

func (g *processGroup) end(exited <-chan struct{}, _ time.Duration) {
	_ = g.cmd.Process.Kill()
	<-exited
}

func (g *processGroup) status() int { return g.cmd.ProcessState.ExitCode() }
