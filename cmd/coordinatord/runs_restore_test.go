package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/durable"
)

// stranger is a context of the same key that has seen nothing of this coordinator yet.
func (r *ownerRig) stranger() {
	r.t.Helper()
	dir, err := os.MkdirTemp(r.root, "stranger")
	require.NoError(r.t, err)
	require.NoError(r.t, durable.MkdirPrivate(dir))
	file := filepath.Join(dir, "context.toml")
	require.NoError(r.t, r.ctx.Save(file))
	r.ctx, err = client.LoadContext(file)
	require.NoError(r.t, err)
}

// A coordinator that is restored from a backup does not know of runs that were. What still
// lives under them is given up, and a command that is sent again starts nothing again
// (protocol.md [D-24], links.md [D-45] [D-47]).
func TestC09_ARestoredCoordinatorStartsNothingTwice(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	p := r.serve()
	p.ready()
	c := r.dial()
	s, lines := r.counting(c)
	c.Close()
	require.Equal(t, 0, p.stop())
	backup := filepath.Join(r.root, "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(r.dir)))

	p = r.serve()
	p.ready()
	c = r.dial()
	r.send(c, s.cmd)
	require.Equal(t, frames.RunCompleted, r.ended(c, s).State)
	living := r.begun(c, forever("echo living"))
	c.Close()
	require.Equal(t, 0, p.stop())
	require.Equal(t, 1, lines())

	for _, name := range []string{"log", "state.db"} {
		require.NoError(t, os.RemoveAll(filepath.Join(r.dir, name)))
		require.NoError(t, os.Rename(filepath.Join(backup, name), filepath.Join(r.dir, name)))
	}
	r.tighten()
	p = r.serve()
	p.ready()
	require.Eventually(t, func() bool { // what nobody knows of is given up and killed
		look := r.look()
		defer look.Close()
		err := look.ReadOutput(t.Context(), frames.BindingID(living.PendingBindingID), 0, 0, true, func(uint64, []byte) error { return nil })
		return err == nil // the output ends because the process did
	}, waitFor, tick)

	r.stranger()
	c = r.dial()
	defer c.Close()
	r.send(c, s.cmd)
	require.Equal(t, frames.OperationSucceeded, r.result(c, s.op).State, "the owner remembers")
	run := r.ended(c, s)
	require.Equal(t, frames.RunCompleted, run.State, "its CLOSED was kept")
	require.Equal(t, 1, lines(), "and it was not started again")
	gap := 0
	for _, m := range r.records(c) {
		if sig, ok := m.(*frames.Signal); ok && sig.WorkSessionID == s.WorkSessionID && sig.Kind == frames.SignalEvidenceGap {
			gap++
		}
	}
	require.Equal(t, 1, gap, "facts that were acknowledged are gone, and nobody hides it")
}

// tighten gives restored files the modes that a state directory has.
func (r *ownerRig) tighten() {
	r.t.Helper()
	require.NoError(r.t, filepath.WalkDir(r.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSocket != 0 {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	}))
}
