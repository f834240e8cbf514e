package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

// TestSignalsAndDeeds lists signals and sends the commands on runs, bindings and signals to a
// coordinator that answers as scripted.
func TestSignalsAndDeeds(t *testing.T) {
	f := newFake(t)
	session := frames.WorkSessionID{3, 0xab, 0xcd, 15: 1}
	sig := func(n byte, state frames.SignalState, message string) frames.SnapshotRecord {
		return record(t, frames.KindSignal, n, &frames.Signal{WorkSessionID: session, Kind: frames.SignalExecutionFailed, State: state, Message: message})
	}
	run := frames.RunID{2, 0xab, 0xcd, 15: 1}
	f.records = []frames.SnapshotRecord{
		record(t, frames.KindRun, 1, &frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 1, State: frames.RunRunning}),
		record(t, frames.KindWorkSession, 1, &frames.WorkSession{RunID: run}),
		sig(1, frames.SignalOpen, "exit \x1b[31m4"), sig(2, frames.SignalAcknowledged, "seen"), sig(3, frames.SignalResolved, "over"),
	}
	var got []*frames.CoordCommand
	pending := 0
	f.other = func(c *fakeConn, fr frames.Frame) {
		switch fr := fr.(type) {
		case *frames.CoordCommand:
			got = append(got, fr)
			if pending > 0 {
				c.send(&frames.CoordCommandResult{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationPending, Epoch: 7, Sequence: 4}})
				return
			}
			c.send(&frames.CoordCommandResult{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationSucceeded, Sequence: 5}})
		case *frames.GetOperationResult:
			r := frames.OperationResult{State: frames.OperationPending, Epoch: 7, Sequence: 4}
			if pending--; pending == 0 {
				r = frames.OperationResult{State: frames.OperationRejected, Sequence: 9, Code: frames.CodeNotFound, Message: "the owner has no such process"}
			}
			c.send(&frames.OperationResultFrame{RequestID: fr.RequestID, Operation: r})
		}
	}
	f.listen()

	golden(t, "signals", f.cli("signals").out+"\n"+f.cli("signals", "--all").out+"\n"+f.cli("signals", "02abcd", "-o", "json").out+"\n"+
		anyID.ReplaceAllString(f.cli("ack", "06abcd00000000000000000000000001", "--note", "it's seen").out, "ID"))
	require.Equal(t, exitRefused, f.cli("signals", "02abce").code, "no such run")
	note := "it's seen"
	decoded := &frames.SignalCommand{}
	require.NoError(t, codec.Decode(decoded, got[0].Payload))
	require.Equal(t, &frames.SignalCommand{SignalID: frames.SignalID{6, 0xab, 0xcd, 15: 1}, Note: &note}, decoded)

	got = nil
	for _, tt := range []struct {
		args []string
		kind frames.CommandKind
	}{
		{[]string{"pause", "02abcd"}, frames.CommandPauseRun}, {[]string{"resume", "02abcd"}, frames.CommandResumeRun},
		{[]string{"cancel", "02abcd"}, frames.CommandCancelRun}, {[]string{"suppress", "06abcd00000000000000000000000002"}, frames.CommandSuppressSignal},
		{[]string{"end", "04abcd00000000000000000000000001", "--reason", "owner_lost"}, frames.CommandEndBinding},
	} {
		r := f.cli(tt.args...)
		require.Equal(t, 0, r.code, "%q: %s", tt.args, r.errout)
		require.Equal(t, tt.kind, got[len(got)-1].Kind)
	}
	var end frames.EndBinding
	require.NoError(t, codec.Decode(&end, got[len(got)-1].Payload))
	require.Equal(t, frames.EndOwnerLost, end.Reason)

	pending = 3
	r := f.cli("cancel", "02abcd")
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.errout, "the owner has no such process")
	require.Zero(t, pending, "it was looked up until it had ended")
	pending = 1 << 30
	r = f.cli("cancel", "02abcd", "--no-wait")
	require.Equal(t, 0, r.code)
	require.Contains(t, r.out, "PENDING")
	require.Contains(t, r.errout, "not finished yet")
	require.Equal(t, exitUsage, f.cli("end", "04abcd00000000000000000000000001", "--reason", "bored").code)
	require.Equal(t, exitUsage, f.cli("pause").code)
}
