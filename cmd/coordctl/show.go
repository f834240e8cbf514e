package main

import (
	"io"
	"sync"

	"coordinator/cmd/internal/runs"
	"coordinator/frames"
)

// A shower shows a run to its end: the bytes of its output to people, and with -o json one
// event a line. Its methods may be called from several goroutines.
type shower struct {
	// output takes the bytes of the output, from the first on.
	output io.Writer

	mu     sync.Mutex
	emit   func(any) error  // prints an event; nil where none are shown
	offset uint64           // guarded by mu: of the next byte of output
	last   *frames.RunState // owned by who tells states
}

func (a *app) shower() *shower {
	if !a.structured() {
		return &shower{output: a.stdout}
	}
	s := &shower{emit: a.emitItem}
	s.output = s
	return s
}

// event writes one line.
func (s *shower) event(name string, o object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eventLocked(name, o)
}

func (s *shower) eventLocked(name string, o object) error {
	if s.emit == nil {
		return nil
	}
	if err := s.emit(append(object{{"event", name}}, o...)); err != nil {
		return &runs.SinkError{Cause: err}
	}
	return nil
}

// Write makes an event of output.
func (s *shower) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.eventLocked("output", object{{"offset", s.offset}, {"data", b}}); err != nil {
		return 0, err
	}
	s.offset += uint64(len(b))
	return len(b), nil
}

func (s *shower) started(r *started) error {
	return s.event("started", append(object{{"operation_id", r.op.String()}}, r.ids()...))
}

// state tells the run's state when it has changed.
func (s *shower) state(state frames.RunState) error {
	if s.last != nil && *s.last == state {
		return nil
	}
	s.last = &state
	return s.event("state", object{{"state", state.String()}})
}

// ended tells the end, with the exit status or the signal as far as either is known.
func (s *shower) ended(state frames.RunState, closed frames.Closed) error {
	var status, signal any
	switch {
	case closed.Known && closed.Status < 0:
		signal = -int64(closed.Status)
	case closed.Known:
		status = closed.Status
	}
	return s.event("ended", object{{"state", state.String()}, {"exit_status", status}, {"signal", signal}})
}
