// Package vterm draws what a program writes to a terminal, for tests.
package vterm

import (
	"io"
	"sync"

	"github.com/charmbracelet/x/vt"
)

// An Emulator draws what is written to it; several goroutines may use it. What is read from it is
// what a terminal answers to questions.
type Emulator struct {
	mu  sync.Mutex
	emu *vt.Emulator
}

// New makes a screen of so many columns and rows.
func New(width, height int) *Emulator { return &Emulator{emu: vt.NewEmulator(width, height)} }

// Write draws. It does not fail.
func (e *Emulator) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.emu.Write(p)
}

// Read gives what the terminal answers, and waits for it until Close.
func (e *Emulator) Read(p []byte) (int, error) { return e.emu.Read(p) }

// String is the screen as text, a line for each row.
func (e *Emulator) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.emu.String()
}

// Resize gives the screen another size.
func (e *Emulator) Resize(width, height int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.emu.Resize(width, height)
}

// Left reports whether the screen before the program is shown again, with its cursor.
func (e *Emulator) Left() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.emu.IsAltScreen() && !e.emu.CursorHidden()
}

// Close ends Read. The emulator's own Close may not be called beside it.
func (e *Emulator) Close() error { return e.emu.InputPipe().(io.Closer).Close() }
