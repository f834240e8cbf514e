package main

import "syscall"

// daemonAttr gives a daemon its own process group and ends it when this program dies,
// however that happens.
func daemonAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
