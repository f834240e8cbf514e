package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/progress"
	"coordinator/server/backup"
	"coordinator/server/store"
)

// A teller is where a command says what goes on: in lines, and to people who look on how far a
// step has come.
type teller struct {
	out io.Writer // of lines
	bar *progress.Bar
}

// newTeller is that of a command whose lines go to out.
func newTeller(c *cobra.Command, output string, out io.Writer) *teller {
	bar := progress.New(c.ErrOrStderr(), progress.Options{Off: output == "json"})
	return &teller{out: bar.Over(out), bar: bar}
}

func (t *teller) line(text string) { fmt.Fprintln(t.out, text) }

func (t *teller) advance(a store.Advance) { t.bar.Tell(a.Step, a.Unit, a.Done, a.Total) }

// quietly is a teller without the lines.
func (t *teller) quietly() *teller { return &teller{out: io.Discard, bar: t.bar} }

const (
	// cutLine begins the line in which a child says how far the store has come, and advanceLine
	// those in which it says how far it has come with that.
	cutLine     = "cut: "
	advanceLine = "advance: "
	// advanceEvery is the time between two of those.
	advanceEvery = 100 * time.Millisecond
	// advanceFlag makes a child write them.
	advanceFlag = "tell-advance"
)

// advances writes, now and then, the lines in which a child says how far it has come.
func advances(out io.Writer) func(store.Advance) {
	var last time.Time
	step := ""
	return func(a store.Advance) {
		now := time.Now()
		if a.Step == step && now.Sub(last) < advanceEvery {
			return
		}
		last, step = now, a.Step
		if b, err := json.Marshal(a); err == nil {
			fmt.Fprintf(out, "%s%s\n", advanceLine, b)
		}
	}
}

// A childReader passes a child's lines on and keeps those that are for this program.
type childReader struct {
	tell *teller
	line []byte
	cut  *backup.Cut
}

// Write is that of an io.Writer.
func (r *childReader) Write(p []byte) (int, error) {
	r.line = append(r.line, p...)
	for {
		end := bytes.IndexByte(r.line, '\n')
		if end < 0 {
			return len(p), nil
		}
		if err := r.take(r.line[:end+1]); err != nil {
			return 0, err
		}
		r.line = r.line[end+1:]
	}
}

func (r *childReader) take(line []byte) error {
	if text, ok := bytes.CutPrefix(line, []byte(cutLine)); ok {
		r.cut = new(backup.Cut)
		return json.Unmarshal(text, r.cut)
	}
	if text, ok := bytes.CutPrefix(line, []byte(advanceLine)); ok {
		var a store.Advance
		err := json.Unmarshal(text, &a)
		r.tell.advance(a)
		return err
	}
	_, err := r.tell.out.Write(line)
	return err
}
