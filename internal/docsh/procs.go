package docsh

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A proc is a live process that a shell started.
type proc struct {
	pid     int
	command string
}

// left lists what still lives of a process group, and of the processes that inherited
// mark, an assignment, in their environment. Zombies have ended.
func left(group int, mark string) []proc {
	var out []proc
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range names {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil || pid == os.Getpid() {
			continue // ended meanwhile
		}
		// state, ppid and pgrp follow the name, which is in parentheses and may hold some
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 3 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		if f[2] != strconv.Itoa(group) {
			env, _ := os.ReadFile(dir + "/environ")
			if !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+mark+"\x00")) {
				continue
			}
		}
		line, _ := os.ReadFile(dir + "/cmdline")
		out = append(out, proc{pid, strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))})
	}
	return out
}

// grace is how long a daemon has to end after SIGTERM.
const grace = 15 * time.Second

// end tells all that is left to end, and kills what does not.
func end(group int, mark string) {
	signal := syscall.SIGTERM
	deadline := time.Now().Add(grace)
	told := make(map[int]bool)
	for {
		procs := left(group, mark)
		if len(procs) == 0 {
			return
		}
		if signal == syscall.SIGTERM && time.Now().After(deadline) {
			signal = syscall.SIGKILL
			clear(told)
			deadline = deadline.Add(grace)
		} else if time.Now().After(deadline) {
			return // not even SIGKILL: a process in the kernel's hands
		}
		for _, p := range procs {
			if !told[p.pid] {
				told[p.pid] = true
				_ = syscall.Kill(p.pid, signal)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}
