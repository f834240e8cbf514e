package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestArchive takes a run that was really made away with its objective, and kills the
// coordinator behind it: what went stays away, its id stays used, and a retry learns that it
// was done.
func TestArchive(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.Equal(t, 3, u.ctl("run", "--title", "to go", "--", "sh", "-c", "echo hi; exit 3").code)
	var objectives []struct {
		ID string `json:"id"`
	}
	u.ctl("get", "objective", "-o", "json").decode(t, &objectives)
	require.Len(t, objectives, 1)
	id := objectives[0].ID
	active := u.ctl("archive", "objective", id[:6])
	require.Equal(t, exitRefused, active.code)
	require.Contains(t, active.errout, "REVISION_CONFLICT")
	require.Equal(t, 0, u.ctl("complete", "objective", id[:6]).code)
	stale := u.ctl("archive", "objective", id[:6], "--if-revision", "1")
	require.Equal(t, exitRefused, stale.code, stale.errout)
	const op = "0123456789abcdef0123456789abcdef"
	sent := []string{"archive", "objective", id, "--if-revision", "2", "--op", op}
	done := u.ctl(sent...)
	require.Equal(t, 0, done.code, done.errout)

	gone := func() {
		t.Helper()
		for _, kind := range []string{"objective", "run", "session", "binding", "artifact", "manifest", "signal", "evidence"} {
			require.Equal(t, "[]\n", u.ctl("get", kind, "-o", "json").out, kind)
		}
		require.Equal(t, exitRefused, u.ctl("describe", "objective", id).code)
	}
	gone()
	require.NoError(t, syscall.Kill(u.coordinatorPID(), syscall.SIGKILL))
	eventually(t, "it serves again", func() bool { return strings.Contains(u.errout.String(), "coordinatord serves again") })
	require.Equal(t, 0, u.ctl("--wait", "20s", "ping").code)
	gone()
	require.Equal(t, 0, u.ctl(sent...).code, "the same operation is answered again")
	again := u.ctl("archive", "objective", id)
	require.Equal(t, exitRefused, again.code)
	require.Contains(t, again.errout, "NOT_FOUND")
	used := u.ctl("create", "objective", "--title", "x", "--id", id)
	require.Equal(t, exitRefused, used.code)
	require.Contains(t, used.errout, "REVISION_CONFLICT")
}
