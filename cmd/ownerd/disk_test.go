//go:build linux

package main

import (
	"os"
	"path/filepath"
	"testing"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/owner"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAFullDiskEndsTheOwner lets a write of the journal meet a disk without a free page: no
// outcome comes of it, nothing is started, the process ends with its own code and with it what
// it ran, and the next start holds to everything that was answered.
func TestAFullDiskEndsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	disk, err := os.MkdirTemp("", "od")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(disk) })
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=24m,mode=700"); err != nil {
		t.Skipf("no small file system here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	starts := filepath.Join(t.TempDir(), "starts")
	t.Setenv("TMPDIR", disk) // where made makes everything
	dir, id := made(t)
	p := serveIn(t, dir, "")
	c := dial(t, id, 1, nil)
	running := c.spawn(stubborn(starts))
	require.Equal(t, frames.EffectSucceeded, c.dispatch(running).State)
	c.open(running)
	c.eventually("output", func() bool { return len(c.facts) >= 2 })

	full := fillDisk(t, filepath.Join(disk, "full"))
	var void []*frames.EffectAttempt
	for {
		a := c.spawn(&owner.Document{Argv: []string{"/bin/true"}})
		r, err := c.GetEffect(t.Context(), c.cert.Guard(), a.ID, a.Digest)
		if err != nil {
			break
		}
		require.Equal(t, owner.NeverSeen, r.State)
		void = append(void, a)
	}
	require.Equal(t, daemon.ExitWriteFailed, p.wait())
	require.Contains(t, p.err.String(), "journal could not be written")
	require.Contains(t, p.err.String(), "no space left on device")

	require.NoError(t, os.Remove(full))
	serveIn(t, dir, "")
	require.True(t, gone(pids(t, starts)[0]))
	c = dial(t, id, 2, nil)
	for _, a := range void {
		require.Equal(t, owner.NeverSeen, c.lookUp(a).State)
	}
	require.Equal(t, frames.EffectSucceeded, c.dispatch(running).State)
	c.open(running)
	c.eventually("FACTS_END", func() bool { return c.ends[binding(running)] != 0 })
	require.Len(t, pids(t, starts), 1)
}

// fillDisk writes a file until there is no room for another page.
func fillDisk(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for chunk := make([]byte, 4096); ; {
		if _, err := f.Write(chunk); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			return path
		}
	}
}
