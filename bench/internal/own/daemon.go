package own

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"coordinator/bench/internal/measure"
)

// keptLines bounds what is kept of a daemon's output.
const keptLines = 1000

// A line is one line of a daemon's output, and when it came.
type line struct {
	text string
	at   time.Time
}

// A daemon is a running program whose output is read line by line.
type daemon struct {
	cmd    *exec.Cmd
	name   string
	ended  chan struct{} // closed once the process has ended and its output is read
	waited error         // set before ended is closed

	mu    sync.Mutex
	lines []line        // guarded by mu; the latest
	grown chan struct{} // holds one element when there are more
}

// startDaemon starts a program and does not wait for it.
func startDaemon(env []string, program string, args ...string) (*daemon, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	d := &daemon{cmd: exec.Command(program, args...), name: filepath.Base(program), ended: make(chan struct{}), grown: make(chan struct{}, 1)}
	d.cmd.Env = append(os.Environ(), env...)
	d.cmd.Stdout, d.cmd.Stderr = write, write
	exit, err := measure.Spawn(d.cmd)
	write.Close()
	if err != nil {
		read.Close()
		return nil, err
	}
	go func() {
		defer close(d.ended)
		defer read.Close()
		d.read(read)
		d.waited = <-exit
	}()
	return d, nil
}

func (d *daemon) read(r io.Reader) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		d.mu.Lock()
		if len(d.lines) == keptLines {
			d.lines = d.lines[:copy(d.lines, d.lines[1:])]
		}
		d.lines = append(d.lines, line{in.Text(), time.Now()})
		d.mu.Unlock()
		select {
		case d.grown <- struct{}{}:
		default:
		}
	}
}

// says waits for a line that contains what, later than after.
func (d *daemon) says(ctx context.Context, what string, after time.Time) (line, error) {
	for {
		if l, ok := d.find(what, after); ok {
			return l, nil
		}
		select {
		case <-d.grown:
		case <-d.ended:
			if l, ok := d.find(what, after); ok {
				return l, nil
			}
			return line{}, fmt.Errorf("%s ended (%v) before it said %q:\n%s", d.name, d.waited, what, d.output())
		case <-ctx.Done():
			return line{}, fmt.Errorf("%s has not said %q: %w\n%s", d.name, what, context.Cause(ctx), d.output())
		}
	}
}

func (d *daemon) find(what string, after time.Time) (line, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range slices.Backward(d.lines) { // the latest, where several do
		if l.at.After(after) && strings.Contains(l.text, what) {
			return l, true
		}
	}
	return line{}, false
}

// output is the end of what the daemon said.
func (d *daemon) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, l := range d.lines[max(0, len(d.lines)-20):] {
		b.WriteString("  " + l.text + "\n")
	}
	return b.String()
}

func (d *daemon) pid() int { return d.cmd.Process.Pid }

// kill is a crash.
func (d *daemon) kill() {
	d.cmd.Process.Kill() //nolint:errcheck // it may have ended by itself
	<-d.ended
}
