package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// ledgerOf is what the event log has of a run's binding, once its last wanted event is there.
func (r *ownerRig) ledgerOf(c *client.Conn, s *started, upTo func(*client.Event) bool) (*client.Ledger, []*client.Event) {
	r.t.Helper()
	events := r.replayed(c, upTo)
	l := client.NewLedger(r.ctx.CoordinatorID, frames.BindingID(s.PendingBindingID))
	for _, e := range events {
		require.NoError(r.t, l.Take(e))
	}
	return l, events
}

func (r *ownerRig) isSeal(s *started) func(*client.Event) bool {
	return func(e *client.Event) bool {
		return e.Kind == frames.EventEvidenceSealed && e.Object.ID == frames.ObjectID(s.PendingBindingID)
	}
}

// checked holds the stored output of a run against the admitted digests.
func (r *ownerRig) checked(l *client.Ledger, s *started) (*client.OutputCheck, []byte) {
	r.t.Helper()
	var kept bytes.Buffer
	check := l.Check(&kept)
	_, err := io.WriteString(check, r.read(s))
	require.NoError(r.t, err)
	return check, kept.Bytes()
}

// statusOf is the exit status that a run ended with.
func statusOf(t *testing.T, run *frames.Run) int32 {
	t.Helper()
	var closed frames.Closed
	require.NoError(t, codec.DecodeImage(&closed, run.Outcome))
	require.True(t, closed.Known)
	return closed.Status
}

// Output beyond the owner's cap is not stored, and nobody is deceived: the facts cover all of
// it, what is stored agrees with them, and the run is sealed as any other.
func TestOutputBeyondTheCapIsCoveredAndTold(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	require.Equal(t, 0, r.process.stop())
	const stored, all = 100_000, 3_000_000
	rewrite(t, filepath.Join(r.odir, "owner.toml"), func(s string) string {
		before, rest, found := strings.Cut(s, "\nmax_output_bytes = ")
		require.True(t, found)
		_, after, _ := strings.Cut(rest, "\n")
		return fmt.Sprintf("%s\nmax_output_bytes = %d\n%s", before, stored, after)
	})
	r.startOwner()
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	s := r.begun(c, map[string]any{"argv": []string{"/bin/sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", all)}})
	require.Equal(t, frames.RunCompleted, r.ended(c, s).State)
	l, events := r.ledgerOf(c, s, r.isSeal(s))
	require.True(t, l.Whole())
	require.EqualValues(t, all, l.OutputBytes())
	require.Equal(t, l.Seal(), sealOf(t, events))
	check, kept := r.checked(l, s)
	require.Equal(t, bytes.Repeat([]byte("x"), stored), kept)
	require.EqualValues(t, stored, check.Read)
	require.Empty(t, check.Differ)
	require.NotZero(t, check.Agreed)
	require.LessOrEqual(t, check.Agreed, uint64(stored))
	var evidence *frames.ArtifactManifest
	for _, m := range r.records(c) {
		if manifest, ok := m.(*frames.ArtifactManifest); ok {
			evidence = manifest
		}
	}
	require.NotNil(t, evidence)
	var manifest frames.EvidenceManifest
	require.NoError(t, codec.Decode(&manifest, evidence.Manifest))
	require.EqualValues(t, all, manifest.OutputBytes, "what was written, not what was stored")
}

// An owner that is killed in the middle of its output has lost nothing of what a fact covers:
// the bytes were there before the fact, and the fact before its acknowledgement.
func TestC15_TheOwnerDiesInTheOutput(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	s := r.begun(c, map[string]any{"argv": []string{"/bin/sh", "-c", "stty -onlcr; seq 1 100000000"}, "grace_secs": 0})
	facts := 0
	r.replayed(c, func(e *client.Event) bool { // it is in full flow
		if e.Kind == frames.EventSourceFactAdmitted {
			facts++
		}
		return facts == 20
	})
	r.process.kill()
	r.startOwner()
	require.Equal(t, frames.RunFailed, r.ended(c, s).State)
	require.Equal(t, frames.EndOwnerLost, *r.bindingOf(c, s).Reason)
	l, _ := r.ledgerOf(c, s, func(e *client.Event) bool { return e.Kind == frames.EventBindingEnded })
	require.True(t, l.Whole(), "no fact is missing, and none came twice")
	check, kept := r.checked(l, s)
	require.Empty(t, check.Differ)
	require.GreaterOrEqual(t, check.Read, l.OutputBytes(), "no byte that a fact covers is missing")
	require.Equal(t, l.OutputBytes(), check.Agreed)
	require.True(t, bytes.HasPrefix(kept, []byte("1\n2\n3\n")))
}

// Processes that do not behave, each to its end through the coordinator.
func TestProcessesThatMisbehave(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	mark := filepath.Join(r.root, "mark")
	for _, tt := range []struct {
		name   string
		script string
		grace  int
		want   int32
		output string // of stty -onlcr
		size   uint64 // of the output
		failed bool   // a descendant had to be cut off
	}{
		{"floods its output", "head -c 20000000 /dev/zero | tr '\\0' x; exit 7", 5, 7, "", 20_000_000, false},
		{"closes its terminal and lives on", fmt.Sprintf("printf a; exec </dev/null >/dev/null 2>&1; sleep 0.3; echo > %q; exit 8", mark), 5, 8, "a", 1, false},
		{"leaves a descendant in another session with its terminal",
			`setsid sh -c 'trap "" HUP; printf "$$ "; exec sleep 300' & sleep 0.3; printf b; exit 9`, 1, 9, "", 0, true},
		{"ends and has no time for anybody", "seq 1 2000; exit 10", 0, 10, "", 8893, false},
	} {
		s := r.begun(c, map[string]any{"argv": []string{"/bin/sh", "-c", "stty -onlcr; " + tt.script}, "grace_secs": tt.grace})
		run := r.ended(c, s)
		require.Equal(t, frames.RunFailed, run.State, tt.name)
		require.Equal(t, tt.want, statusOf(t, run), tt.name)
		l, events := r.ledgerOf(c, s, r.isSeal(s))
		require.True(t, l.Whole(), tt.name)
		require.Equal(t, l.Seal(), sealOf(t, events), tt.name)
		check, kept := r.checked(l, s)
		require.Empty(t, check.Differ, tt.name)
		require.Equal(t, l.OutputBytes(), check.Agreed, tt.name)
		if tt.size > 0 {
			require.EqualValues(t, tt.size, check.Read, tt.name)
		}
		if tt.output != "" {
			require.Equal(t, tt.output, string(kept), tt.name)
		}
		signals := 0
		for _, m := range r.records(c) {
			if sig, ok := m.(*frames.Signal); ok && sig.WorkSessionID == s.WorkSessionID && sig.Kind == frames.SignalExecutionFailed {
				signals++
			}
		}
		require.Equal(t, 1, signals, "%s: one for the session, whatever failed", tt.name)
		attention := 0
		for _, e := range events {
			var f frames.TerminalSourceFact
			if e.Kind == frames.EventSourceFactAdmitted && e.Object.ID == frames.ObjectID(s.PendingBindingID) {
				require.NoError(t, codec.DecodeImage(&f, e.Payload))
			}
			if f.Kind == frames.FactAttention {
				attention++
			}
		}
		require.Equal(t, tt.failed, attention == 1, tt.name)
		if tt.failed {
			pid, err := strconv.Atoi(strings.Fields(string(kept))[0])
			require.NoError(t, err, "%q", kept)
			require.True(t, strings.HasSuffix(string(kept), "b"), "%q", kept)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "it lives on, as nobody's")
		}
	}
	_, err := os.Stat(mark)
	require.NoError(t, err)
}

// Three hundred short processes, with every exit code and with signals, many at a time: each
// ends with its own status and nobody else's.
func TestC09_ManyShortProcesses(t *testing.T) {
	t.Parallel()
	r := withOwner(t)
	r.serve().ready()
	c := r.dial()
	defer c.Close()
	first := r.begun(c, map[string]any{"argv": []string{"/bin/true"}}) // the link is up
	fatal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGINT}
	want := map[frames.ObjectRef]int32{}
	starts := filepath.Join(r.root, "starts")
	for i := range 300 {
		script, status := fmt.Sprintf("exit %d", i), int32(i)
		if i >= 256 {
			sig := fatal[i%len(fatal)]
			script, status = fmt.Sprintf("ulimit -c 0; kill -%d $$", int(sig)), -int32(sig)
		}
		document, err := json.Marshal(map[string]any{"argv": []string{"/bin/sh", "-c", fmt.Sprintf("echo %d >> %q; %s", i, starts, script)}})
		require.NoError(t, err)
		p := first.StartRun
		p.RunID, p.WorkSessionID, p.PendingBindingID = fresh[frames.RunID](t), fresh[frames.WorkSessionID](t), fresh[frames.PendingBindingID](t)
		p.ExecutorDocument = document
		cmd, err := client.NewCommand(fresh[frames.OperationID](t), frames.CommandStartRun, &p)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			_, err := c.Command(t.Context(), cmd)
			if refusedWith(err, frames.CodeResourceExhausted) {
				return false // as many effects are pending as may be
			}
			require.NoError(t, err)
			return true
		}, waitFor, tick)
		want[ref(frames.KindRun, p.RunID)] = status
	}
	var records map[frames.ObjectRef]codec.Message
	require.Eventually(t, func() bool {
		records = r.records(c)
		for at := range want {
			if run, ok := records[at].(*frames.Run); !ok || !run.State.Terminal() {
				return false
			}
		}
		return true
	}, 4*waitFor, 10*tick)
	for at, status := range want {
		run := records[at].(*frames.Run)
		require.Equal(t, status, statusOf(t, run))
		require.Equal(t, status == 0, run.State == frames.RunCompleted)
	}
	raw, err := os.ReadFile(starts)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, line := range strings.Fields(string(raw)) {
		require.False(t, seen[line], "%s was started twice", line)
		seen[line] = true
	}
	require.Len(t, seen, len(want))
}
