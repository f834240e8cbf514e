package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/internal/durable"
	"coordinator/internal/text"
)

// TestOutcomesAreExplained holds every way in which a call can end to what it says.
func TestOutcomesAreExplained(t *testing.T) {
	op := frames.OperationID{1}
	for _, tt := range []struct {
		result frames.OperationResult
		err    error
		again  bool
		state  string
		repeat string
		says   string
		failed bool
	}{
		{result: frames.OperationResult{State: frames.OperationSucceeded}, state: "SUCCEEDED", repeat: "SAME_ID", says: "does nothing more"},
		{result: frames.OperationResult{State: frames.OperationPending}, state: "PENDING", repeat: "SAME_ID", says: "must not be started anew"},
		{result: frames.OperationResult{State: frames.OperationRejected, Code: frames.CodeNotFound, Message: "gone\x1b[2J"}, state: "REJECTED", repeat: "NEW_ID", says: "no process was started or ended", failed: true},
		{result: frames.OperationResult{State: frames.OperationIndeterminate}, state: "INDETERMINATE", repeat: "DO_NOT", says: "the process owner was lost", failed: true},
		{result: frames.OperationResult{State: frames.OperationIndeterminate, Reason: frames.TargetDedupeUnavailable}, state: "INDETERMINATE", repeat: "DO_NOT", says: "tell a repetition from a first attempt", failed: true},
		{result: frames.OperationResult{State: frames.OperationIndeterminate, Reason: frames.RecoveryStateInvalid}, state: "INDETERMINATE", repeat: "DO_NOT", says: "contradicts", failed: true},
		{result: frames.OperationResult{State: frames.OperationTombstoned, Final: frames.OperationRejected}, state: "TOMBSTONED", repeat: "SAME_ID", says: "ended as REJECTED"},
		{result: frames.OperationResult{State: frames.OperationUnknown}, state: "UNKNOWN", repeat: "SAME_ID", says: "does not prove that nothing ran", failed: true},
		{err: &client.OutcomeUnknownError{OperationID: op, Cause: errTimeout}, state: "UNKNOWN", repeat: "SAME_ID", says: "may have run", failed: true},
		{err: &client.IndeterminateError{OperationID: op}, state: "INDETERMINATE", repeat: "DO_NOT", says: "history in which it may have run was lost", failed: true},
		{err: &client.OtherCommandError{OperationID: op}, state: "NOT_SENT", repeat: "NEW_ID", says: "begun with another command", failed: true},
		{err: &client.RefusedError{Code: frames.CodeScopeDenied}, state: "REFUSED", repeat: "SAME_ID", says: "nothing was done", failed: true},
		{err: &client.RefusedError{Code: frames.CodeOperationConflict}, state: "REFUSED", repeat: "NEW_ID", says: "another command", failed: true},
		{err: fmt.Errorf("%w: %w", client.ErrNotSent, client.ErrDisconnected), state: "NOT_SENT", repeat: "SAME_ID", says: "Nothing was sent", failed: true},
		{err: fmt.Errorf("%w: %w", client.ErrNotSent, client.ErrDisconnected), again: true, state: "UNKNOWN", repeat: "SAME_ID", says: "may have run before", failed: true},
		{err: &client.RefusedError{Code: frames.CodeScopeDenied}, again: true, state: "REFUSED", repeat: "SAME_ID", says: "may have run before", failed: true},
	} {
		o := Outcome{OperationID: op.String()}
		if tt.err != nil {
			o.fail(tt.err, tt.again)
			require.NotEmpty(t, o.Next, "%v", tt.err)
			require.NotEmpty(t, o.Code)
		} else {
			o.tell(tt.result)
		}
		require.Equal(t, tt.state, o.State)
		require.Equal(t, tt.repeat, o.Repeat, o.State)
		require.Contains(t, o.Meaning, tt.says)
		require.Equal(t, tt.failed, o.failed(), o.State)
		require.NotContains(t, o.Message, "\x1b")
	}
}

func keptCommand(t *testing.T, n byte) client.Command {
	cmd, err := client.NewCommand(frames.OperationID{n}, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{n}, Schema: 1, Document: []byte("{}")},
		frames.Precondition{Object: frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{9}}, Revision: 3})
	require.NoError(t, err)
	return cmd
}

func TestCallsAreKept(t *testing.T) {
	s := newServer(t, false)
	k := s.keeper
	for n := byte(1); n <= 4; n++ {
		require.NoError(t, k.keep(&keptCall{Tool: "tool", Arguments: "x", command: keptCommand(t, n)}, false))
	}
	require.ErrorIs(t, k.keep(&keptCall{Tool: "other", command: keptCommand(t, 1)}, false), os.ErrExist, "the first one stands")
	got, err := k.load(frames.OperationID{1})
	require.NoError(t, err)
	require.Equal(t, "tool", got.Tool)
	require.Equal(t, keptCommand(t, 1), got.command, "the very same command")
	require.NoError(t, k.keep(&keptCall{Tool: "anew", command: keptCommand(t, 1)}, true))
	got, err = k.load(frames.OperationID{1})
	require.NoError(t, err)
	require.Equal(t, "anew", got.Tool)

	k.now = func() time.Time { return time.Now().Add(keptAge + time.Hour) }
	require.NoError(t, os.Chtimes(k.path(frames.OperationID{2}), time.Now(), k.now()))
	require.NoError(t, k.keep(&keptCall{Tool: "tool", command: keptCommand(t, 5)}, false))
	for n, there := range map[byte]bool{1: false, 2: true, 3: false, 4: false, 5: true} {
		got, err := k.load(frames.OperationID{n})
		require.NoError(t, err)
		require.Equal(t, there, got != nil, n)
	}
	require.NoError(t, k.drop(frames.OperationID{5}))
	require.NoError(t, k.drop(frames.OperationID{5}))

	for name, raw := range map[string]string{"no JSON": "{", "another's": `{"operation_id":"` + strings.Repeat("ab", 16) + `"}`,
		"a bad precondition": `{"operation_id":"` + (frames.OperationID{6}).String() + `","preconditions":[{"id":"x"}]}`} {
		require.NoError(t, durable.Replace(k.path(frames.OperationID{6}), []byte(raw), durable.PrivateFile))
		_, err := k.load(frames.OperationID{6})
		require.ErrorAs(t, err, new(*client.StateError), name)
	}
	entries, err := os.ReadDir(filepath.Dir(k.path(frames.OperationID{1})))
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
}

// TestCallsOfUnknownOutcomeStay keeps what the journal has no end of, however old.
func TestCallsOfUnknownOutcomeStay(t *testing.T) {
	s := newServer(t, false)
	path := client.StatePath(s.opts.Context.Path, s.opts.Context.CoordinatorID)
	require.NoError(t, durable.Replace(path, fmt.Appendf(nil, `{"version":1,"coordinator_id":"%v","operations":[{"operation_id":"%v","command_digest":"%064d"}]}`,
		s.opts.Context.CoordinatorID, frames.OperationID{1}, 0), durable.PrivateFile))
	state, err := client.OpenState(s.opts.Context)
	require.NoError(t, err)
	k := newKeeper(s.opts.Context, state)
	for n := byte(1); n <= 2; n++ {
		require.NoError(t, k.keep(&keptCall{command: keptCommand(t, n)}, false))
	}
	k.now = func() time.Time { return time.Now().Add(2 * keptAge) }
	require.NoError(t, k.forget())
	for n, there := range map[byte]bool{1: true, 2: false} {
		got, err := k.load(frames.OperationID{n})
		require.NoError(t, err)
		require.Equal(t, there, got != nil, n)
	}
}

// TestIDsBelongToTheOperation derives the same ids for the same call, and others otherwise.
func TestIDsBelongToTheOperation(t *testing.T) {
	a, b := newServer(t, false), newServer(t, false)
	one := a.derive(frames.OperationID{1}, "run")
	require.Equal(t, one, a.derive(frames.OperationID{1}, "run"))
	require.NotEqual(t, one, a.derive(frames.OperationID{2}, "run"))
	require.NotEqual(t, one, a.derive(frames.OperationID{1}, "session"))
	require.NotEqual(t, one, b.derive(frames.OperationID{1}, "run"), "another key")
	x, err := argumentsDigest(a.principal, "tool", map[string]int{"a": 1})
	require.NoError(t, err)
	y, err := argumentsDigest(b.principal, "tool", map[string]int{"a": 1})
	require.NoError(t, err)
	require.NotEqual(t, x, y)
}

// TestPartsOfOutputAreTheWhole reads any output in parts: together they are what one part would
// be, each fits its budget, and nothing of it steers.
func TestPartsOfOutputAreTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOf(rapid.SampledFrom([]string{"plain text ", "é", "日本", "\r\n", "\r", "\n", "\x1b[2J", "\xff", "\xe6\x97", "<&>", "\"\\", "\U000e0041", "\u202e", "\t"})).Draw(t, "output")
		raw := []byte(strings.Join(pieces, ""))
		whole, used := fit(raw, 1<<20, true)
		if used != len(raw) {
			t.Fatalf("%d of %d bytes", used, len(raw))
		}
		if i := strings.IndexFunc(strings.NewReplacer("\n", "", "\t", "", "\ufffd", "").Replace(whole), text.Steers); i >= 0 {
			t.Fatalf("%q steers", whole)
		}
		budget := rapid.IntRange(6, 64).Draw(t, "budget")
		window := rapid.IntRange(4, 64).Draw(t, "window")
		var parts strings.Builder
		for at := 0; at < len(raw); {
			end := min(len(raw), at+window)
			part, n := fit(raw[at:end], budget, end == len(raw))
			if n == 0 {
				t.Fatal("no progress")
			}
			in, err := json.Marshal(part)
			if err != nil || len(in)-2 > budget {
				t.Fatalf("%q takes %d bytes, budget %d", part, len(in)-2, budget)
			}
			parts.WriteString(part)
			at += n
		}
		if parts.String() != whole {
			t.Fatalf("parts %q\nwhole %q", parts.String(), whole)
		}
	})
}

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code string
	}{
		{badArgument("no"), "BAD_ARGUMENT"},
		{&client.RefusedError{Code: frames.CodeResourceExhausted}, "RESOURCE_EXHAUSTED"},
		{&client.AuthenticationError{}, "AUTHENTICATION_FAILED"},
		{&client.PeerError{What: "authority"}, "NOT_TRUSTED"},
		{&client.QuarantineError{}, "NOT_TRUSTED"},
		{&client.ReplicaFullError{}, "LOCAL"},
		{client.ErrJournalFull, "LOCAL"},
		{client.ErrDisconnected, "UNAVAILABLE"},
		{errNotCurrent, "UNAVAILABLE"},
		{errTimeout, "TIMED_OUT"},
		{errors.New("something\x1b else\n"), "LOCAL"},
	} {
		p := explain(tt.err)
		require.Equal(t, tt.code, p.Code, "%v", tt.err)
		require.NotEmpty(t, p.Next)
		require.NotContains(t, p.What, "\x1b")
	}
}
