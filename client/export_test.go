package client

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// exampleT stands in for a test in runnable examples, which have none.
type exampleT struct {
	testing.TB
	cleanups []func()
}

func (e *exampleT) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (e *exampleT) FailNow()                          { panic("failed") }
func (e *exampleT) Helper()                           {}
func (e *exampleT) Context() context.Context          { return context.Background() }
func (e *exampleT) Cleanup(f func())                  { e.cleanups = append(e.cleanups, f) }

func (e *exampleT) TempDir() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	e.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// An ExampleCoordinator serves runnable examples.
type ExampleCoordinator struct {
	t *exampleT
	w *world
	m *model
	l *ledger
}

// NewExampleCoordinator begins with three events of two objectives.
func NewExampleCoordinator() *ExampleCoordinator {
	t := &exampleT{}
	w := newWorld(t)
	e := &ExampleCoordinator{t: t, w: w, m: newModel(w), l: newLedger(w)}
	for i, object := range []byte{1, 2, 1} {
		e.m.appendLocked(uint64(i+1), object)
	}
	return e
}

// Context is what a context.toml would hold.
func (e *ExampleCoordinator) Context() *Context { return e.w.pins }

// Following serves what is followed; Write appends an event and Cut ends the connection.
func (e *ExampleCoordinator) Following() Options {
	o := e.w.options(e.m.serve)
	o.Offered, o.Clock = 0x0f, &hasty{Manual: e.w.clock}
	return o
}

// Write appends an event.
func (e *ExampleCoordinator) Write(seq uint64, object byte) {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.m.appendLocked(seq, object)
}

// Cut ends the connection of who follows.
func (e *ExampleCoordinator) Cut() { e.m.drop() }

// Commands serves commands; the reply to the first is lost.
func (e *ExampleCoordinator) Commands() Options {
	e.l.lose = func(step int) string {
		if step == 2 {
			return "committed"
		}
		return ""
	}
	o := e.w.options(e.l.serve)
	o.Clock = &hasty{Manual: e.w.clock}
	return o
}

// Close ends everything.
func (e *ExampleCoordinator) Close() {
	e.w.wg.Wait()
	for i := len(e.t.cleanups) - 1; i >= 0; i-- {
		e.t.cleanups[i]()
	}
}
