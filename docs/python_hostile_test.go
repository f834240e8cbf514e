package docs

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
)

// What does not verify is refused, and not a word of it is shown.
func TestPythonRefusesWhatIsForged(t *testing.T) {
	t.Parallel()
	needPython(t)
	// A renewal that is changed before it is signed.
	renewal := func(change func(*frames.Certificate)) lies {
		return lies{then: func(send func(frames.Frame), cert frames.Certificate, sign func(*frames.Certificate)) {
			change(&cert)
			sign(&cert)
			send(&frames.AuthorityRenewed{Certificate: cert})
		}}
	}
	unasked := func(f frames.Frame) lies {
		return lies{then: func(send func(frames.Frame), _ frames.Certificate, _ func(*frames.Certificate)) { send(f) }}
	}
	for _, tt := range []struct {
		name  string
		lies  lies
		why   string
		final bool
	}{
		{"signature altered", lies{signed: func(c *frames.Certificate) { c.Signature[0] ^= 1 }}, "not signed with the pinned witness key", true},
		{"expiry altered", lies{signed: func(c *frames.Certificate) { c.ExpiresAt-- }}, "not signed with the pinned witness key", true},
		{"of another incarnation", lies{cert: func(c *frames.Certificate) { c.IncarnationID[0]++ }}, "its epoch or incarnation is not the server's", true},
		{"expired", lies{cert: func(c *frames.Certificate) { c.IssuedAt -= 61; c.ExpiresAt -= 61 }}, "-- gap: activation certificate: it has expired", false},
		{"guard of another authority", lies{begin: func(b *frames.SnapshotBegin) { b.Guard.Epoch++ }}, "contradicts itself: the guard", false},
		{"record altered", lies{page: func(p *frames.SnapshotPage) { p.Records[0].Revision++ }}, "contradicts itself: a digest", false},
		{"record left out", lies{page: func(p *frames.SnapshotPage) { p.Records = nil }}, "contradicts itself: totals", false},
		{"page out of its place", lies{page: func(p *frames.SnapshotPage) { p.Index = 1 }}, "contradicts itself: a page out of its place", false},
		{"digest altered", lies{end: func(e *frames.SnapshotEnd) { e.Digest[0] ^= 1 }}, "contradicts itself: a digest", false},
		{"revision left out", lies{event: func(e *frames.CoordEvent) { e.Revision = 3 }}, "not the next revision", false},
		{"delivery left out", lies{event: func(e *frames.CoordEvent) { e.Delivery = 2 }}, "an event out of order", false},
		{"renewal of another authority", renewal(func(c *frames.Certificate) { c.Token[0]++; c.IssuedAt++; c.ExpiresAt++ }), "the renewal belongs to another authority", true},
		{"renewal that renews nothing", renewal(func(*frames.Certificate) {}), "expires no later than the one in force", true},
		{"answer to no request", unasked(&frames.Ack{RequestID: 99}), "an answer to no request", false},
		{"gap of no subscription", unasked(&frames.Gap{SubscriptionID: frames.SubscriptionID{7}}), "of no subscription", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			title := "poison"
			if tt.lies.event != nil || tt.lies.then != nil {
				title = "sound"
			}
			f := newForger(t, title)
			f.activate(7, 7, 1, tt.lies)
			require.NotContains(t, f.refuses(t, tt.why, tt.final), "poison")
		})
	}
}

func TestPythonRefusesAnotherAuthorityKey(t *testing.T) {
	t.Parallel()
	needPython(t)
	f := newForger(t, "poison")
	f.authority = handshake.NewKey([32]byte{1})
	require.NotContains(t, f.refuses(t, "the server shows another key than the pinned one", true), "poison")
}

// The highest authority is remembered across restarts of the client.
func TestPythonRemembersTheHighestAuthority(t *testing.T) {
	t.Parallel()
	needPython(t)
	f := newForger(t, "sound")
	text, stderr, code := runPython(t, "follow.py", "--context", f.path, "--until", "sound")
	require.Zero(t, code, stderr)
	require.Contains(t, text, "revision 1 Active sound")
	f.title = "poison"
	f.activate(6, 6, 1, lies{})
	require.NotContains(t, f.refuses(t, "-- gap: epoch 6 activation 6 is below epoch 7 activation 7 met before", false), "poison")
	f.activate(7, 7, 2, lies{}) // a second server of the same epoch
	require.NotContains(t, f.refuses(t, "two servers claim authority at epoch 7 activation 7", true), "poison")
	f.activate(8, 8, 3, lies{}) // nothing but a person ends it
	require.NotContains(t, f.refuses(t, "stays refused until somebody has decided", true), "poison")
}

// A lost answer is looked up, and only the same command is sent again, under the same id.
func TestPythonLooksALostAnswerUp(t *testing.T) {
	t.Parallel()
	needPython(t)
	done := frames.OperationResult{State: frames.OperationSucceeded, Sequence: 22}
	never := frames.OperationResult{State: frames.OperationUnknown}
	closes := func(func(frames.Frame), frames.RequestID) bool { return false }
	says := func(code frames.Code) func(func(frames.Frame), frames.RequestID) bool {
		return func(send func(frames.Frame), id frames.RequestID) bool {
			send(&frames.CoordError{RequestID: id, Code: code})
			return true
		}
	}
	command, lookup := frames.TypeCoordCommand, frames.TypeGetOperationResult
	for _, tt := range []struct {
		name  string
		first func(send func(frames.Frame), id frames.RequestID) bool // the answer to the first command
		found frames.OperationResult
		want  []frames.Type
		code  int
	}{
		{"it had run", closes, done, []frames.Type{command, lookup}, 0},
		{"it had not", closes, never, []frames.Type{command, lookup, command}, 0},
		{"an internal error says nothing", says(frames.CodeInternal), done, []frames.Type{command, lookup}, 0},
		{"another authority took over", says(frames.CodeStaleAuthority), never, []frames.Type{command, lookup, command}, 0},
		{"a refusal is the answer", says(frames.CodeScopeDenied), never, []frames.Type{command}, 3},
		{"a fatal refusal is the answer", says(frames.CodeMalformedMessage), never, []frames.Type{command}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newForger(t, "")
			var commands atomic.Int32
			f.activate(7, 7, 1, lies{request: func(send func(frames.Frame), fr frames.Frame) bool {
				switch fr := fr.(type) {
				case *frames.CoordCommand:
					if commands.Add(1) == 1 {
						return tt.first(send, fr.RequestID)
					}
					send(&frames.CoordCommandResult{RequestID: fr.RequestID, Operation: done})
				case *frames.GetOperationResult:
					send(&frames.OperationResultFrame{RequestID: fr.RequestID, Operation: tt.found})
				}
				return true
			}})
			stdout, stderr, code := runPython(t, "work.py", "--context", f.path, "create", "--title", "once")
			require.Equal(t, tt.code, code, stderr)
			first := requireOneCommand(t, f, tt.want)
			if tt.code == 0 {
				requireSucceeded(t, first, stdout)
			}
			requireNothingUnresolved(t, f)
		})
	}
}

// A command whose outcome is not known by the end of its time survives the client, and is
// resumed by the next one.
func TestPythonResumes(t *testing.T) {
	t.Parallel()
	needPython(t)
	f := newForger(t, "")
	f.activate(7, 7, 1, lies{request: func(func(frames.Frame), frames.Frame) bool { return true }}) // answers nothing
	_, stderr, code := runPython(t, "work.py", "--context", f.path, "--timeout", "0.5", "create", "--title", "once")
	require.Equal(t, 6, code, stderr)
	require.Contains(t, stderr, "may have run")
	f.activate(8, 8, 2, lies{request: func(send func(frames.Frame), fr frames.Frame) bool {
		switch fr := fr.(type) {
		case *frames.GetOperationResult:
			send(&frames.OperationResultFrame{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
		case *frames.CoordCommand:
			send(&frames.CoordCommandResult{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationSucceeded, Sequence: 22}})
		}
		return true
	}})
	stdout, stderr, code := runPython(t, "work.py", "--context", f.path, "resume")
	require.Zero(t, code, stderr)
	first := requireOneCommand(t, f, []frames.Type{frames.TypeCoordCommand, frames.TypeGetOperationResult, frames.TypeCoordCommand})
	requireSucceeded(t, first, stdout)
	requireNothingUnresolved(t, f)
}

// A command of a history that was lost is indeterminate, and no program sends it again.
func TestPythonSendsNothingIntoAnotherHistory(t *testing.T) {
	t.Parallel()
	needPython(t)
	f := newForger(t, "")
	f.activate(7, 7, 1, lies{request: func(func(frames.Frame), frames.Frame) bool { return false }})
	_, stderr, code := runPython(t, "work.py", "--context", f.path, "--timeout", "0.5", "create", "--title", "once")
	require.Equal(t, 6, code, stderr)
	before := len(f.requests())
	f.activate(8, 8, 2, lies{
		begin: func(b *frames.SnapshotBegin) {
			b.Bases = []frames.ActivationBase{{Activation: 3}, {Activation: 8, Base: 19}}
		},
		request: func(send func(frames.Frame), fr frames.Frame) bool {
			if fr, ok := fr.(*frames.GetOperationResult); ok {
				send(&frames.OperationResultFrame{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
			}
			return true
		},
	})
	for range 2 { // it stays so
		_, stderr, code = runPython(t, "work.py", "--context", f.path, "resume")
		require.Equal(t, 6, code, stderr)
		require.Contains(t, stderr, "indeterminate: the history in which this operation may have run was lost")
	}
	for _, fr := range f.requests()[before:] {
		require.Equal(t, frames.TypeGetOperationResult, fr.Type())
	}
}

// requireNothingUnresolved looks into the client's memory.
func requireNothingUnresolved(t *testing.T, f *forger) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(f.path), "python-authority."+f.pins.CoordinatorID.String()+".json"))
	require.NoError(t, err)
	var memory struct{ Operations map[string]any }
	require.NoError(t, json.Unmarshal(raw, &memory))
	require.NotNil(t, memory.Operations)
	require.Empty(t, memory.Operations)
}

// requireOneCommand holds the requests to their order and every command to the first, which it
// returns: one id, one digest.
func requireOneCommand(t *testing.T, f *forger, want []frames.Type) (first *frames.CoordCommand) {
	t.Helper()
	var got []frames.Type
	for _, fr := range f.requests() {
		got = append(got, fr.Type())
		switch fr := fr.(type) {
		case *frames.CoordCommand:
			if first == nil {
				first = fr
			}
			require.Equal(t, first.OperationID, fr.OperationID)
			require.True(t, bytes.Equal(first.Payload, fr.Payload))
		case *frames.GetOperationResult:
			require.Equal(t, first.OperationID, fr.OperationID)
		}
	}
	require.Equal(t, want, got)
	return first
}

func requireSucceeded(t *testing.T, first *frames.CoordCommand, stdout string) {
	t.Helper()
	var made struct {
		OperationID string `json:"operation_id"`
		State       string
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &made))
	require.Equal(t, first.OperationID.String(), made.OperationID)
	require.Equal(t, "SUCCEEDED", made.State)
}
