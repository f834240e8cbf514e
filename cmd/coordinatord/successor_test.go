package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
)

// TestC05_ALostWitnessHasASuccessor: a successor that begins too low is refused as a witness
// that went back, and one that begins above grants nothing until whatever the lost one
// granted last is over.
func TestC05_ALostWitnessHasASuccessor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 2 {
		p := r.serve()
		p.ready()
		require.Equal(t, 0, p.stop())
	}
	succeed := func(above string) {
		t.Helper()
		kept := filepath.Join(r.root, "kept")
		require.NoError(t, os.RemoveAll(kept))
		require.NoError(t, os.Mkdir(kept, 0o700))
		for _, name := range []string{authorityKey, registryFile} {
			copyFile(t, filepath.Join(r.witnessDir(), name), filepath.Join(kept, name))
		}
		r.restartWitness(func(dir string) {
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Rename(kept, dir))
			ok(t, witnessd, "init", "--state", dir, "--above", above, "--coordinator", r.report.CoordinatorID, "--witness-id", r.ctx.WitnessID.String())
		})
	}
	succeed("1,1")
	p := r.serve()
	require.Equal(t, daemon.ExitRolledBack, p.ends(), p.output())
	require.Contains(t, p.output(), "installed epoch 2 and activation 2")

	succeed("1002,1002")
	p = r.serve()
	p.says("waiting for the lease of activation 1002 at epoch 1002")
	epoch, activation := p.authority()
	require.Equal(t, 1003, epoch)
	require.Equal(t, 1003, activation)
	r.objectives(3)
}
