// Package term knows what may be written to the stream at hand: whether it is a terminal and how wide,
// and whether colours are wanted there. It paints words and lays out tables for it.
//
// No meaning is by colour alone: what is painted says the same without.
package term

import (
	"io"
	"os"

	"github.com/creack/pty"
)

// Size gives the columns and rows of the terminal that w writes to; ok says that it is one.
func Size(w io.Writer) (columns, rows int, ok bool) {
	f, is := w.(*os.File)
	if !is {
		return 0, 0, false
	}
	rows, columns, err := pty.Getsize(f)
	if err != nil {
		return 0, 0, false
	}
	return columns, rows, true
}

// Is reports whether w writes to a terminal.
func Is(w io.Writer) bool {
	_, _, ok := Size(w)
	return ok
}

// Smart reports whether w is a terminal on which what was written can be taken back: one whose type is
// known and has a cursor. env gives the environment, as os.Getenv does.
func Smart(w io.Writer, env func(string) string) bool {
	kind := env("TERM")
	return Is(w) && kind != "" && kind != "dumb"
}
