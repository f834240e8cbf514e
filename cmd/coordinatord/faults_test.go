package main

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
)

// witnessDir is where the rig's witness lives.
func (r *rig) witnessDir() string { return filepath.Join(r.root, "w") }

// restartWitness stops the witness, lets change work on its directory, and starts it again.
func (r *rig) restartWitness(change func(dir string)) {
	r.t.Helper()
	require.Equal(r.t, 0, r.witness.stop())
	change(r.witnessDir())
	r.witness = launch(r.t, nil, witnessd, "serve", "--state", r.witnessDir())
	r.witness.ready()
}

// TestC05_AWitnessThatWentBackIsRefused brings back an older state of the witness.
func TestC05_AWitnessThatWentBackIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	once := func() {
		p := r.serve()
		p.ready()
		require.Equal(t, 0, p.stop())
	}
	once()
	var old []byte
	file := filepath.Join(r.witnessDir(), "witness.db")
	r.restartWitness(func(string) {
		var err error
		old, err = os.ReadFile(file)
		require.NoError(t, err)
	})
	once()
	r.restartWitness(func(string) { require.NoError(t, os.WriteFile(file, old, 0o600)) })
	p := r.serve()
	require.Equal(t, daemon.ExitRolledBack, p.ends())
	require.Contains(t, p.output(), "gives epoch 1 and activation 1 where the store has installed epoch 2 and activation 2")
	require.NoFileExists(t, r.report.Socket)
}

// TestAWitnessWithAnotherKeyIsRefused puts another witness behind the pinned socket.
func TestAWitnessWithAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.restartWitness(func(dir string) {
		require.NoError(t, os.Remove(filepath.Join(dir, authorityKey)))
		_, err := handshake.CreateKey(filepath.Join(dir, authorityKey), rand.Reader)
		require.NoError(t, err)
	})
	p := r.serve()
	require.Equal(t, daemon.ExitWitness, p.ends())
	require.Contains(t, p.output(), "not the pinned witness")
	require.NoFileExists(t, r.report.Socket)
}

// TestALinkKeyThatIsNotEnrolledIsNamed follows the line that the refusal prints.
func TestALinkKeyThatIsNotEnrolledIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	pub, err := handshake.ParsePublicKey(r.report.LinkPublicKey)
	require.NoError(t, err)
	id := handshake.FormatKeyID(handshake.KeyIDOf(pub))
	ok(t, witnessd, "keys", "--state", r.witnessDir(), "revoke", id)
	p := r.serve()
	require.Equal(t, daemon.ExitWitness, p.ends())
	require.Contains(t, p.output(), "look for "+id)
	require.Contains(t, p.output(), "add --coordinator "+r.report.CoordinatorID+" "+r.report.LinkPublicKey)
	ok(t, witnessd, "keys", "--state", r.witnessDir(), "add", "--coordinator", r.report.CoordinatorID, r.report.LinkPublicKey)
	r.serve().ready()
}

// TestASilentWitnessIsCalledSilent accepts connections and says nothing on them.
func TestASilentWitnessIsCalledSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Equal(t, 0, r.witness.stop())
	path := filepath.Join(r.witnessDir(), "witness.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	p := r.serve()
	require.Equal(t, daemon.ExitWitness, p.ends())
	require.Contains(t, p.output(), "no answer at "+path)
	require.NotContains(t, p.output(), "context canceled")
}

// TestC05_ANewerStoreIsLeftUntouched raises the schema of the log.
func TestC05_ANewerStoreIsLeftUntouched(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	segments, err := filepath.Glob(filepath.Join(r.dir, "log", "0*.seg"))
	require.NoError(t, err)
	require.Len(t, segments, 1)
	head, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	binary.BigEndian.PutUint32(head[8:], 7)
	binary.BigEndian.PutUint32(head[68:], crc32.Checksum(head[:68], crc32.MakeTable(crc32.Castagnoli)))
	require.NoError(t, os.WriteFile(segments[0], head, 0o600))
	state := filepath.Join(r.dir, "state.db")
	before, err := os.ReadFile(state)
	require.NoError(t, err)
	p := r.serve()
	require.Equal(t, daemon.ExitSchema, p.ends())
	require.Contains(t, p.output(), "schema 7")
	require.Contains(t, p.output(), segments[0])
	after, err := os.ReadFile(state)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	log, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	require.True(t, bytes.Equal(head, log))
	require.Contains(t, ok(t, witnessd, "status", "--state", r.witnessDir()), "no coordinator has been activated yet")
}

// retain is a command that is taken however full the disk is.
func retain(t *testing.T, secs uint64) client.Command {
	t.Helper()
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	require.NoError(t, err)
	cmd, err := client.NewCommand(op, frames.CommandChangeRetention,
		&frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: secs, EventBytes: 1 << 30, ArtifactBytes: 1 << 30}})
	require.NoError(t, err)
	return cmd
}

// TestAFullDiskAcknowledgesNothing lets a write of the log meet a disk without a free
// page: no reply comes, the process ends with its own code, and the next start knows every
// change that was acknowledged.
func TestAFullDiskAcknowledgesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=170m,mode=700"); err != nil {
		t.Skipf("no small file system here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	t.Setenv("TMPDIR", disk) // where newRig makes everything
	r := newRig(t)
	p := r.serve()
	p.ready()
	c := r.connect()
	const first = frames.MinOperationRetained
	_, err := c.Command(t.Context(), retain(t, first))
	require.NoError(t, err)

	r.takeBackPreallocation()
	full := fillDisk(t, filepath.Join(disk, "full"))
	acked, failed := uint64(first), uint64(0)
	for secs := uint64(first) + 1; failed == 0; secs++ {
		_, err := c.Command(t.Context(), retain(t, secs))
		if err == nil {
			acked = secs
			continue
		}
		var unknown *client.OutcomeUnknownError
		require.ErrorAs(t, err, &unknown, "neither acknowledged nor refused")
		failed = secs
	}
	require.Equal(t, daemon.ExitWriteFailed, p.ends())
	require.Contains(t, p.output(), "no space left on device")

	require.NoError(t, os.Remove(full))
	r.serve().ready()
	require.Contains(t, []uint64{acked, failed}, r.retention())
}

// takeBackPreallocation frees the pages of the log that nothing has been written to.
func (r *rig) takeBackPreallocation() {
	r.t.Helper()
	segments, err := filepath.Glob(filepath.Join(r.dir, "log", "*.seg"))
	require.NoError(r.t, err)
	for _, path := range segments {
		b, err := os.ReadFile(path)
		require.NoError(r.t, err)
		const page = 4096
		used := (int64(len(bytes.TrimRight(b, "\x00"))) + page - 1) / page * page
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(r.t, err)
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, used, int64(len(b))-used)
		require.NoError(r.t, errors.Join(err, f.Close()))
	}
}

// fillDisk writes a file until there is no room for another page.
func fillDisk(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	chunk := make([]byte, 4096)
	for {
		if _, err := f.Write(chunk); err != nil {
			require.ErrorIs(t, err, unix.ENOSPC)
			return path
		}
	}
}

// retention is how long results are kept, as the RETENTION record says.
func (r *rig) retention() uint64 {
	r.t.Helper()
	c, err := client.Dial(r.t.Context(), r.ctx, client.Options{Offered: frames.CapAdministration})
	require.NoError(r.t, err)
	defer c.Close()
	s, err := c.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	defer s.Close()
	var secs uint64
	require.NoError(r.t, s.Each(func(rec frames.SnapshotRecord) error {
		if rec.Kind != frames.KindAdmin {
			return nil
		}
		m, err := rec.DecodePayload()
		if err != nil {
			return err
		}
		body, err := m.(*frames.Admin).DecodePayload()
		if kept, is := body.(*frames.Retention); is {
			secs = kept.OperationResultSecs
		}
		return err
	}))
	return secs
}
