package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
	"coordinator/internal/frozen"
)

func TestMain(m *testing.M) { os.Exit(docsh.Main(m)) }

// unpacked is a state directory under the programs of this checkout, stopped.
func unpacked(t *testing.T, archive []byte) *host {
	t.Helper()
	bin, err := docsh.Programs()
	require.NoError(t, err)
	root, err := os.MkdirTemp("", "fz") // short, for socket paths
	require.NoError(t, err)
	h := &host{bin: bin, dir: filepath.Join(root, "s")}
	require.NoError(t, os.Mkdir(h.dir, 0o700))
	require.NoError(t, frozen.Unpack(archive, h.dir, ""))
	t.Cleanup(func() {
		require.NoError(t, h.kill())
		require.NoError(t, os.RemoveAll(root))
	})
	return h
}

// opens starts the programs of this checkout on frozen files: they must say what the frozen
// ones said, of every record, operation, output and event, byte for byte, and go on from
// there.
func opens(t *testing.T, archive, raw []byte) *facts {
	t.Helper()
	var want facts
	require.NoError(t, json.Unmarshal(raw, &want))
	h := unpacked(t, archive)
	out, err := exec.Command(filepath.Join(h.bin, "coordinatord"), "verify", "--state", filepath.Join(h.dir, "coordinator")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, h.up())
	got, err := h.facts()
	require.NoError(t, err)
	same(t, &want, got)

	before, now := filepath.Join(h.dir, "client", "frozen.snapshot"), filepath.Join(filepath.Dir(h.dir), "after.snapshot")
	c := &chain{h: h}
	c.do("snapshot", "verify", before)
	c.do("snapshot", "save", now)
	c.do("snapshot", "diff", before, now) // exit code 0: byte for byte the same
	require.NoError(t, c.err)
	sameOperation(t, h, &want)

	made := c.id("objective_id", "create", "objective", "--title", "After the upgrade")
	c.do("get", "objective", made)
	c.run(0, "--objective", made, "--", "/bin/true")
	require.NoError(t, c.err)
	require.NoError(t, h.stop())
	return &want
}

// same compares everything but the activation that a start adds, which is one event.
func same(t *testing.T, want, got *facts) {
	t.Helper()
	require.Equal(t, want.CoordinatorID, got.CoordinatorID)
	require.Equal(t, want.Event+1, got.Event)
	for _, kind := range kinds {
		require.Len(t, got.Records[kind], len(want.Records[kind]), kind)
		for i, raw := range want.Records[kind] {
			require.JSONEq(t, string(raw), string(got.Records[kind][i]), kind)
		}
	}
	require.Len(t, got.Operations, len(want.Operations))
	for id, raw := range want.Operations {
		require.JSONEq(t, string(raw), string(got.Operations[id]), id)
	}
	require.Equal(t, want.Output, got.Output)
	require.Equal(t, want.Timelines, got.Timelines)
}

// sameOperation gives a command of the frozen files again, with its ids: it is answered with
// its result, and not carried out.
func sameOperation(t *testing.T, h *host, f *facts) {
	t.Helper()
	c := &chain{h: h}
	var again json.RawMessage
	c.json(&again, f.Again...)
	require.NoError(t, c.err)
	op := f.Again[len(f.Again)-1]
	var was, now struct {
		Sequence uint64 `json:"completed_event_sequence"`
	}
	require.NoError(t, json.Unmarshal(f.Operations[op], &was))
	require.NoError(t, json.Unmarshal(again, &now))
	require.Equal(t, was, now)
	var after []json.RawMessage
	c.json(&after, "get", "objective")
	require.NoError(t, c.err)
	require.Len(t, after, len(f.Records["objective"]))
}

// TestFilesOfTheFirstRelease opens what the first release left behind.
func TestFilesOfTheFirstRelease(t *testing.T) {
	require.Less(t, len(frozen.Release1)+len(frozen.Facts1), 1<<20)
	f := opens(t, frozen.Release1, frozen.Facts1)
	for _, kind := range kinds {
		require.NotEmpty(t, f.Records[kind], kind)
	}
}

// TestWhatIsFrozenNowOpensTheSame makes frozen files with the programs of this checkout, and
// opens them as those of the release are opened. They hold the same kinds of records.
func TestWhatIsFrozenNowOpensTheSame(t *testing.T) {
	bin, err := docsh.Programs()
	require.NoError(t, err)
	out := t.TempDir()
	require.NoError(t, freeze(bin, out))
	archive, err := os.ReadFile(filepath.Join(out, "release.tar.gz"))
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(out, "release.json"))
	require.NoError(t, err)
	now := opens(t, archive, raw)
	var then facts
	require.NoError(t, json.Unmarshal(frozen.Facts1, &then))
	for _, kind := range kinds {
		require.Len(t, now.Records[kind], len(then.Records[kind]), kind)
	}
	require.Len(t, now.Operations, len(then.Operations))
}
