package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/server/backup"
)

// TestOneBackupAtATimeIsGiven: whoever comes second is told, and who comes and goes disturbs
// nothing.
func TestOneBackupAtATimeIsGiven(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve("COORDINATOR_FAILPOINT=backup-cut=sleep:10m@2")
	p.ready()
	first, _ := r.backUp("first")
	held := launch(t, nil, coordinatord, "backup", filepath.Join(r.root, "held"), "--state", r.dir)
	p.says("failpoint sleeps")
	late := filepath.Join(r.root, "late")
	code, _, errs := run(t, coordinatord, "backup", late, "--state", r.dir)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, "another one is under way")
	absent(t, late)
	r.objectives(3) // commits go on beside it
	ok(t, coordinatord, "verify", "--backup", first)
	p.kill()
	require.Equal(t, daemon.ExitFailure, held.ends())
	require.Contains(t, held.output(), "without a word")
	absent(t, filepath.Join(r.root, "held"))

	p = r.serve()
	p.ready()
	for range 50 {
		c, err := net.Dial("unix", filepath.Join(r.dir, backup.SocketFile))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool { // once those have been noticed
		code, _, errs := run(t, coordinatord, "backup", late, "--state", r.dir)
		if code != 0 {
			require.Contains(t, errs, "another one is under way")
		}
		return code == 0
	}, waitFor, tick)
	require.Equal(t, 0, p.stop())
	require.NoFileExists(t, filepath.Join(r.dir, backup.SocketFile))
}

// TestABackupLeavesTheReserveAlone: where the copy of state.db has no room above it, there is
// no backup, and the coordinator goes on.
func TestABackupLeavesTheReserveAlone(t *testing.T) {
	disk := smallDisk(t, "240m")
	elsewhere := t.TempDir()
	t.Setenv("TMPDIR", disk) // where newRig makes everything
	r := newRig(t)
	r.reserve()
	p := r.serve()
	p.ready()
	r.objectives(3)
	r.prepared(segmentBytes)
	full := leaveFree(t, filepath.Join(disk, "full"), reserveBytes)
	dest := filepath.Join(elsewhere, "b")
	code, _, errs := run(t, coordinatord, "backup", dest, "--state", r.dir)
	require.Equal(t, daemon.ExitFailure, code)
	require.Contains(t, errs, "beside the reserve, in "+r.dir)
	absent(t, dest)
	require.NoFileExists(t, filepath.Join(r.dir, "state.db.backup"))
	require.NoError(t, os.Remove(full))
	r.objectives(3)
	ok(t, coordinatord, "backup", dest, "--state", r.dir)
	ok(t, coordinatord, "verify", "--backup", dest)
	require.Equal(t, 0, p.stop())
}
