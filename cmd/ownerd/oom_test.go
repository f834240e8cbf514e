//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/owner"
)

// TestTheKernelKillsAChildForItsMemory: a process takes more than its control group may have.
// The kernel kills it; the owner says that signal 9 ended it and what it had printed before,
// stays up, and runs the next one.
func TestTheKernelKillsAChildForItsMemory(t *testing.T) {
	group, kills := memoryGroup(t, 32<<20)
	dir, id := made(t)
	p := serveIn(t, dir, "")
	c := dial(t, id, 1, nil)
	other := c.spawn(stubborn(filepath.Join(t.TempDir(), "starts")))
	require.Equal(t, frames.EffectSucceeded, c.dispatch(other).State)

	// The child alone is in the group: it enters, speaks, and then reads without an end.
	a := c.spawn(&owner.Document{Argv: []string{"/bin/sh", "-c",
		fmt.Sprintf(`echo $$ > %s/cgroup.procs && echo before && exec tail /dev/zero`, group)}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	c.open(a)
	c.eventually("its end", func() bool { return c.end(a) != nil })
	require.Positive(t, kills(), "it was the kernel, and for memory")
	require.Equal(t, "before\r\n", c.read(a))
	require.Equal(t, frames.Closed{Known: true, Status: -int32(syscall.SIGKILL)}, c.closed(a))

	require.NoError(t, c.OpenFacts(t.Context(), c.cert.Guard(), binding(other), 0, 1000))
	c.eventually("its output", func() bool { return len(c.facts) > 4 })
	c.mu.Lock()
	require.Nil(t, c.end(other), "the other process does not notice")
	c.mu.Unlock()
	next := c.spawn(&owner.Document{Argv: []string{"/bin/sh", "-c", "exit 7"}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(next).State)
	c.open(next)
	c.eventually("its end", func() bool { return c.end(next) != nil })
	require.Equal(t, frames.Closed{Known: true, Status: 7}, c.closed(next))
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
}

// end is the fact that ends a binding, nil as long as there is none. c.mu is held.
func (p *peer) end(a *frames.EffectAttempt) *frames.TerminalSourceFact {
	for i := range p.facts {
		if f := &p.facts[i]; f.Source.BindingID == binding(a) && f.Kind == frames.FactClosed {
			return f
		}
	}
	return nil
}

// closed is what the end of a binding says.
func (p *peer) closed(a *frames.EffectAttempt) (end frames.Closed) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p.t, codec.DecodeImage(&end, p.end(a).Payload))
	return end
}

// setting writes one file of a control group, if it has it.
func setting(dir, name string, value int) bool {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	_, err = f.WriteString(strconv.Itoa(value))
	return err == nil && f.Close() == nil
}

// memoryGroup makes a control group with a limit of memory. kills tells how many processes in
// it the kernel has killed for it.
func memoryGroup(t *testing.T, limit int) (dir string, kills func() int) {
	t.Helper()
	for _, kind := range []struct{ root, limit, noSwap, events string }{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max", "memory.events"},                          // version 2
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness", "memory.oom_control"}, // version 1
	} {
		if _, err := os.Stat(filepath.Join(kind.root, "cgroup.procs")); err != nil {
			continue // no control group, whatever else is mounted there
		}
		dir = filepath.Join(kind.root, fmt.Sprintf("ownerd-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(dir) }) // it is empty then
		if !setting(dir, kind.limit, limit) {
			continue
		}
		setting(dir, kind.noSwap, 0) // where there is swap
		return dir, func() int {
			raw, err := os.ReadFile(filepath.Join(dir, kind.events))
			require.NoError(t, err)
			n := 0
			for line := range strings.Lines(string(raw)) {
				_, _ = fmt.Sscanf(line, "oom_kill %d", &n)
			}
			return n
		}
	}
	t.Skip("only root, with a memory controller that can be used, can have the kernel kill for memory")
	return "", nil
}
