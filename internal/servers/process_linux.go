package servers

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
)

const (
	canStart    = true
	sigStop     = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
)

// childAttr makes the kernel kill a server when this process ends without
// having done so: by SIGKILL, or by the panic of go test -timeout. A group of
// its own keeps an interrupt from the terminal away from it until then.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// stopped reads the state that follows the command's name in parentheses.
func stopped(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	after := stat[bytes.LastIndexByte(stat, ')')+1:]
	return bytes.HasPrefix(after, []byte(" T"))
}
