// Package progress shows people how far something has come that takes long: one line on standard error,
// when that is a terminal and the work has lasted half a second, which is gone before anything else is
// written there.
//
// What works reports by two stores of a number, as often as it likes; the line is drawn by a goroutine
// that End joins. It knows nothing of what is done.
package progress

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"coordinator/cmd/internal/term"
	"coordinator/internal/clock"
)

const (
	// after is how long work must last before anything is shown of it: what is over sooner would
	// only flicker.
	after = 500 * time.Millisecond
	// every is the time between two drawings.
	every = 100 * time.Millisecond
)

// Options are the surroundings of a [Bar].
type Options struct {
	// Clock times the line. Nil is the machine's.
	Clock clock.Clock
	// Env gives the environment. Nil is os.Getenv.
	Env func(string) string
	// Off shows nothing: what is written is read by a program.
	Off bool
}

// A Bar is the line of one command. Its methods may be called from several goroutines; they do
// nothing where nothing is to be shown.
type Bar struct {
	w     io.Writer
	clock clock.Clock
	on    bool

	mu     sync.Mutex
	step   *step         // guarded by mu: what goes on; nil before the first
	drawn  bool          // guarded by mu: the line is on the terminal
	quit   chan struct{} // guarded by mu: closed by End; nil while nobody draws
	joined chan struct{} // guarded by mu
}

// A step is a part of the work with a measure of its own.
type step struct {
	what, unit  string
	began       time.Duration
	done, total atomic.Int64
}

// New makes the bar that is shown on w, if that is a terminal on which a line can be taken back.
func New(w io.Writer, o Options) *Bar {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Env == nil {
		o.Env = os.Getenv
	}
	return &Bar{w: w, clock: o.Clock, on: !o.Off && term.Smart(w, o.Env)}
}

// On reports whether anything is ever shown.
func (b *Bar) On() bool { return b.on }

// Report says how far a step has come: done of total, which is not known where it is zero.
type Report func(done, total int64)

// Begin begins a step and gives what reports on it. unit is what is counted, in the plural; empty
// means bytes. The step before it has ended. The report must not be used after End.
func (b *Bar) Begin(what, unit string) Report {
	if !b.on {
		return func(int64, int64) {}
	}
	s := &step{what: what, unit: unit, began: b.clock.Now().Boot}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.step = s
	if b.quit == nil {
		b.quit, b.joined = make(chan struct{}), make(chan struct{})
		go b.draw(b.clock.NewTimer(after), b.quit, b.joined)
	}
	return func(done, total int64) {
		s.done.Store(done)
		s.total.Store(total)
	}
}

// Of is [Bar.Begin] for bytes.
func (b *Bar) Of(what string) func(done, of int64) { return b.Begin(what, "") }

// Tell reports on the step of that name, and begins it where another one goes on.
func (b *Bar) Tell(what, unit string, done, total int64) {
	if !b.on {
		return
	}
	b.mu.Lock()
	s := b.step
	same := s != nil && b.quit != nil && s.what == what && s.unit == unit
	b.mu.Unlock()
	if !same {
		b.Begin(what, unit)(done, total)
		return
	}
	s.done.Store(done)
	s.total.Store(total)
}

// End takes the line away. A step that begins later shows it again, after its time.
func (b *Bar) End() {
	b.mu.Lock()
	quit, joined := b.quit, b.joined
	b.quit = nil
	b.mu.Unlock()
	if quit == nil {
		return
	}
	close(quit)
	<-joined
	b.mu.Lock()
	defer b.mu.Unlock()
	b.takeAwayLocked()
}

// Over is w for what is written while the line may be there: it is taken away first, and comes back.
func (b *Bar) Over(w io.Writer) io.Writer {
	if !b.on {
		return w
	}
	return &over{b, w}
}

type over struct {
	b *Bar
	w io.Writer
}

// Write is that of an io.Writer.
func (o *over) Write(p []byte) (int, error) {
	o.b.mu.Lock()
	defer o.b.mu.Unlock()
	o.b.takeAwayLocked()
	return o.w.Write(p)
}

// draw draws whenever the timer fires, until quit is closed.
func (b *Bar) draw(timer clock.Timer, quit <-chan struct{}, joined chan<- struct{}) {
	defer close(joined)
	defer timer.Stop()
	for {
		select {
		case <-quit:
			return
		case <-timer.C():
			timer.Reset(every)
			b.show()
		}
	}
}

func (b *Bar) show() {
	columns, _, ok := term.Size(b.w)
	if !ok {
		return // it has gone
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.step
	line := s.line(b.clock.Now().Boot-s.began, columns-1) // the last column would begin a new line
	b.drawn = true
	io.WriteString(b.w, "\r"+line+eraseRest) //nolint:errcheck // it is for people who look on
}

// eraseRest erases from the cursor to the end of the line.
const eraseRest = "\x1b[K"

func (b *Bar) takeAwayLocked() {
	if !b.drawn {
		return
	}
	b.drawn = false
	io.WriteString(b.w, "\r"+eraseRest) //nolint:errcheck // as above
}
