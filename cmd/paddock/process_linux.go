package main

import "syscall"

// endWithParent has the kernel end the command when paddock is killed: nobody would renew its lock any more.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
