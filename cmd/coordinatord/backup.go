package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/server/backup"
)

// backupReport is what backup prints with -o json.
type backupReport struct {
	Backup string `json:"backup"`
	Online bool   `json:"online"`
	Bytes  int64  `json:"bytes"`
	*backup.Manifest
}

func backupCommand(state *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "backup DEST",
		Short: "copy a coordinator's state at one event cut into the new directory DEST",
		Long: "backup asks the coordinator that runs on the state directory for its files as of one\n" +
			"event cut and writes them to DEST, which must not exist and gets its name when all\n" +
			"of it is durable. A slow DEST slows down nothing but the backup. Where no\n" +
			"coordinator runs, its store is checked first and then copied.\n\n" +
			"A backup holds the authority key: whoever reads it can pretend to be the\n" +
			"coordinator to its clients. It never holds the link key or anything of the witness.",
		Example: "  coordinatord backup /backup/coordinator-monday --state /var/lib/coordinator",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			r, err := takeBackup(c.Context(), dir, args[0], newTeller(c, output, c.ErrOrStderr()))
			if err != nil {
				return coded(err)
			}
			return r.print(c.OutOrStdout(), output)
		},
	}
	daemon.AddOutput(c, &output)
	return c
}

// takeBackup makes the backup.
func takeBackup(ctx context.Context, dir, dest string, tell *teller) (*backupReport, error) {
	defer tell.bar.End()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	cfg, err := loadConfig(dir)
	if err != nil {
		return nil, err
	}
	target, err := backup.NewTarget(dest, dir, tell.line)
	if err != nil {
		return nil, err
	}
	taken, online, done, err := takeFiles(ctx, dir, tell)
	if err != nil {
		return nil, target.Abandon(err)
	}
	defer done()
	if taken.Cut.CoordinatorID != cfg.CoordinatorID.String() {
		return nil, target.Abandon(fmt.Errorf("the store is of coordinator %s, coordinator.toml of %s", taken.Cut.CoordinatorID, cfg.CoordinatorID))
	}
	if err := target.Fill(ctx, taken.Files(), dir, tell.bar.Of("writing")); err != nil {
		return nil, err
	}
	m, err := target.Finish(describe(taken.Cut, dir))
	if err != nil {
		return nil, err
	}
	if dest, err = filepath.Abs(dest); err != nil {
		return nil, err
	}
	return &backupReport{Backup: dest, Online: online, Bytes: m.Bytes(), Manifest: m}, nil
}

// takeFiles gets the files from the coordinator that runs on dir, or from the store itself
// when none does. The caller calls done when it has read them.
func takeFiles(ctx context.Context, dir string, tell *teller) (taken *backup.Taken, online bool, done func(), err error) {
	taken, err = backup.Take(ctx, filepath.Join(dir, backup.SocketFile), tell.bar.Of("the coordinator copies state.db"))
	if err == nil {
		return taken, true, taken.Close, nil
	}
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, false, nil, err
	}
	dir, lock, err := lockOffline(dir)
	var held *durable.HeldError
	if errors.As(err, &held) { // not to be stopped for that
		return nil, false, nil, fmt.Errorf("%w, or wait: a coordinator that starts gives a backup once it serves, and a verify or compact comes to its end", held)
	}
	if err != nil {
		return nil, false, nil, err
	}
	release := func() { lock.Release() } //nolint:errcheck // the process is ending
	cut, err := inspect(ctx, dir, tell.quietly())
	if err == nil {
		taken, err = backup.Offline(dir)
	}
	if err != nil {
		release()
		return nil, false, nil, err
	}
	taken.Cut = *cut
	taken.Cut.Time = time.Now().UTC().Truncate(time.Second)
	return taken, false, func() { taken.Close(); release() }, nil
}

// describe is the manifest's part that is not of the files.
func describe(cut backup.Cut, dir string) backup.Manifest {
	m := backup.Manifest{Cut: cut, Source: dir, Version: "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		m.Version = info.Main.Version
	}
	m.Host, _ = os.Hostname() // it is for people
	if key, err := handshake.LoadKey(filepath.Join(dir, linkKey)); err == nil {
		m.LinkKey = handshake.FormatPublicKey(key.Public())
	}
	return m
}

// print writes the report for people or for programs.
func (r *backupReport) print(w io.Writer, output string) error {
	if output == "json" {
		return daemon.PrintJSON(w, r)
	}
	how := "running"
	if !r.Online {
		how = "stopped"
	}
	_, err := fmt.Fprintf(w, "backup of the %s coordinator %s in %s\n"+
		"  it goes up to event %d, commit %d, under epoch %d, activation %d, at %s\n"+
		"  %d files, %d bytes; it holds the authority key: keep it as you keep the state directory\n",
		how, r.CoordinatorID, r.Backup, r.EventCut, r.Commit, r.Epoch, r.Activation, r.Time.Format(time.RFC3339), len(r.Files), r.Bytes)
	return err
}

// keyID is the id of a public key in its text form; empty when it is none.
func keyID(text string) string {
	key, err := handshake.ParsePublicKey(text)
	if err != nil {
		return ""
	}
	return handshake.FormatKeyID(handshake.KeyIDOf(key))
}
