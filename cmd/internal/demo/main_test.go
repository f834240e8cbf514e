package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
)

func TestMain(m *testing.M) { os.Exit(docsh.Main(m)) }

// TestDemo runs what `make demo` runs. The demo fails at the first thing that is not as
// it says, and what the README shows of it is what it prints.
func TestDemo(t *testing.T) {
	bin, err := docsh.Programs()
	require.NoError(t, err)
	printed := "\n" + said(t, func() error { return run(bin) })
	printed = regexp.MustCompile(`/\S*/coord-demo-[^/\s]*/`).ReplaceAllString(printed, "") // its directory
	blocks, err := docsh.Read("../../../README.md")
	require.NoError(t, err)
	lines := 0
	for _, b := range blocks {
		if b.Lang != "console" {
			continue
		}
		for line := range strings.Lines(b.Text) {
			if line = strings.TrimSpace(line); line != "" {
				lines++
				require.Regexp(t, alike(line), printed, "README.md shows a line that the demo did not print")
			}
		}
	}
	require.Greater(t, lines, 10)
}

// said is what a function prints to standard output, which is passed on.
func said(t *testing.T, f func() error) string {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	stdout, all := os.Stdout, new(bytes.Buffer)
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(stdout, all), read)
		done <- err
	}()
	os.Stdout = write
	err = f()
	os.Stdout = stdout
	require.NoError(t, write.Close())
	require.NoError(t, <-done)
	require.NoError(t, err)
	return all.String()
}

// varies is what differs from run to run: ids, digests, numbers, and what the document leaves out.
var varies = regexp.MustCompile(`…|[0-9a-f]{8,}|[0-9]+`)

// alike matches a whole line that says the same of another run.
func alike(line string) *regexp.Regexp {
	pattern := varies.ReplaceAllStringFunc(regexp.QuoteMeta(line), func(s string) string {
		switch {
		case s == "…":
			return ".*"
		case len(s) >= 8:
			return "[0-9a-f]+"
		}
		return "[0-9]+"
	})
	return regexp.MustCompile(`\n *` + pattern + ` *\n`)
}
