//go:build !linux

package main

import "syscall"

// daemonAttr gives a daemon its own process group. Only Linux can tie its life to this
// program's.
func daemonAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
