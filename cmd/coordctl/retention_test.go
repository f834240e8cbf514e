package main

import (
	"bytes"
	"crypto/rand"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// TestWhatRetentionRemovedIsTold ends a run, has its events trimmed, and asks for its proof:
// what can still be compared is, and the rest is named.
func TestWhatRetentionRemovedIsTold(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	require.Equal(t, 3, u.ctl("run", "--", "sh", "-c", "echo hi; exit 3").code)
	id := u.onlyRun()
	require.Equal(t, 0, u.ctl("evidence", "verify", id).code)

	c, err := client.LoadContext(u.context())
	require.NoError(t, err)
	conn, err := client.Dial(t.Context(), c, client.Options{Offered: readCaps | frames.CapAdministration})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	do := func(kind frames.CommandKind, body codec.Message) {
		t.Helper()
		op, err := frames.NewID[frames.OperationID](rand.Reader)
		require.NoError(t, err)
		cmd, err := client.NewCommand(op, kind, body)
		require.NoError(t, err)
		r, err := conn.Command(t.Context(), cmd)
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, r.State)
	}
	do(frames.CommandChangeRetention, &frames.ChangeRetention{Retention: frames.Retention{OperationResultSecs: frames.MinOperationRetained, EventBytes: 1, ArtifactBytes: 1 << 30}})
	document := append(append([]byte(`{"title":"filler","x":"`), bytes.Repeat([]byte("x"), int(conn.Info().Limits.TypedPayload)-1024)...), `"}`...)
	objective := frames.ObjectiveID{1}
	do(frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: objective, Schema: 1, Document: document})
	for written := 0; written < 72<<20; written += len(document) { // more than a log segment
		do(frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: objective, Schema: 1, Document: document})
	}

	segments := func() []string {
		found, err := filepath.Glob(filepath.Join(u.state, "coordinator", "log", "*"))
		require.NoError(t, err)
		return found
	}
	first := segments()[0]
	eventually(t, "the segment with the run's events is gone", func() bool { // by a checkpoint, which a commit begins
		do(frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: objective, Schema: 1, Document: []byte(`{"title":"small"}`)})
		return !slices.Contains(segments(), first)
	})
	proof := u.ctl("evidence", "verify", id)
	require.Equal(t, exitOther, proof.code, proof.errout)
	require.Contains(t, proof.out, "none of its facts is left", proof.errout)
	require.Contains(t, proof.out, "seal          not checked")
	require.Contains(t, proof.out, "run 3, manifest 3, event log removed by retention")
	logs := u.ctl("logs", id)
	require.Equal(t, 0, logs.code, logs.errout)
	require.Equal(t, "hi\r\n", logs.out)
	require.Contains(t, logs.errout, "4 bytes cannot be checked")
	story := u.ctl("describe", "run", id)
	require.Equal(t, 0, story.code, story.errout)
	require.Contains(t, story.out, "retention has removed the events up to")
	events := u.ctl("events", "--since", "2", "--kind", "OBJECTIVE_CHANGED", "-o", "jsonpath={.record.payload.document.title}")
	require.Equal(t, 0, events.code, events.errout)
	require.Regexp(t, `^-- gap: retention has removed the events 3 to \d+\n-- to event 1/\d+\n$`, events.errout)
	require.Regexp(t, `^(filler\n)*(small\n)+$`, events.out)
}
