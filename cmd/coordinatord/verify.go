package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/internal/durable"
	"coordinator/internal/shell"
	"coordinator/server/authority"
	"coordinator/server/backup"
	"coordinator/server/store"
)

// verifyReport is what verify prints with -o json.
type verifyReport struct {
	Dir string `json:"directory"`
	backup.Cut
}

// print writes the report for people or for programs.
func (r *verifyReport) print(w io.Writer, output, what string) error {
	if output == "json" {
		return daemon.PrintJSON(w, r)
	}
	_, err := fmt.Fprintf(w, "the %s is whole: coordinator %s up to event %d, commit %d, under epoch %d, activation %d\n",
		what, r.CoordinatorID, r.EventCut, r.Commit, r.Epoch, r.Activation)
	return err
}

func verifyCommand(state *string) *cobra.Command {
	var page, from, output string
	var inner, advance bool
	c := &cobra.Command{
		Use:   "verify",
		Short: "check a stopped coordinator's store, or a backup",
		Long: "verify reads every record of the log and every page and value of state.db. It\n" +
			"changes nothing and refuses while a coordinator runs on the store. With --backup it\n" +
			"checks a backup instead: every file's digest, that none is missing or added, and\n" +
			"then the store in it, which must end where the manifest says.",
		Example: "  coordinatord verify --state /var/lib/coordinator\n  coordinatord verify --backup /backup/coordinator-monday",
		RunE: func(c *cobra.Command, _ []string) error {
			var o store.Options
			if advance {
				o.Advance = advances(c.OutOrStdout())
			}
			if page != "" {
				return coded(store.CheckFileWith(page, o))
			}
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			told := c.OutOrStdout()
			if output == "json" {
				told = c.ErrOrStderr()
			}
			if from != "" {
				if *state != "" {
					return daemon.Usage("--state and --backup exclude each other")
				}
				m, err := verifyBackup(c.Context(), from, newTeller(c, output, told))
				if err != nil {
					return coded(err)
				}
				return (&verifyReport{from, m.Cut}).print(c.OutOrStdout(), output, "backup")
			}
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			if inner {
				return coded(inspectHere(dir, o, c.OutOrStdout()))
			}
			cut, err := verify(c.Context(), dir, newTeller(c, output, told))
			if err != nil {
				return coded(err)
			}
			return (&verifyReport{dir, *cut}).print(c.OutOrStdout(), output, "store")
		},
	}
	c.Flags().StringVar(&from, "backup", "", "check this backup instead of a state directory")
	c.Flags().StringVar(&page, "page-check", "", "check only the pages of this state.db file")
	c.Flags().BoolVar(&inner, "in-this-process", false, "check without a child process and without the store lock")
	c.Flags().BoolVar(&advance, advanceFlag, false, "say for the process that started this one how far it has come")
	for _, name := range []string{"page-check", "in-this-process", advanceFlag} {
		c.Flags().MarkHidden(name) //nolint:errcheck // the flag exists
	}
	daemon.AddOutput(c, &output)
	return c
}

// verify takes the store lock and checks in a child process, whose death by a
// damaged page is then still a report.
func verify(ctx context.Context, dir string, tell *teller) (*backup.Cut, error) {
	dir, lock, err := lockOffline(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Release() //nolint:errcheck // the process is ending
	defer tell.bar.End()
	return inspect(ctx, dir, tell)
}

// verifyBackup checks a backup from its first file to the rows in its store.
func verifyBackup(ctx context.Context, dir string, tell *teller) (*backup.Manifest, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	defer tell.bar.End()
	m, err := backup.Check(ctx, dir, tell.bar.Of("reading"))
	if err != nil {
		return nil, err
	}
	if problem := readable(dir); problem != "" {
		tell.line("warning: " + problem)
	}
	return m, agrees(ctx, m, dir, tell)
}

// readable says when others may read the authority key in a backup: a copy of it has the
// modes of whoever copied it.
func readable(dir string) string {
	in, derr := os.Stat(dir)
	key, kerr := os.Stat(filepath.Join(dir, backup.AuthorityFile))
	if derr != nil || kerr != nil || in.Mode().Perm()&0o011 == 0 || key.Mode().Perm()&0o044 == 0 {
		return ""
	}
	return fmt.Sprintf("%s has mode %04o: others may read who the coordinator is to its clients; run: chmod -R go= %s",
		filepath.Join(dir, backup.AuthorityFile), key.Mode().Perm(), shell.Quote(dir))
}

// agrees checks the store in dir, a backup or what was made from one, against its manifest.
// One of an older schema has its digests; its rows are judged by the start that migrates it.
func agrees(ctx context.Context, m *backup.Manifest, dir string, tell *teller) error {
	if m.Schema < store.Schema() {
		tell.line(fmt.Sprintf("the store has schema %d and is read by the start that migrates it to %d", m.Schema, store.Schema()))
		return nil
	}
	have, err := inspect(ctx, dir, tell)
	if err != nil {
		return err
	}
	if err := m.Agrees(*have); err != nil {
		return &backup.DamageError{Path: dir, Problem: "has another store than its manifest: " + err.Error()}
	}
	return nil
}

// inspectHere is the child's part of inspect.
func inspectHere(dir string, o store.Options, out io.Writer) error {
	o.Progress = func(line string) { fmt.Fprintln(out, line) }
	st, err := store.Inspect(dir, o)
	if err != nil {
		return err
	}
	b, err := json.Marshal(backup.CutOf(st, time.Time{}))
	if err == nil {
		_, err = fmt.Fprintf(out, "%s%s\n", cutLine, b)
	}
	return err
}

// inspect checks the whole store in dir in a child process and gives its end.
func inspect(ctx context.Context, dir string, tell *teller) (*backup.Cut, error) {
	said := &childReader{tell: tell}
	tell.bar.Begin("checking the store", "")
	if err := child(ctx, dir, said, "verify", "--in-this-process", "--state", dir); err != nil {
		return nil, err
	}
	if said.cut == nil {
		return nil, errors.New("check: the child said nothing")
	}
	return said.cut, nil
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
func pageCheck(ctx context.Context, path string, tell *teller) error {
	return child(ctx, path, &childReader{tell: tell}, "verify", "--page-check", path)
}

// child runs this program with args. What it finds in file comes back with its
// exit code; a death is damage.
func child(ctx context.Context, file string, out *childReader, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if out.tell.bar.On() {
		args = append(args, "--"+advanceFlag)
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
