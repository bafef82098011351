//go:build unix

package conformance

import (
	"os"
	"syscall"
)

// stop suspends a process as if its machine had been; false: not possible here.
func stop(p *os.Process) bool { return p.Signal(syscall.SIGSTOP) == nil }

func resume(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
