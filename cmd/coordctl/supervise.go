package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"coordinator/cmd/internal/daemon"
	"coordinator/internal/clock"
)

const (
	firstBackoff = 250 * time.Millisecond
	maxBackoff   = 10 * time.Second
	// steadyAfter is how long a daemon must have run for its next death to count as a first one.
	steadyAfter = 30 * time.Second
	// heldTries is how often a lock that is held is waited for: a former instance may still
	// be dying.
	heldTries = 5
	// pipeGrace bounds the wait for a dead daemon's output.
	pipeGrace = 2 * time.Second
)

// exitMeanings say what a daemon's exit code tells, and whether starting it again as
// things are can help.
var exitMeanings = map[int]struct {
	text  string
	final bool
}{
	daemon.ExitUsage:       {"its command line is not understood; do the programs belong together?", true},
	daemon.ExitConfig:      {"its configuration, or the mode or owner of a file, is wrong", true},
	daemon.ExitHeld:        {"another instance holds its lock or socket", false},
	daemon.ExitCorrupt:     {"its store is damaged; nothing was replaced, restore it from a backup", true},
	daemon.ExitSchema:      {"its store was written by a newer version; use that version", true},
	daemon.ExitWitness:     {"the witness did not answer, or refused", false},
	daemon.ExitLeaseHeld:   {"another activation holds the lease", false},
	daemon.ExitFenced:      {"it lost its lease and fenced itself", false},
	daemon.ExitWriteFailed: {"a write or sync failed; what it was writing may or may not be stored", false},
	daemon.ExitRolledBack:  {"the witness went back in time; restore the witness's own store", true},
}

// A supervisor keeps one daemon running.
type supervisor struct {
	name, path string
	args       []string
	grace      time.Duration // from SIGTERM to SIGKILL
	clock      clock.Clock
	out        *lineSink
	say        func(format string, args ...any)
	onReady    func(line string) // each time the daemon prints its ready line; must not block
	stopping   chan struct{}     // closed by stop
	stopOnce   sync.Once

	mu   sync.Mutex
	proc *process // guarded by mu; the one that runs, or ran last
	dead bool     // guarded by mu; kill was asked for: start no more
}

// start runs the daemon until stop. The channel then gives nil; or, when the daemon
// cannot serve, why.
func (s *supervisor) start() <-chan error {
	end := make(chan error, 1)
	go func() { end <- s.loop() }()
	return end
}

// stop asks for the daemon's end.
func (s *supervisor) stop() { s.stopOnce.Do(func() { close(s.stopping) }) }

// kill ends the daemon at once.
func (s *supervisor) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	if s.proc != nil {
		s.proc.signal(syscall.SIGKILL)
	}
}

// pid is the daemon's process id, 0 before the first start.
func (s *supervisor) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// loop starts the daemon again each time it dies and starting it again can help.
func (s *supervisor) loop() error {
	backoff, held := firstBackoff, 0
	for {
		began := s.clock.Now().Boot
		p, err := s.launch()
		if err != nil {
			return err
		}
		if p == nil {
			return nil
		}
		select {
		case <-p.done:
		case <-s.stopping:
			s.finish(p)
			return nil
		}
		code, how := p.outcome()
		if code == daemon.ExitHeld {
			held++
		} else {
			held = 0
		}
		meaning, known := exitMeanings[code]
		if known && meaning.final || held >= heldTries {
			return fmt.Errorf("%s cannot serve: %s", s.name, how)
		}
		if s.clock.Now().Boot-began >= steadyAfter {
			backoff = firstBackoff
		}
		s.say("%s (pid %d) died: %s; starting it again in %v", s.name, p.cmd.Process.Pid, how, backoff)
		if !s.pause(backoff) {
			return nil
		}
		backoff = min(backoff*2, maxBackoff)
	}
}

// pause waits for d, or until stop; it reports whether to go on.
func (s *supervisor) pause(d time.Duration) bool {
	timer := s.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-s.stopping:
		return false
	}
}

// launch starts the daemon; nil when it is to be dead.
func (s *supervisor) launch() (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return nil, nil
	}
	p, err := startProcess(s.path, s.args, s.out.prefixed(s.name, s.onReady), s.out.prefixed(s.name, nil))
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.path, err)
	}
	s.proc = p
	return p, nil
}

// finish ends a process: politely, and when its grace is over not.
func (s *supervisor) finish(p *process) {
	p.signal(syscall.SIGTERM)
	timer := s.clock.NewTimer(s.grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C():
	}
	s.say("%s did not end within %v and is killed", s.name, s.grace)
	p.signal(syscall.SIGKILL)
	<-p.done
}

// A process is one run of a daemon.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has been reaped
	err  error         // of Wait; set before done is closed
}

// startProcess starts a daemon in a process group of its own, so that the terminal's
// Ctrl-C reaches only this program, and so that it dies with this program.
func startProcess(path string, args []string, stdout, stderr io.Writer) (*process, error) {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = daemonAttr()
	cmd.WaitDelay = pipeGrace
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the starting *thread* ends, so that thread
		// is kept until the daemon has gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// signal sends sig; a process that is gone already is what was wanted.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// outcome is how the process ended: its exit code, or -1 for a signal, and words for it.
func (p *process) outcome() (code int, how string) {
	st := p.cmd.ProcessState
	if st == nil {
		return -1, p.err.Error()
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -1, fmt.Sprintf("killed by signal %d (%v)", int(ws.Signal()), ws.Signal())
	}
	code = st.ExitCode()
	meaning := exitMeanings[code].text
	switch {
	case code == 0:
		meaning = "it ended by itself"
	case meaning == "":
		meaning = "see its last lines"
	}
	return code, fmt.Sprintf("exit code %d: %s", code, meaning)
}

// lineSink writes whole lines of several writers to one.
type lineSink struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu
}

// prefixed is a writer whose lines begin with name. onReady, unless nil, is given each
// line that begins with "ready", and must not block.
func (s *lineSink) prefixed(name string, onReady func(string)) io.Writer {
	return &lineWriter{sink: s, name: name, onReady: onReady}
}

// maxLine bounds what is kept of a line that does not end.
const maxLine = 16 << 10

type lineWriter struct {
	sink    *lineSink
	name    string
	onReady func(string)
	rest    []byte // a line not ended yet
}

// Write is called by one goroutine at a time, as package exec does.
func (l *lineWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		line, tail, ended := bytes.Cut(b, []byte("\n"))
		l.rest = append(l.rest, line[:min(len(line), maxLine-len(l.rest))]...)
		b = tail
		if ended {
			l.flush()
		}
	}
	return n, nil
}

func (l *lineWriter) flush() {
	line := printable(string(l.rest))
	l.rest = l.rest[:0]
	l.sink.mu.Lock()
	fmt.Fprintf(l.sink.w, "%s| %s\n", l.name, line)
	l.sink.mu.Unlock()
	if l.onReady != nil && (strings.HasPrefix(line, "ready ") || strings.HasPrefix(line, "ready:")) {
		l.onReady(line)
	}
}

// errNoTool says where a daemon's program was looked for.
var errNoTool = errors.New("not found beside coordctl nor in PATH")
