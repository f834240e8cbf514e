package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
)

func TestC06_AKilledCoordinatorComesBackHigher(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	epoch, activation := p.authority()
	c := r.connect()
	cmd, _ := create(t)
	result, err := c.Command(t.Context(), cmd)
	require.NoError(t, err)
	p.kill()

	q := r.serve()
	q.says("waiting for the lease of activation 1 at epoch 1:")
	epoch2, activation2 := q.authority()
	require.Greater(t, epoch2, epoch)
	require.Greater(t, activation2, activation)
	again, err := r.connect().Command(t.Context(), cmd)
	require.NoError(t, err)
	require.Equal(t, result, again)

	// A graceful stop gives the lease back: nobody waits for it.
	require.Equal(t, 0, q.stop())
	s := r.serve()
	s.ready()
	require.NotContains(t, s.output(), "waiting for the lease")
	require.NotContains(t, s.output(), "unclean stop")
}

// TestC08_AKillAtEveryCommitBoundary crashes the coordinator around its n-th
// commit, retries the same operations under the next activation, and finds each
// of them done exactly once.
func TestC08_AKillAtEveryCommitBoundary(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"record-built", "record-written", "record-synced", "published", "replied"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.serve(fmt.Sprintf("COORDINATOR_FAILPOINT=%s=kill@8", point))
			p.ready()
			c := r.connect()
			var sent []client.Command
			ids := map[frames.ObjectID]bool{}
			for err := error(nil); err == nil && len(sent) < 20; {
				cmd, id := create(t)
				sent, ids[frames.ObjectID(id)] = append(sent, cmd), true
				_, err = c.Command(t.Context(), cmd)
			}
			require.Equal(t, -1, p.ends(), "the fail point was not reached")
			r.serve().ready()
			c = r.connect()
			for _, cmd := range sent {
				result, err := c.Retry(t.Context(), cmd)
				require.NoError(t, err)
				require.Equal(t, frames.OperationSucceeded, result.State)
			}
			snap, err := c.Snapshot(t.Context())
			require.NoError(t, err)
			defer snap.Close()
			found := map[frames.ObjectID]frames.ObjectRevision{}
			operations := 0
			require.NoError(t, snap.Each(func(rec frames.SnapshotRecord) error {
				switch rec.Kind {
				case frames.KindObjective:
					found[rec.ID] = rec.Revision
				case frames.KindOperation:
					operations++
				}
				return nil
			}))
			require.Len(t, found, len(sent))
			require.Equal(t, len(sent), operations)
			for id := range ids {
				require.EqualValues(t, 1, found[id])
			}
		})
	}
}

func TestC05_ACopiedStoreNeverServesBesideTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	c := r.connect()
	cmd, _ := create(t)
	_, err := c.Command(t.Context(), cmd)
	require.NoError(t, err)
	copied := filepath.Join(r.root, "copy")
	copyState(t, r.dir, copied)
	q := launch(t, nil, coordinatord, "serve", "--state", copied)
	require.Equal(t, daemon.ExitLeaseHeld, q.ends())
	require.Contains(t, q.output(), "activation 1 at epoch 1")
	require.NotContains(t, q.output(), "ready ")
	cmd, _ = create(t)
	_, err = c.Command(t.Context(), cmd) // the first one did not notice
	require.NoError(t, err)
	require.Equal(t, 0, p.stop())
}

// copyState copies a state directory file by file, as an operator would.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch dst := filepath.Join(to, rel); {
		case e.IsDir():
			return os.Mkdir(dst, 0o700)
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(dst, b, 0o600)
		}
		return nil // the socket
	}))
}

func TestC05_AStoppedProcessWakesFenced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	c := r.connect()
	p.signal(syscall.SIGSTOP)
	q := launch(t, nil, coordinatord, "verify", "--state", r.dir) // the lock is still held
	require.Equal(t, daemon.ExitHeld, q.ends())
	require.Eventually(t, func() bool { // a real lease must really run out
		return strings.Contains(ok(t, witnessd, "status", "--state", filepath.Join(r.root, "w"), "-o", "json"), `"lease": "ended"`)
	}, waitFor, 200*time.Millisecond)
	p.signal(syscall.SIGCONT)
	require.Equal(t, daemon.ExitFenced, p.ends())
	<-c.Done()
	cmd, _ := create(t)
	_, err := c.Command(t.Context(), cmd)
	require.Error(t, err)
}

func TestC05_ASecondInstanceNamesTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	q := r.serve()
	require.Equal(t, daemon.ExitHeld, q.ends())
	require.Contains(t, q.output(), "store.lock")
	require.Contains(t, q.output(), fmt.Sprint(p.cmd.Process.Pid))
	code, _, errs := run(t, coordinatord, "verify", "--state", r.dir)
	require.Equal(t, daemon.ExitHeld, code, errs)
	r.connect()
}

func TestWithoutAWitnessNothingServes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.witness.kill()
	p := r.serve()
	require.Equal(t, daemon.ExitWitness, p.ends())
	require.Contains(t, p.output(), "witness")
	require.NoFileExists(t, r.report.Socket)
}

func TestAHangingWitnessIsNoAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.witness.kill()
	path := filepath.Join(r.root, "w", "witness.sock")
	require.NoError(t, os.Remove(path))
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	p := r.serve() // its connections stay in the backlog
	require.Equal(t, daemon.ExitWitness, p.ends())
	require.NoFileExists(t, r.report.Socket)
}

func TestAnotherWitnessKeyIsNoWitness(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	file := filepath.Join(r.dir, configFile)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	cfg, err := loadConfig(r.dir)
	require.NoError(t, err)
	other := cfg.WitnessPin
	other[0] ^= 1
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), cfg.WitnessPin.String(), other.String(), 1)), 0o600))
	p := r.serve()
	require.Equal(t, daemon.ExitWitness, p.ends(), p.output())
	require.NoError(t, os.WriteFile(file, text, 0o600))
	q := r.serve()
	epoch, _ := q.authority()
	require.Equal(t, 1, epoch, "a lease was asked of a stranger")
}

func TestARolledBackWitnessIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := filepath.Join(r.root, "w")
	p := r.serve()
	p.ready()
	require.Equal(t, 0, p.stop())
	require.Equal(t, 0, r.witness.stop())
	old, err := os.ReadFile(filepath.Join(dir, "witness.db"))
	require.NoError(t, err)
	restart := func() {
		r.witness = launch(t, nil, witnessd, "serve", "--state", dir)
		r.witness.ready()
	}
	restart()
	p = r.serve()
	p.ready()
	require.Equal(t, 0, p.stop())
	require.Equal(t, 0, r.witness.stop())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "witness.db"), old, 0o600))
	restart()
	p = r.serve()
	require.Equal(t, daemon.ExitRolledBack, p.ends(), p.output())
	require.Contains(t, p.output(), "epoch 2")
}

// TestTheWitnessMayDieAndComeBack kills the witness under a coordinator, which
// goes on until its lease is used up, and for good once the witness is back.
func TestTheWitnessMayDieAndComeBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	c := r.connect()
	had := c.Info().LeaseExpires
	r.witness.kill()
	cmd, _ := create(t)
	_, err := c.Command(t.Context(), cmd)
	require.NoError(t, err)
	r.witness = launch(t, nil, witnessd, "serve", "--state", filepath.Join(r.root, "w"))
	r.witness.ready()
	require.Eventually(t, func() bool { return c.Info().LeaseExpires > had+lease }, waitFor, 50*time.Millisecond)

	r.witness.kill() // and now for good
	require.Equal(t, daemon.ExitFenced, p.ends())
	<-c.Done()
}

func TestAStopWithAStalledClientIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	for range 3 {
		c, err := net.Dial("unix", r.report.Socket)
		require.NoError(t, err)
		defer c.Close()
	}
	r.connect()
	begun := time.Now()
	require.Equal(t, 0, p.stop())
	require.Less(t, time.Since(begun), waitFor)
	require.NoFileExists(t, r.report.Socket)
	r.serve().ready() // at once: the lease was given back
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	c, err := net.Dial("unix", r.report.Socket) // keeps the first stop lingering
	require.NoError(t, err)
	defer c.Close()
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGINT)
	require.Contains(t, []int{0, 128 + int(syscall.SIGINT), 128 + int(syscall.SIGTERM)}, p.ends())
}

// rootPage is where the root page of a bbolt file lies, by the newer of its two meta pages.
// Other pages may be free, and nothing is lost with one of those.
func rootPage(b []byte) int {
	const root, txid = 16 + 16, 16 + 48
	newest := b[:os.Getpagesize()]
	if second := b[os.Getpagesize():]; binary.NativeEndian.Uint64(second[txid:]) > binary.NativeEndian.Uint64(newest[txid:]) {
		newest = second
	}
	return int(binary.NativeEndian.Uint64(newest[root:])) * os.Getpagesize()
}

func TestADamagedStoreTakesNoLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	epoch, _ := p.authority()
	c := r.connect()
	for range 5 {
		cmd, _ := create(t)
		_, err := c.Command(t.Context(), cmd)
		require.NoError(t, err)
	}
	c.Close()
	require.Equal(t, 0, p.stop())
	segments, err := filepath.Glob(filepath.Join(r.dir, "log", "*.seg"))
	require.NoError(t, err)
	require.NotEmpty(t, segments)
	ok(t, coordinatord, "verify", "--state", r.dir)
	for _, tt := range []struct {
		name   string
		file   string
		damage func([]byte) []byte
	}{
		{"a flipped bit in the log", segments[0], func(b []byte) []byte { b[600] ^= 4; return b }},
		{"state.db cut short", filepath.Join(r.dir, "state.db"), func(b []byte) []byte { return b[:5000] }},
		{"state.db with a zeroed page", filepath.Join(r.dir, "state.db"), func(b []byte) []byte {
			at := rootPage(b)
			clear(b[at : at+os.Getpagesize()])
			return b
		}},
		{"state.db emptied", filepath.Join(r.dir, "state.db"), func([]byte) []byte { return nil }},
		{"state.db missing", filepath.Join(r.dir, "state.db"), nil},
	} {
		whole, err := os.ReadFile(tt.file)
		require.NoError(t, err)
		if tt.damage == nil {
			require.NoError(t, os.Remove(tt.file))
		} else {
			require.NoError(t, os.WriteFile(tt.file, tt.damage(append([]byte(nil), whole...)), 0o600))
		}
		code, _, errs := run(t, coordinatord, "verify", "--state", r.dir)
		require.Equal(t, daemon.ExitCorrupt, code, "%s: %s", tt.name, errs)
		q := r.serve()
		require.Equal(t, daemon.ExitCorrupt, q.ends(), "%s: %s", tt.name, q.output())
		require.Contains(t, q.output(), tt.file, tt.name)
		require.NoError(t, os.WriteFile(tt.file, whole, 0o600))
	}
	again, _ := r.serve().authority()
	require.Equal(t, epoch+1, again, "a damaged store asked for a lease")
}

func TestKeysReachARunningCoordinator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.serve().ready()
	c := r.connect()
	out := ok(t, coordinatord, "keys", "--state", r.dir, "list")
	require.Contains(t, out, "tester")
	ok(t, coordinatord, "keys", "--state", r.dir, "revoke", "tester")
	select {
	case <-c.Done():
	case <-time.After(waitFor):
		t.Fatal("the revoked key is still connected")
	}
	require.True(t, refusedWith(c.Err(), frames.CodeAuthenticationFailed) || strings.Contains(fmt.Sprint(c.Err()), "AUTHENTICATION"), "%v", c.Err())
}
