package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file, after what differs from run to run has been replaced.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

var anyID = regexp.MustCompile(`[0-9a-f]{32}`)

// record makes one record of kind, whose id ends in n.
func record(t *testing.T, kind frames.ObjectKind, n byte, payload codec.Message) frames.SnapshotRecord {
	r, err := frames.NewRecord(frames.ObjectRef{Kind: kind, ID: frames.ObjectID{byte(kind), 0xab, 0xcd, 15: n}}, frames.ObjectRevision(n), payload)
	require.NoError(t, err)
	return r
}

// oneOfEach are records of every kind.
func oneOfEach(t *testing.T) []frames.SnapshotRecord {
	body := func(m codec.Message) []byte {
		b, err := codec.Encode(nil, m)
		require.NoError(t, err)
		return b
	}
	ended, revoked := frames.EndCancelled, uint64(1_800_000_500)
	ref := frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{1}}
	image, err := codec.EncodeImage(nil, &ref)
	require.NoError(t, err)
	return []frames.SnapshotRecord{
		record(t, frames.KindObjective, 1, &frames.Objective{DocumentSchema: 1, Document: []byte(`{"title":"First \u0007 work","more":[1,2]}`)}),
		record(t, frames.KindObjective, 2, &frames.Objective{DocumentSchema: 1, Document: []byte{0xff, 0}, State: frames.ObjectiveCompleted}),
		record(t, frames.KindRun, 1, &frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 2, State: frames.RunFailed, Outcome: []byte{1, 0xff, 0xff, 0xff, 0xf7}}),
		record(t, frames.KindWorkSession, 1, &frames.WorkSession{RunID: frames.RunID{2}, ActiveBinding: frames.BindingID{4}}),
		record(t, frames.KindBinding, 1, &frames.Binding{State: frames.StateEnded, Reason: &ended, Binding: frames.TerminalBindingRef{
			BindingID: frames.BindingID{4}, WorkSessionID: frames.WorkSessionID{3}, OwnerIncarnation: frames.IncarnationID{9}, Resource: frames.ResourceID{Host: "far", ID: 3}}}),
		record(t, frames.KindArtifact, 1, &frames.Artifact{WorkSessionID: frames.WorkSessionID{3}, LatestRevision: 4}),
		record(t, frames.KindSignal, 1, &frames.Signal{WorkSessionID: frames.WorkSessionID{3}, Kind: frames.SignalEvidenceGap, Message: "gap"}),
		record(t, frames.KindOperation, 1, &frames.Operation{Result: frames.OperationResult{State: frames.OperationSucceeded, Sequence: 8, Kind: frames.ResultObjectRef, Payload: image}}),
		record(t, frames.KindOperation, 2, &frames.Operation{Result: frames.OperationResult{State: frames.OperationRejected, Sequence: 9, Code: frames.CodeNotFound, Message: "gone"}}),
		record(t, frames.KindEvidence, 1, &frames.Evidence{WorkSessionID: frames.WorkSessionID{3}, ArtifactID: frames.ArtifactID{5}}),
		record(t, frames.KindAdmin, 1, &frames.Admin{Kind: frames.AdminActivation, Payload: body(&frames.Activation{Epoch: 7, Activation: 7, Incarnation: frames.IncarnationID{7}, WitnessID: frames.WitnessID{8}, ActivatedAt: 1_800_000_000})}),
		record(t, frames.KindAdmin, 2, &frames.Admin{Kind: frames.AdminRetention, Payload: body(&frames.Retention{OperationResultSecs: 2_592_000, EventBytes: 1, ArtifactBytes: 2})}),
		record(t, frames.KindAdmin, 3, &frames.Admin{Kind: frames.AdminCredential, Payload: body(&frames.Credential{ScopeCeiling: 3, ExpiresAt: 1 << 60, RevokedAt: &revoked})}),
		record(t, frames.KindArtifactManifest, 1, &frames.ArtifactManifest{ArtifactID: frames.ArtifactID{5}, Revision: 4, Schema: 1, Manifest: []byte(`{"a":1}`)}),
	}
}

func TestGetShowsEveryKind(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	for _, k := range kindNames {
		name := k.names[0]
		t.Run(name, func(t *testing.T) {
			table, js := f.cli("get", name), f.cli("get", name, "-o", "json")
			require.Equal(t, 0, table.code, table.errout)
			require.Empty(t, table.errout)
			golden(t, "get_"+name, table.out+"\n"+js.out)
			var list []map[string]any
			js.decode(t, &list)
			id := list[0]["id"].(string)
			one := f.cli("get", name, id[:8]+strings.ToUpper(id[8:]), "-o", "json")
			var single map[string]any
			one.decode(t, &single)
			require.Equal(t, list[0], single)
			require.NotContains(t, table.out+f.cli("get", name, id).out, "\a", "a record must not steer the terminal")
		})
	}
}

func TestGetPrefixes(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	require.Equal(t, exitUsage, f.cli("get", "objective", "01abc").code)
	require.Equal(t, exitUsage, f.cli("get", "objective", "01abcx").code)
	many := f.cli("get", "objective", "01abcd")
	require.Equal(t, exitUsage, many.code)
	require.Contains(t, many.errout, "2 OBJECTIVE records")
	none := f.cli("get", "objective", "01abce")
	require.Equal(t, exitRefused, none.code)
	require.Contains(t, none.errout, "NOT_FOUND")
	require.Equal(t, exitDone, f.cli("get", "run", "02abcd").code)
	f.records = nil
	require.Equal(t, "[]\n", f.cli("get", "run", "-o", "json").out)
}

func TestCommandsAskForNoMoreThanTheyNeed(t *testing.T) {
	require.False(t, capsFor(frames.KindObjective).Has(frames.CapAdministration))
	require.True(t, capsFor(frames.KindObjective).Has(frames.CapWithoutOperations))
	require.False(t, capsFor(frames.KindOperation).Has(frames.CapWithoutOperations))
	require.True(t, capsFor(frames.KindAdmin).Has(frames.CapAdministration))
}

// answer replies to commands and lookups with one result.
func answer(r frames.OperationResult) func(*fakeConn, frames.Frame) {
	return func(c *fakeConn, fr frames.Frame) {
		switch fr := fr.(type) {
		case *frames.CoordCommand:
			c.send(&frames.CoordCommandResult{RequestID: fr.RequestID, Operation: r})
		case *frames.GetOperationResult:
			c.send(&frames.OperationResultFrame{RequestID: fr.RequestID, Operation: r})
		}
	}
}

func TestResultsAndTheirExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		result frames.OperationResult
		code   int
	}{
		"succeeded":     {frames.OperationResult{State: frames.OperationSucceeded, Sequence: 6}, exitDone},
		"pending":       {frames.OperationResult{State: frames.OperationPending, Epoch: 7, Sequence: 6}, exitDone},
		"rejected":      {frames.OperationResult{State: frames.OperationRejected, Sequence: 6, Code: frames.CodeScopeDenied, Message: "late"}, exitRefused},
		"indeterminate": {frames.OperationResult{State: frames.OperationIndeterminate, Reason: frames.TargetOutcomeUnknown, Attempt: frames.EffectAttemptID{3}}, exitUnknown},
		"tombstoned":    {frames.OperationResult{State: frames.OperationTombstoned, Digest: [32]byte{4}, Final: frames.OperationSucceeded}, exitDone},
		"unknown":       {frames.OperationResult{State: frames.OperationUnknown}, exitUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.other = answer(tt.result)
			f.listen()
			id := strings.Repeat("ab", 16)
			r := f.cli("op", "get", id)
			js := f.cli("op", "get", id, "-o", "json")
			require.Equal(t, tt.code, r.code)
			require.Equal(t, tt.code, js.code)
			golden(t, "result_"+name, scrub(f, r.out+"\n"+js.out+"\n"+r.errout))
		})
	}
}

// TestTheWordsOfTheOtherSideAreInert: a process owner may have put a client's words into them.
func TestTheWordsOfTheOtherSideAreInert(t *testing.T) {
	f := newFake(t)
	f.other = answer(frames.OperationResult{State: frames.OperationRejected, Sequence: 6, Code: frames.CodeInternal, Message: "no \x1b]0;x\a\n  next: rm"})
	f.listen()
	r := f.cli("op", "get", strings.Repeat("ab", 16))
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.errout, "REJECTED INTERNAL: no \ufffd]0;x\ufffd\ufffd  next: rm\n")
	require.NotContains(t, r.out+r.errout, "\x1b")
}

// scrub takes paths and ids that differ from run to run out of a text.
func scrub(f *fake, text string) string {
	text = strings.ReplaceAll(text, filepath.Dir(filepath.Dir(f.path)), "DIR")
	fixed := strings.Repeat("ab", 16)
	return anyID.ReplaceAllStringFunc(text, func(id string) string {
		if id == fixed || strings.HasSuffix(id, "00000000") {
			return id
		}
		return "<id>"
	})
}

// TestFailuresSayWhatWhereAndWhatNext holds each way of failing to its own text and exit
// code.
func TestFailuresSayWhatWhereAndWhatNext(t *testing.T) {
	create := []string{"create", "objective", "--title", "A b"}
	for _, tt := range []struct {
		name string
		prep func(t *testing.T, f *fake)
		args []string
		code int
	}{
		{"no_socket", func(*testing.T, *fake) {}, create, exitUnavailable},
		{"nobody_listens", func(t *testing.T, f *fake) {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			require.NoError(t, err)
			require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: f.pins.Socket}))
			require.NoError(t, syscall.Close(fd)) // leaves a stale socket
		}, create, exitUnavailable},
		{"file_for_socket", func(t *testing.T, f *fake) {
			require.NoError(t, os.WriteFile(f.pins.Socket, nil, 0o600))
		}, create, exitUsage},
		{"directory_for_socket", func(t *testing.T, f *fake) { require.NoError(t, os.Mkdir(f.pins.Socket, 0o700)) }, create, exitUsage},
		{"no_context", func(t *testing.T, f *fake) { require.NoError(t, os.Remove(f.path)) }, create, exitUsage},
		{"bad_context", func(t *testing.T, f *fake) {
			require.NoError(t, os.WriteFile(f.path, []byte("colour = 1\n"), 0o600))
		}, create, exitUsage},
		{"no_key", func(t *testing.T, f *fake) { require.NoError(t, os.Remove(f.pins.KeyFile)) }, create, exitUsage},
		{"wrong_key", func(t *testing.T, f *fake) { f.client = f.witness; f.listen() }, create, exitAuthentication},
		{"revoked_key", func(t *testing.T, f *fake) {
			f.listen()
			require.Equal(t, 0, f.cli("status").code)
			f.client = f.witness
		}, create, exitAuthentication},
		{"wrong_server", func(t *testing.T, f *fake) { f.authority = f.witness; f.listen() }, create, exitAuthentication},
		{"lower_authority", func(t *testing.T, f *fake) {
			f.listen()
			require.Equal(t, 0, f.cli("status").code)
			f.activate(6)
		}, create, exitAuthentication},
		{"quarantined", func(t *testing.T, f *fake) {
			f.listen()
			require.Equal(t, 0, f.cli("status").code)
			f.cert.IncarnationID[5]++
			pre, err := f.cert.Preimage()
			require.NoError(t, err)
			f.cert.Signature, err = f.witness.Sign(pre)
			require.NoError(t, err)
		}, create, exitAuthentication},
		{"fenced", func(t *testing.T, f *fake) { f.helloError(frames.CodeAuthorityFenced); f.listen() }, create, exitUnavailable},
		{"other_version", func(t *testing.T, f *fake) { f.helloError(frames.CodeVersionIncompatible); f.listen() }, create, exitRefused},
		{"full", func(t *testing.T, f *fake) { f.helloError(frames.CodeResourceExhausted); f.listen() }, create, exitRefused},
		{"hangs", func(t *testing.T, f *fake) {
			f.hello = func(c *fakeConn) { c.recv() }
			f.listen()
		}, append([]string{"--timeout", "50ms"}, create...), exitUnavailable},
		{"closes", func(t *testing.T, f *fake) { f.hello = func(*fakeConn) {}; f.listen() }, create, exitUnavailable},
		{"scope_denied", func(t *testing.T, f *fake) { f.refuse(frames.CodeScopeDenied); f.listen() }, create, exitRefused},
		{"operation_conflict", func(t *testing.T, f *fake) { f.refuse(frames.CodeOperationConflict); f.listen() }, create, exitRefused},
		{"lost_reply", func(t *testing.T, f *fake) { f.listen() }, create, exitUnknown},
		{"lost_reply_fenced", func(t *testing.T, f *fake) { f.refuse(frames.CodeAuthorityFenced); f.listen() }, create, exitUnknown},
		{"lost_reply_timeout", func(t *testing.T, f *fake) {
			f.other = func(*fakeConn, frames.Frame) {}
			f.listen()
		}, append([]string{"--timeout", "300ms"}, create...), exitUnknown},
		{"bad_snapshot_file", func(t *testing.T, f *fake) {
			require.NoError(t, os.WriteFile(f.path+".snap", []byte("no"), 0o600))
		}, []string{"snapshot", "verify", "CONTEXT.snap"}, exitOther},
		{"no_snapshot_file", func(*testing.T, *fake) {}, []string{"snapshot", "verify", "CONTEXT.snap"}, exitUsage},
		{"snapshot_nowhere", func(_ *testing.T, f *fake) { f.listen() }, []string{"snapshot", "save", "CONTEXT.none/snap"}, exitUsage},
		{"snapshot_over_directory", func(t *testing.T, f *fake) {
			require.NoError(t, os.Mkdir(f.path+".snap", 0o700))
			f.listen()
		}, []string{"snapshot", "save", "CONTEXT.snap"}, exitOther},
		{"document_too_large", func(t *testing.T, f *fake) {
			require.NoError(t, os.WriteFile(f.path+".json", []byte(`{"title":"`+strings.Repeat("x", 200_000)+`"}`), 0o600))
			f.listen()
		}, []string{"create", "objective", "--document", "CONTEXT.json"}, exitRefused},
		{"nothing_to_complete", func(_ *testing.T, f *fake) { f.listen() }, []string{"complete", "objective", "abcdef"}, exitRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			tt.prep(t, f)
			args := make([]string, len(tt.args))
			for i, a := range tt.args {
				args[i] = strings.ReplaceAll(a, "CONTEXT", f.path)
			}
			r := f.cli(args...)
			require.Equal(t, tt.code, r.code, r.errout)
			require.Empty(t, r.out)
			golden(t, "fail_"+tt.name, scrub(f, r.errout))
		})
	}
}

func (f *fake) helloError(code frames.Code) {
	f.hello = func(c *fakeConn) {
		c.send(&frames.CoordError{Code: code, Message: "said so"})
		c.recv()
	}
}

func (f *fake) refuse(code frames.Code) {
	f.other = func(c *fakeConn, fr frames.Frame) {
		if cmd, ok := fr.(*frames.CoordCommand); ok {
			c.send(&frames.CoordError{RequestID: cmd.RequestID, Code: code, Message: "said so"})
		}
	}
}

func TestNoPermissionHasItsOwnText(t *testing.T) {
	a := &app{contextPath: "/none/context.toml"}
	m := a.explain(fmt.Errorf("dial: %w", syscall.EACCES))
	require.Equal(t, exitUnavailable, m.code)
	require.Contains(t, m.what, "no permission")
	require.NotEmpty(t, m.next)
}

// TestLostReplyIsFoundAgain follows the lines that a lost reply prints.
func TestLostReplyIsFoundAgain(t *testing.T) {
	f := newFake(t)
	ran := 0
	f.other = func(c *fakeConn, fr frames.Frame) {
		switch fr := fr.(type) {
		case *frames.CoordCommand:
			if ran++; ran == 1 {
				c.nc.Close()
				return
			}
			c.send(&frames.CoordCommandResult{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationSucceeded, Sequence: 6}})
		case *frames.GetOperationResult:
			c.send(&frames.OperationResultFrame{RequestID: fr.RequestID, Operation: frames.OperationResult{State: frames.OperationUnknown}})
		}
	}
	f.listen()
	r := f.cli("create", "objective", "--title", "It's")
	require.Equal(t, exitUnknown, r.code)
	find := regexp.MustCompile(`coordctl --context \S+ (op get [0-9a-f]{32})`).FindStringSubmatch(r.errout)
	require.NotNil(t, find, r.errout)
	op := strings.Fields(find[1])[2]
	require.Contains(t, f.cli("op", "list").out, op)
	require.Equal(t, exitUnknown, f.cli("op", "get", op[:6]).code, "an unresolved operation's prefix is enough")
	again := regexp.MustCompile(`create objective --op ([0-9a-f]{32}) --id ([0-9a-f]{32}) --title '(.*)'`).FindStringSubmatch(r.errout)
	require.NotNil(t, again, r.errout)
	require.Equal(t, `It'\''s`, again[3])
	other := f.cli("create", "objective", "--op", op, "--id", again[2], "--title", "Other")
	require.Equal(t, exitRefused, other.code, "another command under that id")
	retry := f.cli("create", "objective", "--op", op, "--id", again[2], "--title", "It's")
	require.Equal(t, exitDone, retry.code, retry.errout)
	require.Empty(t, f.cli("op", "list").out)
	require.Equal(t, 2, ran)
}

func TestHistoryLostHoldsTheCommandBackOnce(t *testing.T) {
	f := newFake(t)
	f.other = answer(frames.OperationResult{State: frames.OperationSucceeded, Sequence: 50})
	f.listen()
	require.Equal(t, exitDone, f.cli("create", "objective", "--title", "A").code) // shown event 50
	f.activate(8)                                                                 // whose list does not hold activation 7
	r := f.cli("create", "objective", "--title", "B")
	require.Equal(t, exitUnavailable, r.code)
	require.Contains(t, r.errout, "HISTORY_LOST")
	require.Contains(t, r.errout, "nothing was sent")
	require.Equal(t, exitDone, f.cli("create", "objective", "--title", "B").code)
	require.Contains(t, f.cli("status").out, "HISTORY_LOST")
}

func TestCompleteSendsTheDocumentBackAtItsRevision(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)[:1]
	var got *frames.CoordCommand
	f.other = func(c *fakeConn, fr frames.Frame) {
		got = fr.(*frames.CoordCommand)
		answer(frames.OperationResult{State: frames.OperationSucceeded, Sequence: 6})(c, fr)
	}
	f.listen()
	for verb, want := range map[string]frames.ObjectiveState{"complete": frames.ObjectiveCompleted, "cancel": frames.ObjectiveCancelled} {
		r := f.cli(verb, "objective", "01abcd")
		require.Equal(t, exitDone, r.code, r.errout)
		var u frames.UpdateObjective
		require.NoError(t, codec.Decode(&u, got.Payload))
		require.Equal(t, want, *u.State)
		require.Contains(t, string(u.Document), "First")
		require.Equal(t, []frames.Precondition{{Object: f.records[0].Ref(), Revision: 1}}, got.Preconditions)
	}
}

func TestDocuments(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"title":"From file","n":1}`), 0o600))
	for _, tt := range []struct {
		name   string
		flags  documentFlags
		stdin  string
		want   string
		refuse bool
	}{
		{name: "title", flags: documentFlags{title: `A "b"`}, want: `{"title":"A \"b\""}`},
		{name: "file as it is", flags: documentFlags{document: file}, want: `{"title":"From file","n":1}`},
		{name: "title over file", flags: documentFlags{title: "New", document: file}, want: `{"n":1,"title":"New"}`},
		{name: "standard input", flags: documentFlags{document: "-"}, stdin: `{"title":"x"}`, want: `{"title":"x"}`},
		{name: "nothing", refuse: true},
		{name: "no title in it", flags: documentFlags{document: "-"}, stdin: `{"n":1}`, refuse: true},
		{name: "a title that is no text", flags: documentFlags{document: "-"}, stdin: `{"title":1}`, refuse: true},
		{name: "not an object", flags: documentFlags{document: "-"}, stdin: `[1]`, refuse: true},
		{name: "null", flags: documentFlags{document: "-"}, stdin: `null`, refuse: true},
		{name: "two objects", flags: documentFlags{document: "-"}, stdin: `{"title":"x"}{}`, refuse: true},
		{name: "not UTF-8", flags: documentFlags{document: "-"}, stdin: "{\"title\":\"\xff\"}", refuse: true},
		{name: "title not UTF-8", flags: documentFlags{title: "\xff"}, refuse: true},
		{name: "too large", flags: documentFlags{document: "-"}, stdin: `{"title":"` + strings.Repeat("x", maxDocument) + `"}`, refuse: true},
		{name: "no such file", flags: documentFlags{document: file + "x"}, refuse: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.flags.read(strings.NewReader(tt.stdin))
			if tt.refuse {
				var use *usageError
				require.ErrorAs(t, err, &use)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
		})
	}
}

func TestUsageErrors(t *testing.T) {
	for _, line := range []string{
		"frob", "create", "create thing", "create objective", "create objective --title x extra", "create objective --title x --id zz",
		"create objective --title x --op 11111111111111111111111111111111", "create objective --title x --op 11",
		"update objective", "update objective 123456", "update objective 123456 --title x --if-revision 0",
		"update objective 123456 --title x --if-revision -1", "complete objective", "complete objective 12345",
		"archive", "archive objective", "archive objective 12345", "archive objective 123456 --if-revision 0", "archive run 123456", "get", "get thing",
		"get objective 1 2", "get objective 12345g", "op", "op get", "op get 12", "op forget 123456", "keygen", "ping x", "status --frob",
		"snapshot", "snapshot save", "snapshot diff a", "status -o xml", "status --timeout 0s", "status --timeout x", "status --wait -1s", "up --lease 5", "up --lease 61", "up x", "up --state=",
	} {
		t.Run(line, func(t *testing.T) {
			f := newFake(t)
			r := f.cli(strings.Fields(line)...)
			require.Equal(t, exitUsage, r.code, r.errout)
			require.True(t, strings.HasPrefix(r.errout, "coordctl: "), r.errout)
		})
	}
}

func TestKeygen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys", "my.key")
	r := cli("keygen", "--out", file)
	require.Equal(t, exitDone, r.code, r.errout)
	require.Regexp(t, `^ed25519:[0-9a-f]{64}\n$`, r.out)
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	require.Equal(t, int64(32), st.Size())
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, exitUsage, cli("keygen", "--out", file).code)
	after, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, before, after, "a key was replaced")

	// Any directory will do that nobody else can change, and no other.
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o755))
	for mode, code := range map[os.FileMode]int{0o755: exitDone, 0o777 | os.ModeSticky: exitDone, 0o777: exitOther, 0o775: exitOther} {
		require.NoError(t, os.Chmod(open, mode))
		file := filepath.Join(open, fmt.Sprintf("%v.key", mode.Perm()|mode&os.ModeSticky))
		r = cli("keygen", "--out", file)
		require.Equal(t, code, r.code, r.errout)
		if code != exitDone {
			require.Contains(t, r.errout, "run: chmod go-w "+open)
			require.NoFileExists(t, file)
			continue
		}
		require.Regexp(t, `^ed25519:[0-9a-f]{64}\n$`, r.out)
		require.Empty(t, r.errout)
		st, err = os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	}
}

// TestAContextInAnOpenDirectory uses a key, and keeps the memory, where others may read.
func TestAContextInAnOpenDirectory(t *testing.T) {
	f := newFake(t)
	f.listen()
	dir := filepath.Dir(f.path)
	require.NoError(t, os.Chmod(dir, 0o755))
	require.Equal(t, exitDone, f.cli("ping").code)
	require.Equal(t, exitDone, f.cli("ping").code)
	require.NoError(t, os.Chmod(dir, 0o777))
	r := f.cli("ping")
	require.Equal(t, exitUsage, r.code)
	require.Contains(t, r.errout, "run: chmod go-w "+dir)
}

// TestAKeyNamedAsContextIsNotQuoted gives a secret where a context belongs.
func TestAKeyNamedAsContextIsNotQuoted(t *testing.T) {
	f := newFake(t)
	for _, secret := range []string{"0123456789abcdef0123456789ABCDEF", "\xfe\xca" + strings.Repeat("k", 40)} {
		require.NoError(t, os.WriteFile(f.pins.KeyFile, []byte(secret), 0o600))
		r := cli("--context", f.pins.KeyFile, "ping")
		require.Equal(t, exitUsage, r.code)
		require.Contains(t, r.errout, "not a context file")
		require.NotContains(t, r.errout, "byte")
		require.NotContains(t, r.errout, secret[:2]+secret[2:8])
	}
}

// TestLinesToPasteAreWhole holds what is offered for pasting to a shell's rules.
func TestLinesToPasteAreWhole(t *testing.T) {
	f := newFake(t)
	stdin := strings.NewReader(`{"title":"x"}`)
	var out, errout strings.Builder
	code := run([]string{"--context", f.path, "create", "objective", "--document", "-"}, stdin, &out, &errout)
	require.Equal(t, exitUnavailable, code)
	require.Contains(t, errout.String(), "then again (with the same standard input): coordctl")
	require.Regexp(t, `--id [0-9a-f]{32} --document -\n`, errout.String())

	odd := filepath.Join(t.TempDir(), "it's (odd); $HOME")
	r := cli("--context", odd, "create", "objective", "--title", "-x `id`")
	require.Equal(t, exitUsage, r.code)
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	for _, line := range strings.Split(r.errout, "\n") {
		_, paste, found := strings.Cut(line, "then again: coordctl ")
		if !found {
			continue
		}
		words, err := exec.Command(sh, "-c", "set -- "+paste+`; for w in "$@"; do printf '<%s>' "$w"; done`).Output()
		require.NoError(t, err)
		require.Contains(t, string(words), "<--context><"+odd+">")
		require.True(t, strings.HasSuffix(string(words), "<--title><-x `id`>"), string(words))
		return
	}
	t.Fatal("no line to paste: " + r.errout)
}

func TestSnapshotCommands(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)
	f.listen()
	dir := t.TempDir()
	a, b, c := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "c")
	require.Equal(t, exitDone, f.cli("snapshot", "save", a).code)
	f.activate(8)
	require.Equal(t, exitDone, f.cli("snapshot", "save", b).code)
	require.Equal(t, exitDone, f.cli("snapshot", "save", c, "--admin").code)
	r := f.cli("snapshot", "diff", a, b)
	require.Equal(t, exitDone, r.code)
	require.Equal(t, "same: 11 records are byte for byte the same (epoch 7 and epoch 8)\n", r.out)
	r = f.cli("snapshot", "diff", a, c)
	require.Equal(t, exitOther, r.code)
	require.Equal(t, "different: from record 11 on (11 records at epoch 7, 14 at epoch 8)\n", r.out)
	require.Equal(t, exitDone, f.cli("snapshot", "verify", a).code)
	raw, err := os.ReadFile(a)
	require.NoError(t, err)
	raw[len(raw)-1] ^= 1
	require.NoError(t, os.WriteFile(a, raw, 0o600))
	require.Equal(t, exitOther, f.cli("snapshot", "verify", a).code)
	require.Equal(t, exitOther, f.cli("snapshot", "diff", a, b).code)
}

func TestDefaultContext(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/xdg")
	require.Equal(t, "/xdg/coordinator/client/context.toml", defaultContext())
	t.Setenv("XDG_STATE_HOME", "relative")
	t.Setenv("HOME", "/home/me")
	require.Equal(t, "/home/me/.local/state/coordinator/client/context.toml", defaultContext())
	a := &app{contextPath: "/s p/client/context.toml"}
	require.Equal(t, "coordctl --context '/s p/client/context.toml' status", a.line("status"))
	require.Equal(t, "coordctl up --state '/s p'", a.upLine())
	a.contextPath = defaultContext()
	require.Equal(t, "coordctl status", a.line("status"))
	require.Equal(t, "coordctl up", a.upLine())
}

func TestLocalTroubleIsNotTheCoordinators(t *testing.T) {
	a := &app{contextPath: "/none/context.toml"}
	err := fmt.Errorf("handshake: %w", &client.StateError{Path: "/none/memory", Problem: "cannot be written: no space", Cause: syscall.ENOSPC})
	m := a.explain(&commandError{frames.OperationID{1}, again{args: "ping"}, false, notRun(err)})
	require.Equal(t, exitOther, m.code)
	require.Equal(t, "client state /none/memory: cannot be written: no space", m.what)
	require.Contains(t, m.sent, "did not run")
	missing := &client.StateError{Path: "/none/memory", Problem: "cannot be written", Cause: &os.PathError{Op: "open", Path: "/none", Err: syscall.ENOENT}}
	require.Equal(t, exitOther, a.explain(missing).code, "what failed locally names no missing context")
}

// brokenPipe takes nothing.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestAResultThatCannotBePrintedStands runs a command whose output goes nowhere: it ran,
// and nothing may say otherwise.
func TestAResultThatCannotBePrintedStands(t *testing.T) {
	f := newFake(t)
	f.records = oneOfEach(t)[:1]
	f.other = answer(frames.OperationResult{State: frames.OperationSucceeded, Sequence: 6})
	f.listen()
	for _, args := range [][]string{{"create", "objective", "--title", "x"}, {"complete", "objective", "01abcd"}, {"update", "objective", "01abcd", "--title", "y"}} {
		var errout strings.Builder
		code := run(append([]string{"--context", f.path}, args...), strings.NewReader(""), brokenPipe{}, &errout)
		require.Equal(t, exitOther, code)
		require.NotContains(t, errout.String(), "did not run")
		require.Regexp(t, `operation [0-9a-f]{32} has been answered: its result stands`, errout.String())
		require.Regexp(t, `op get [0-9a-f]{32}`, errout.String())
	}
}

// TestAResultThatCannotBeRememberedStands loses the memory while the command runs.
func TestAResultThatCannotBeRememberedStands(t *testing.T) {
	f := newFake(t)
	reply := answer(frames.OperationResult{State: frames.OperationSucceeded, Sequence: 6})
	f.other = func(c *fakeConn, fr frames.Frame) {
		dir := filepath.Dir(f.path)
		if err := os.Rename(dir, dir+".away"); err != nil {
			panic(err)
		}
		reply(c, fr)
	}
	f.listen()
	r := f.cli("create", "objective", "--title", "x")
	require.Equal(t, exitOther, r.code, r.errout)
	require.Contains(t, r.out, "SUCCEEDED")
	require.NotContains(t, r.errout, "did not run")
	require.Contains(t, r.errout, "its result stands")
}
