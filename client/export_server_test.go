package client

import (
	"crypto/rand"
	"fmt"
	"path/filepath"

	"coordinator/frames"
	"coordinator/handshake"
)

// Fatalf ends an example.
func (e *exampleT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// An ExampleServer is a real coordinator on real files and sockets for runnable examples. A
// program finds its own through LoadContext.
type ExampleServer struct {
	t    *exampleT
	s    *served
	keys []*handshake.Key
}

// NewExampleServer starts it, with a key for each of so many machines and one for whoever has the
// context file.
func NewExampleServer(machines int) *ExampleServer {
	t := &exampleT{}
	e := &ExampleServer{t: t, s: serve(t)}
	for n := range machines {
		e.keys = append(e.keys, key(t))
		e.s.enrol(e.keys[n], fmt.Sprintf("machine-%d", n), frames.AllScopes&^frames.ScopeAdmin)
	}
	pins := e.s.pins
	pins.KeyFile = filepath.Join(filepath.Dir(pins.Path), "client.ed25519")
	mine, err := handshake.CreateKey(pins.KeyFile, rand.Reader)
	if err != nil {
		t.Fatalf("%v", err)
	}
	e.s.enrol(mine, "context", frames.AllScopes&^frames.ScopeAdmin)
	e.s.restart() // with these keys
	if err := pins.Save(pins.Path); err != nil {
		t.Fatalf("%v", err)
	}
	return e
}

// ContextFile is the path of a context.toml, with the key beside it.
func (e *ExampleServer) ContextFile() string { return e.s.pins.Path }

// Context is what a context.toml would hold.
func (e *ExampleServer) Context() *Context { return e.s.pins }

// Options prove the key of one machine, with a memory of their own.
func (e *ExampleServer) Options(machine int) Options {
	o := e.s.options()
	o.Key, o.Offered = e.keys[machine], frames.CapObjectiveLifecycle|frames.CapWithoutOperations
	return o
}

// Restart is what a crash comes to: every connection is cut and another activation serves.
func (e *ExampleServer) Restart() { e.s.restart() }

// Close stops it and removes its files.
func (e *ExampleServer) Close() {
	for i := len(e.t.cleanups) - 1; i >= 0; i-- {
		e.t.cleanups[i]()
	}
}
