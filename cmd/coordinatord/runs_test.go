package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// A real command under a real PTY: the run completes, and the seal in its evidence is the
// hash of the facts that the event log shows.
func TestC15_ARunEndsInEvidence(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	p := r.serve()
	p.ready()
	c := r.dial()
	defer c.Close()
	s := r.start(c, "/bin/sh", "-c", "echo hello; exit 0")
	r.send(c, s.cmd)
	result := r.result(c, s.op)
	require.Equal(t, frames.OperationSucceeded, result.State, "%+v", result)
	var started frames.Started
	require.NoError(t, codec.DecodeImage(&started, result.Payload))
	require.Equal(t, frames.Started{Run: s.RunID, Session: s.WorkSessionID, Binding: frames.BindingID(s.PendingBindingID)}, started)
	require.Equal(t, frames.RunCompleted, r.ended(c, s).State)

	events := r.replayed(c, func(e *client.Event) bool { return e.Kind == frames.EventEvidenceSealed })
	require.Equal(t, resealed(t, r.ctx.CoordinatorID, started.Binding, events), sealOf(t, events))
	require.Equal(t, 0, p.stop())
	require.Equal(t, 0, r.process.stop())
}

// resealed hashes the facts of a binding as the protocol lays them out (§11 [D-22]), byte by
// byte and without the code that made the seal.
func resealed(t *testing.T, coordinator frames.CoordinatorID, binding frames.BindingID, events []*client.Event) [32]byte {
	t.Helper()
	h := sha256.New()
	h.Write([]byte("phux-coordinator-evidence/v1\x00"))
	h.Write(coordinator[:])
	h.Write(binding[:])
	n := uint64(0)
	for _, e := range events {
		if e.Kind == frames.EventSourceFactAdmitted && e.Object.ID == frames.ObjectID(binding) {
			h.Write(e.Payload)
			n++
		}
	}
	h.Write(binary.BigEndian.AppendUint64(nil, n))
	require.NotZero(t, n)
	return [32]byte(h.Sum(nil))
}

// sealOf is the seal of the last event, which is an EVIDENCE_SEALED.
func sealOf(t *testing.T, events []*client.Event) [32]byte {
	t.Helper()
	rec, ok, err := events[len(events)-1].Record()
	require.NoError(t, err)
	require.True(t, ok)
	var evidence frames.Evidence
	require.NoError(t, codec.Decode(&evidence, rec.Payload))
	return evidence.Seal
}

// Exit statuses arrive exactly, and what is not zero asks for attention.
func TestExitStatusesAreExact(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	for _, tt := range []struct {
		script string
		want   int32
		state  frames.RunState
	}{
		{"exit 0", 0, frames.RunCompleted}, {"exit 1", 1, frames.RunFailed}, {"exit 255", 255, frames.RunFailed},
		{"kill -9 $$", -9, frames.RunFailed}, {"kill -15 $$", -15, frames.RunFailed},
	} {
		s := r.start(c, "/bin/sh", "-c", tt.script)
		r.send(c, s.cmd)
		run := r.ended(c, s)
		require.Equal(t, tt.state, run.State, tt.script)
		var closed frames.Closed
		require.NoError(t, codec.DecodeImage(&closed, run.Outcome))
		require.Equal(t, frames.Closed{Known: true, Status: tt.want}, closed, tt.script)
		failed := 0
		for _, m := range r.records(c) {
			if sig, ok := m.(*frames.Signal); ok && sig.WorkSessionID == s.WorkSessionID {
				require.Equal(t, frames.SignalExecutionFailed, sig.Kind)
				failed++
			}
		}
		require.Equal(t, tt.want != 0, failed == 1, fmt.Sprint(tt.script, failed))
	}
}
