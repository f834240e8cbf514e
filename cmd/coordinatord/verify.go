package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/internal/durable"
	"coordinator/server/authority"
	"coordinator/server/store"
)

func verifyCommand(state *string) *cobra.Command {
	var page string
	var inner bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "check a stopped coordinator's store: its log, its pages, and that both agree",
		Long: "verify reads every record of the log and every page and value of state.db. It\n" +
			"changes nothing and refuses while a coordinator runs on the store.",
		RunE: func(c *cobra.Command, _ []string) error {
			if page != "" {
				return coded(store.CheckFile(page))
			}
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			if inner {
				progress := func(line string) { fmt.Fprintln(c.OutOrStdout(), line) }
				return coded(store.Verify(dir, store.Options{Progress: progress}))
			}
			return coded(verify(c.Context(), dir, c.OutOrStdout()))
		},
	}
	c.Flags().StringVar(&page, "page-check", "", "check only the pages of this state.db file")
	c.Flags().BoolVar(&inner, "in-this-process", false, "check without a child process and without the store lock")
	for _, name := range []string{"page-check", "in-this-process"} {
		c.Flags().MarkHidden(name) //nolint:errcheck // the flag exists
	}
	return c
}

// verify takes the store lock and checks in a child process, whose death by a
// damaged page is then still a report.
func verify(ctx context.Context, dir string, out io.Writer) error {
	dir, lock, err := lockOffline(dir)
	if err != nil {
		return err
	}
	defer lock.Release() //nolint:errcheck // the process is ending
	if err := child(ctx, dir, out, "verify", "--in-this-process", "--state", dir); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "the store is whole")
	return err
}

// lockOffline takes the lock of the store in dir, which no coordinator may run on, and
// gives the absolute path of dir.
func lockOffline(dir string) (string, *durable.Lock, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		return "", nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%w; --state names a coordinator's directory", err))
	}
	if err := hasStore(dir); err != nil {
		return "", nil, err
	}
	lock, err := authority.LockStore(dir)
	return dir, lock, err
}

// hasStore reports store.ErrNoStore for a directory without a trace of one, before
// a lock file is made there.
func hasStore(dir string) error {
	for _, name := range []string{"log", "state.db"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("%s: %w", dir, store.ErrNoStore)
}

// maxReport bounds what a child's complaint may be.
const maxReport = 8 << 10

// pageCheck runs the check of a state.db file in a child process, because a
// damaged page can end the process that reads it. A child that dies is the
// report.
func pageCheck(ctx context.Context, path string, out io.Writer) error {
	return child(ctx, path, out, "verify", "--page-check", path)
}

// child runs this program with args. What it finds in file comes back with its
// exit code; a death is damage.
func child(ctx context.Context, file string, out io.Writer, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	said := &limited{left: maxReport}
	cmd.Stdout, cmd.Stderr = out, said
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case !errors.As(err, &exit):
		return fmt.Errorf("check: %w", err)
	case exit.ExitCode() == daemon.ExitCorrupt:
		return daemon.Exit(daemon.ExitCorrupt, errors.New(said.line()))
	case exit.ExitCode() == daemon.ExitSchema:
		return daemon.Exit(daemon.ExitSchema, errors.New(said.line()))
	case exit.ExitCode() == daemon.ExitHeld:
		return daemon.Exit(daemon.ExitHeld, errors.New(said.line()))
	case exit.Exited():
		return daemon.Exit(daemon.ExitFailure, errors.New(said.line()))
	}
	return &store.CorruptError{File: file, Offset: -1, Problem: fmt.Sprintf("reading it ended the checking process (%v)", exit.ProcessState)}
}

// limited keeps the beginning of what is written to it.
type limited struct {
	kept []byte
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	l.kept = append(l.kept, p[:n]...)
	return len(p), nil
}

// line is the first line without the child's own name.
func (l *limited) line() string {
	s := string(l.kept)
	for i, r := range s {
		if r == '\n' {
			s = s[:i]
			break
		}
	}
	const name = "coordinatord: "
	if len(s) > len(name) && s[:len(name)] == name {
		s = s[len(name):]
	}
	return s
}
