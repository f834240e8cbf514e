package vterm

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
)

// A TTY is a terminal that a program in this process can write to, and the screen of it.
type TTY struct {
	// Slave is what the program has.
	Slave *os.File

	emu    *Emulator
	master *os.File
	copied chan struct{}

	mu  sync.Mutex
	raw bytes.Buffer // guarded by mu
}

// Open makes a terminal of so many columns and rows.
func Open(columns, rows int) (*TTY, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, err
	}
	t := &TTY{Slave: slave, emu: New(columns, rows), master: master, copied: make(chan struct{})}
	go func() {
		defer close(t.copied)
		io.Copy(t, master) //nolint:errcheck // it ends with the terminal
	}()
	if err := pty.Setsize(slave, &pty.Winsize{Rows: uint16(rows), Cols: uint16(columns)}); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Write takes what the terminal was sent.
func (t *TTY) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.raw.Write(p)
	return t.emu.Write(p)
}

// Text is what the screen shows, without the room at the ends of lines and below the last.
func (t *TTY) Text() string {
	lines := strings.Split(strings.ReplaceAll(t.emu.String(), "\r", ""), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// Raw is every byte that was written, line ends as the program wrote them.
func (t *TTY) Raw() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(t.raw.String(), "\r\n", "\n")
}

// Wait waits until ok holds for what the screen shows, at most so long, and reports whether it does.
func (t *TTY) Wait(most time.Duration, ok func(text string) bool) bool {
	for end := time.Now().Add(most); !ok(t.Text()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Shows is Wait for a text that is to be shown.
func (t *TTY) Shows(most time.Duration, text string) bool {
	return t.Wait(most, func(shown string) bool { return strings.Contains(shown, text) })
}

// Hangup closes the program's side and waits until all that it wrote is there.
func (t *TTY) Hangup() {
	t.Slave.Close()
	<-t.copied
}

// Close gives everything back.
func (t *TTY) Close() {
	t.Hangup()
	t.master.Close()
	t.emu.Close() //nolint:errcheck // nobody reads from it
}
