package own

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

func TestSetQuotas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coordinator.toml")
	const text = "connections = 1\n[quota.principal]\n# connections = 16\n# leases = 16\n[quota.server]\n# connections = 256\n# pending = 9\n"
	write := func() { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	read := func() string {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(raw)
	}
	write()
	require.NoError(t, setQuotas(path, nil))
	require.Equal(t, text, read())
	require.NoError(t, setQuotas(path, map[string]int{"connections": 600}))
	require.Equal(t, "connections = 1\n[quota.principal]\nconnections = 600\n# leases = 16\n[quota.server]\nconnections = 600\n# pending = 9\n", read())
	write()
	require.ErrorContains(t, setQuotas(path, map[string]int{"pending": 1}), "1 of the two")
	require.ErrorContains(t, setQuotas(path, map[string]int{"nothing": 1}), "0 of the two")
	require.Equal(t, "quotas: a = 1, b = 2", quotaText(map[string]int{"b": 2, "a": 1}))
}

func TestShares(t *testing.T) {
	for _, n := range []int{0, 1, 7, 256, 1000} {
		sum := 0
		for i := range 256 {
			sum += part(n, 256, i)
		}
		require.Equal(t, n, sum)
	}
}

func TestLogTime(t *testing.T) {
	at, err := logTime("time=2026-01-02T03:04:05.678Z level=INFO msg=serving epoch=2")
	require.NoError(t, err)
	require.Equal(t, 678_000_000, at.Nanosecond())
	for _, bad := range []string{"", "ready /x epoch 2", "time=soon msg=x"} {
		_, err := logTime(bad)
		require.Error(t, err, bad)
	}
}

func TestHeapInUse(t *testing.T) {
	n, err := heapInUse("gc 5 @0.1s 1%: 0.02+0.8+0.01 ms clock, 0.04+0.1/0.7/0+0.03 ms cpu, 4->5->3 MB, 4 MB goal, 0 MB stacks, 0 MB globals, 2 P")
	require.NoError(t, err)
	require.EqualValues(t, 3<<20, n)
	_, err = heapInUse("ready /x epoch 2")
	require.Error(t, err)
}

func TestFinder(t *testing.T) {
	event := func(document []byte) *client.Event {
		record, err := frames.NewRecord(objectiveRef(frames.ObjectiveID{1}), 3, &frames.Objective{DocumentSchema: 1, Document: document})
		require.NoError(t, err)
		image, err := codec.EncodeImage(nil, &record)
		require.NoError(t, err)
		return &client.Event{Kind: frames.EventObjectiveChanged, Payload: image}
	}
	var f finder
	for seed := range uint64(3) {
		want := measure.Payload(seed, measure.ValueSize)
		got, err := f.document(event(want))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := f.document(event([]byte("short")))
	require.ErrorContains(t, err, "document of 5 bytes")
	_, err = f.document(&client.Event{Kind: frames.EventObjectiveChanged, Payload: []byte{1}})
	require.Error(t, err)
}

func TestWalk(t *testing.T) {
	body, err := codec.Encode(nil, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 1, Document: make([]byte, 300)})
	require.NoError(t, err)
	var w walk
	require.NoError(t, w.decode(body))
	require.Equal(t, body, w.encode(nil))
	for n := 1; n < len(body); n++ {
		if w.decode(body[:n]) == nil {
			require.Equal(t, body[:n], w.encode(nil), "whole fields")
		}
	}
	require.ErrorIs(t, w.decode([]byte{1, 5, 0}), errWalk)
	require.ErrorIs(t, w.decode([]byte{0x80}), errWalk)
}

// TestCommands runs a short load against the real daemons.
func TestCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the daemons")
	}
	dir, err := os.MkdirTemp("", "own") // a Unix socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o700))
	require.NoError(t, Build(t.Context(), filepath.Join("..", "..", ".."), bin, false))
	e := &measure.Env{Dir: dir, Bin: bin, Rec: measure.NewRecorder("own/commands"), Scale: .05}
	require.NoError(t, commands(t.Context(), e))
	for _, row := range e.Rec.Rows() {
		if row.Name == "own.command.c64" {
			require.Positive(t, row.Median)
			return
		}
	}
	t.Fatal("no figure")
}
