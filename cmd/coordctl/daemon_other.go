//go:build !linux

package main

import "syscall"

// daemonAttr gives a daemon its own process group. The daemons do not serve here and say
// so, so there is nothing to end when this program dies.
func daemonAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
