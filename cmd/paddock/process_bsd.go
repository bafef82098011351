//go:build darwin || freebsd || netbsd || openbsd || dragonfly

package main

import "syscall"

// endWithParent: these systems do not tell a process of its parent's death.
func endWithParent(*syscall.SysProcAttr) {}
