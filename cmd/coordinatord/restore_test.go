package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/server/backup"
)

func itoa(n int) string { return strconv.Itoa(n) }

var builtTools sync.Map // by name, a func() error that builds it once

// tool is another program of this repository, built when it is first needed.
func tool(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(coordinatord), name)
	build, _ := builtTools.LoadOrStore(name, sync.OnceValue(func() error {
		out, err := exec.Command("go", "build", "-o", path, "../"+name).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	require.NoError(t, build.(func() error)())
	return path
}

// reseal changes the manifest of a backup and makes its digest right again.
func reseal(t *testing.T, dir string, change func(m map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, backup.ManifestFile)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	var s map[string]any
	require.NoError(t, json.Unmarshal(raw, &s))
	m := s["backup"].(map[string]any)
	change(m)
	body, err := json.Marshal(m)
	require.NoError(t, err)
	sum := sha256.Sum256(body)
	raw, err = json.Marshal(map[string]any{"backup": json.RawMessage(body), "sha256": hex.EncodeToString(sum[:])})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, raw, 0o600))
}

// copyBackup copies a backup, sparse as it is.
func copyBackup(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(to, "log"), 0o700))
	require.NoError(t, filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, rerr := filepath.Rel(from, path)
			require.NoError(t, rerr)
			copyFile(t, path, filepath.Join(to, rel))
		}
		return err
	}))
}

// TestEachFaultOfABackupIsNamed damages, removes and adds each file. Neither verify nor
// restore takes such a backup, both name the file, and restore makes nothing.
func TestEachFaultOfABackupIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.smallLog()
	p := r.serve()
	p.ready()
	var whole string
	var report backupReport
	require.Eventually(t, func() bool {
		require.NoError(t, os.RemoveAll(whole))
		r.objectives(100)
		whole, report = r.backUp("whole")
		return len(report.Files) > 5 // several segments
	}, waitFor, tick)
	require.Equal(t, 0, p.stop())

	type fault struct {
		name string
		do   func(dir string)
		file string
		says string
		code int
	}
	var faults []fault
	for _, f := range report.Files {
		flip := func(at int64) func(string) {
			return func(dir string) {
				path := filepath.Join(dir, f.Name)
				b, err := os.ReadFile(path)
				require.NoError(t, err)
				b[at] ^= 4
				require.NoError(t, os.WriteFile(path, b, 0o600))
			}
		}
		faults = append(faults,
			fault{"a bit of its end", flip(f.Bytes - 1), f.Name, "does not have its digest", daemon.ExitCorrupt},
			fault{"a bit of its middle", flip(f.Bytes / 2), f.Name, "does not have its digest", daemon.ExitCorrupt},
			fault{"cut short", func(dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, f.Name), f.Bytes-1)) }, f.Name, "bytes and should have", daemon.ExitCorrupt},
			fault{"longer", func(dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, f.Name), f.Bytes+1)) }, f.Name, "bytes and should have", daemon.ExitCorrupt},
			fault{"missing", func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, f.Name))) }, f.Name, "is missing", daemon.ExitCorrupt},
			fault{"a link", func(dir string) {
				path := filepath.Join(dir, f.Name)
				require.NoError(t, os.Remove(path))
				require.NoError(t, os.Symlink(filepath.Join(whole, f.Name), path))
			}, f.Name, "is a symbolic link", daemon.ExitCorrupt})
	}
	add := func(name string) func(string) {
		return func(dir string) { require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600)) }
	}
	set := func(key string, v any) func(string) {
		return func(dir string) { reseal(t, dir, func(m map[string]any) { m[key] = v }) }
	}
	faults = append(faults,
		fault{"one more", add("link.ed25519"), "link.ed25519", "is not in the manifest", daemon.ExitCorrupt},
		fault{"one more in the log", add("log/00000000000fffff.seg"), "log/00000000000fffff.seg", "is not in the manifest", daemon.ExitCorrupt},
		fault{"a directory more", func(dir string) { require.NoError(t, os.Mkdir(filepath.Join(dir, "x"), 0o700)) }, "x", "is not in the manifest", daemon.ExitCorrupt},
		fault{"no manifest", func(dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "manifest.json"))) }, "", "interrupted before its end", daemon.ExitCorrupt},
		fault{"half a manifest", func(dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, "manifest.json"), 300)) }, "manifest.json", "is not a manifest", daemon.ExitCorrupt},
		fault{"a changed manifest", func(dir string) {
			rewrite(t, filepath.Join(dir, "manifest.json"), func(s string) string { return strings.Replace(s, `"event_cut": `, `"event_cut": 1`, 1) })
		}, "manifest.json", "does not have the digest that it states", daemon.ExitCorrupt},
		fault{"a newer form", set("format", 2), "manifest.json", "it was left untouched", daemon.ExitSchema},
		fault{"a newer schema", set("schema", 1000), "manifest.json", "it was left untouched", daemon.ExitSchema},
		fault{"another cut", set("event_cut", 7), "", "has another store than its manifest", daemon.ExitCorrupt},
		fault{"another coordinator", set("coordinator_id", strings.Repeat("1", 32)), "", "", daemon.ExitCorrupt},
		fault{"a name outside", func(dir string) {
			reseal(t, dir, func(m map[string]any) { m["files"].([]any)[0].(map[string]any)["name"] = "../up" })
		}, "manifest.json", "which no backup has", daemon.ExitCorrupt},
	)
	into := filepath.Join(r.root, "n")
	for i, f := range faults {
		dir := filepath.Join(r.root, "d"+itoa(i))
		copyBackup(t, whole, dir)
		f.do(dir)
		code, _, errs := run(t, coordinatord, "restore", dir, "--state", into)
		require.Equal(t, f.code, code, "%s of %s: %s", f.name, f.file, errs)
		require.Contains(t, errs, f.says, f.name)
		require.Contains(t, errs, f.file, f.name)
		require.NoDirExists(t, into, f.name)
		if i%7 == 0 || f.file == "" || f.code == daemon.ExitSchema {
			code, _, errs = run(t, coordinatord, "verify", "--backup", dir)
			require.Equal(t, f.code, code, "%s of %s: %s", f.name, f.file, errs)
			require.Contains(t, errs, f.says, f.name)
		}
		require.NoError(t, os.RemoveAll(dir))
	}
	r.restored(whole) // and the whole one is good
}

// TestRestoreMakesItsOwnDirectory: it goes into a new or an empty one, and one that is
// interrupted at any step is no coordinator's, and is begun again.
func TestRestoreMakesItsOwnDirectory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.smallLog()
	p := r.serve()
	p.ready()
	want := r.objectives(300)
	whole, _ := r.backUp("whole")
	require.Equal(t, 0, p.stop())

	full := filepath.Join(r.root, "full")
	require.NoError(t, os.Mkdir(full, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(full, "mine"), []byte("x"), 0o600))
	open := filepath.Join(r.root, "open")
	require.NoError(t, os.Mkdir(open, 0o755))
	require.NoError(t, os.Chmod(open, 0o755))
	file := filepath.Join(r.root, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, tt := range []struct {
		name, into, says string
		code             int
	}{
		{"something in it", full, "is not empty (mine); a backup is restored into a fresh directory only", daemon.ExitFailure},
		{"the old coordinator", r.dir, "is not empty", daemon.ExitFailure},
		{"open to others", open, "0755", daemon.ExitFailure},
		{"a file", file, "is not a directory", daemon.ExitFailure},
		{"deep in the backup", filepath.Join(whole, "no", "such", "n"), "lies in the backup itself", daemon.ExitFailure},
		{"in the backup", filepath.Join(whole, "n"), "lies in the backup itself", daemon.ExitFailure},
	} {
		before := r.files()
		code, _, errs := run(t, coordinatord, "restore", whole, "--state", tt.into)
		require.NotEqual(t, 0, code, tt.name)
		require.Contains(t, errs, tt.says, tt.name)
		require.Equal(t, before, r.files(), tt.name)
	}
	ok(t, coordinatord, "verify", "--backup", whole)

	into := filepath.Join(r.root, "n")
	require.NoError(t, os.Mkdir(into, 0o700))
	for _, point := range []string{"restore-file=kill", "restore-file=kill@3", "restore-filled=kill"} {
		c := launch(t, []string{"COORDINATOR_FAILPOINT=" + point}, coordinatord, "restore", whole, "--state", into)
		require.Equal(t, -1, c.ends(), "%s was not reached", point)
		q := launch(t, nil, coordinatord, "serve", "--state", into)
		require.Equal(t, daemon.ExitConfig, q.ends(), point)
		require.Contains(t, q.output(), "coordinator.toml", point)
		require.Contains(t, q.output(), "a restore into this directory was interrupted", point)
		// Nor does init make another coordinator out of the keys that are there.
		code, _, errs := run(t, coordinatord, "init", "--state", into, "--witness-socket", filepath.Join(r.root, "w", "witness.sock"),
			"--witness-authority", handshake.FormatFingerprint(r.ctx.Authority), "--witness-id", r.ctx.WitnessID.String())
		require.Equal(t, daemon.ExitConfig, code, point)
		require.Contains(t, errs, "a restore into this directory was interrupted; run `coordinatord restore` once more", point)
	}
	mine := filepath.Join(into, "mine")
	require.NoError(t, os.WriteFile(mine, []byte("x"), 0o600))
	_, _, errs := run(t, coordinatord, "restore", whole, "--state", into)
	require.Contains(t, errs, "holds mine beside what an interrupted restore left")
	require.FileExists(t, mine)
	require.NoError(t, os.Remove(mine))

	// One that was killed behind its last step is whole, and is not touched again.
	named := filepath.Join(r.root, "named")
	c := launch(t, []string{"COORDINATOR_FAILPOINT=restore-named=kill"}, coordinatord, "restore", whole, "--state", named)
	require.Equal(t, -1, c.ends(), c.output())
	ok(t, coordinatord, "verify", "--state", named)
	key, err := handshake.LoadKey(filepath.Join(named, linkKey))
	require.NoError(t, err)
	said, err := durable.ReadPrivate(filepath.Join(named, backup.ReportFile), 1<<16)
	require.NoError(t, err)
	require.Contains(t, string(said), " add --coordinator "+r.report.CoordinatorID+" "+handshake.FormatPublicKey(key.Public())+"\n", "what it had no time to print")
	require.Contains(t, string(said), " revoke "+keyID(r.report.LinkPublicKey)+"\n")
	_, _, errs = run(t, coordinatord, "restore", whole, "--state", named)
	require.Contains(t, errs, "is not empty")
	q := launch(t, nil, coordinatord, "serve", "--state", named)
	require.Equal(t, daemon.ExitWitness, q.ends())
	require.Contains(t, q.output(), "witnessd keys --state WITNESS add --coordinator", "and says how to enrol its key")

	report := r.restored(whole)
	require.Equal(t, into, report.StateDir)
	r.serve().ready()
	r.unknowing()
	require.Equal(t, want, r.shown())
}

// TestRestoreRefusesBesideALivingLease: it asks whom it can.
func TestRestoreRefusesBesideALivingLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	r.objectives(3)
	whole, _ := r.backUp("whole")
	into := filepath.Join(r.root, "n")
	refused := func(code int, says string, args ...string) {
		t.Helper()
		have, _, errs := run(t, coordinatord, append([]string{"restore", whole, "--state", into}, args...)...)
		require.Equal(t, code, have, errs)
		require.Contains(t, errs, says)
		require.NoDirExists(t, into)
	}
	refused(daemon.ExitHeld, "the coordinator of this backup runs on "+r.dir)

	// On another host a coordinator may have the same place and not be the same.
	other := newRig(t)
	served := other.serve()
	served.ready()
	reseal(t, whole, func(m map[string]any) { m["source"] = other.dir })
	refused(daemon.ExitLeaseHeld, "the witness was not asked, and a lease of the old coordinator may live until")
	require.Equal(t, 0, served.stop())

	// From another place, as on another host: the old directory is not to be seen.
	key := filepath.Join(r.root, "k", "asking.ed25519")
	copyFile(t, filepath.Join(r.dir, linkKey), key)
	reseal(t, whole, func(m map[string]any) { m["source"] = "/somewhere/else" })
	refused(daemon.ExitLeaseHeld, "the lease of activation 1 at epoch 1 lives for", "--witness-key", key)
	soon := time.Now().Add(time.Hour) // whatever this machine is busy with
	reseal(t, whole, func(m map[string]any) { m["lease_expires_at"] = soon.Unix() })
	refused(daemon.ExitLeaseHeld, "the witness was not asked, and a lease of the old coordinator may live until")
	refused(daemon.ExitConfig, "no such file", "--witness-key", key+".no")
	refused(daemon.ExitWitness, "the witness cannot be asked with", "--witness-key", filepath.Join(r.root, "k", "client.ed25519"))

	// Crashed, and its lease still runs: as long as that is.
	p.kill()
	require.Eventually(t, func() bool {
		code, _, errs := run(t, coordinatord, "restore", whole, "--state", into, "--witness-key", key)
		if code == daemon.ExitLeaseHeld {
			require.Contains(t, errs, "lives for")
			require.NoDirExists(t, into)
			return false
		}
		require.Equal(t, 0, code, errs)
		return true
	}, waitFor, 200*time.Millisecond)
	require.NoError(t, os.RemoveAll(into))

	// A witness that went back is seen before anything is made.
	reseal(t, whole, func(m map[string]any) { m["authority_epoch"] = 9 })
	refused(daemon.ExitRolledBack, "the witness knows epoch 1 and activation 1, the backup is of epoch 9", "--witness-key", key)
	reseal(t, whole, func(m map[string]any) { m["authority_epoch"] = 1 })

	// Without anybody to ask, time tells.
	long := time.Now().Add(-time.Hour)
	reseal(t, whole, func(m map[string]any) {
		m["time"], m["lease_expires_at"] = long.UTC().Format(time.RFC3339), long.Unix()+15
	})
	out := ok(t, coordinatord, "restore", whole, "--state", into)
	require.Contains(t, out, "The witness was not asked.")
	require.Contains(t, out, "1h0m")
}

func TestWaitedOut(t *testing.T) {
	cut := time.Unix(1_800_000_000, 0)
	for _, tt := range []struct {
		name  string
		lease uint64
		now   time.Duration
		ok    bool
	}{
		{"no coordinator ran, a longest lease later", 0, 60 * time.Second, true},
		{"no coordinator ran, a moment before", 0, 60*time.Second - 1, false},
		{"a longest lease behind the one of the cut", 1_800_000_015, 75 * time.Second, true},
		{"a moment before", 1_800_000_015, 75*time.Second - 1, false},
		{"a clock that went back", 0, -time.Hour, false},
		{"a lease before the cut", 1_700_000_000, 60 * time.Second, true},
		{"no time at all", 1 << 63, 60 * time.Second, true},
	} {
		m := &backup.Manifest{Cut: backup.Cut{Time: cut, LeaseExpiresAt: tt.lease}}
		require.Equal(t, tt.ok, waitedOut(m, cut.Add(tt.now)) == nil, tt.name)
	}
}

// TestWhatIsLeftOfTheOldNeverActsAgain: after the lines of restore the old directory, and
// any copy of it, is refused by the witness, while the restored one serves.
func TestWhatIsLeftOfTheOldNeverActsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	epoch, activation := p.authority()
	r.objectives(3)
	whole, b := r.backUp("whole")
	r.objectives(3)
	require.Equal(t, 0, p.stop())
	old := r.dir
	report := r.restored(whole)
	require.NotEqual(t, b.StoreIncarnation, report.NewIncarnation)
	q := launch(t, nil, coordinatord, "serve", "--state", old)
	require.Equal(t, daemon.ExitWitness, q.ends(), q.output())
	require.Contains(t, q.output(), "AUTHENTICATION_FAILED")
	higher, later := r.serve().authority()
	require.Greater(t, higher, epoch)
	require.Greater(t, later, activation)

	// The backup of what was restored is of another store than the first.
	_, next := r.backUp("next")
	require.Equal(t, report.NewIncarnation, next.StoreIncarnation)
	require.Equal(t, report.LinkPublicKey, next.LinkKey)
}

// TestC09_ABackupIsRestoredBesideItsClientsAndOwner is a whole disaster: a backup at some
// event, as much again after it, with a subscriber and real children, and the backup brought
// back. Nothing is silent, nothing is guessed and nothing is started twice.
func TestC09_ABackupIsRestoredBesideItsClientsAndOwner(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	p := r.serve()
	epoch, _ := p.authority()
	c := r.dial()
	for range 30 {
		cmd, _ := create(t)
		_, err := c.Command(t.Context(), cmd)
		require.NoError(t, err)
	}
	s, lines := r.counting(c) // its objective is in the backup
	watcher, err := client.OpenReplica(r.contextIn("watching"), client.ReplicaOptions{Options: client.Options{Offered: frames.CapTerminalBindings}})
	require.NoError(t, err)
	defer watcher.Close()
	whole, b := r.backUp("whole")

	r.send(c, s.cmd)
	require.Equal(t, frames.RunCompleted, r.ended(c, s).State)
	living := r.begun(c, forever("echo living"))
	var last client.Command
	for range 30 {
		last, _ = create(t)
		_, err := c.Command(t.Context(), last)
		require.NoError(t, err)
	}
	// The watcher has been shown what will be gone.
	_, err = watcher.WaitFor(t.Context(), func(v *client.View) bool { return uint64(v.Cut) > b.EventCut+30 })
	require.NoError(t, err)
	require.Equal(t, 1, lines())
	p.kill()
	old := r.dir
	require.Eventually(t, func() bool { // the lease of the one that crashed ends
		code, _, _ := run(t, coordinatord, "restore", whole, "--state", filepath.Join(r.root, "probe"))
		return code == 0
	}, waitFor, 200*time.Millisecond)
	require.NoError(t, os.RemoveAll(filepath.Join(r.root, "probe")))
	require.NoError(t, os.Rename(old, old+".lost"))

	key := filepath.Join(old+".lost", linkKey)
	report := r.restoredIn(old, whole, "--witness-key", key)
	require.Len(t, report.Enrol, 2, "the witness and the owner")
	require.Len(t, report.Revoke, 2)
	higher, _ := r.serve().authority()
	require.Greater(t, higher, epoch)

	// The client says so, by the library and by the tool, and sends nothing of its own accord.
	conn, err := client.Dial(t.Context(), r.ctx, client.Options{Offered: frames.CapTerminalBindings | frames.CapEventReplay})
	require.NoError(t, err)
	defer conn.Close()
	snap, err := conn.Snapshot(t.Context())
	require.NoError(t, err)
	require.NotNil(t, snap.Lost)
	require.NoError(t, snap.Close())
	for st := range watcher.States(t.Context()) { // who followed all along is told, and follows again
		if st.Lost != nil && st.Phase == client.ReplicaCurrent {
			require.GreaterOrEqual(t, st.Lost.Base, frames.EventCut(b.EventCut))
			require.Greater(t, uint64(st.Lost.Cut), b.EventCut)
			break
		}
	}
	got, err := conn.Lookup(t.Context(), last.OperationID)
	require.NoError(t, err)
	require.Equal(t, frames.OperationUnknown, got.State, "nobody guesses what became of it")
	coordctl := tool(t, "coordctl")
	_, out, errs := run(t, coordctl, "--context", filepath.Join(r.root, "k", "context.toml"), "status")
	require.Contains(t, out+errs, "HISTORY_LOST")

	// The owner gives up what nobody knows of, and answers for what it has done.
	require.Eventually(t, func() bool {
		look := r.look()
		defer look.Close()
		err := look.ReadOutput(t.Context(), frames.BindingID(living.PendingBindingID), 0, 0, true, func(uint64, []byte) error { return nil })
		return err == nil // the output ends because the process did
	}, waitFor, tick)
	r.stranger()
	c = r.dial()
	defer c.Close()
	r.send(c, s.cmd)
	require.True(t, r.result(c, s.op).State.Final())
	require.True(t, r.ended(c, s).State.Terminal())
	require.Equal(t, 1, lines(), "it was not started again")
	again, err := client.NewCommand(fresh[frames.OperationID](t), frames.CommandStartRun, &s.StartRun)
	require.NoError(t, err)
	_, err = c.Command(t.Context(), again)
	require.Error(t, err, "nor under another operation")
	require.Equal(t, 1, lines())
}
