package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/codec"
	"coordinator/frames"
)

// proof is a run that ended well, with all its evidence, for tests to spoil.
type proof struct {
	f      *runs.Family
	b      frames.Binding
	events []*client.Event
	output []byte
	m      frames.EvidenceManifest
	after  frames.EventCut
}

func newProof(t *testing.T) *proof {
	p := &proof{output: []byte("hello, world\r\n"), b: frames.Binding{Binding: frames.TerminalBindingRef{BindingID: frames.BindingID{4}}, State: frames.StateEnded}}
	seal := frames.NewEvidenceSeal(frames.CoordinatorID{0xc0}, frames.BindingID{4})
	add := func(kind frames.SourceFactKind, payload codec.Value) {
		raw, err := codec.EncodeImage(nil, payload)
		require.NoError(t, err)
		f := &frames.TerminalSourceFact{Source: frames.TerminalSourceRef{BindingID: frames.BindingID{4}, Owner: frames.Fingerprint{1}, OwnerIncarnation: frames.IncarnationID{1},
			Sequence: frames.SourceSequence(len(p.events) + 1)}, Kind: kind, Schema: 1, Payload: raw}
		image, err := codec.EncodeImage(nil, f)
		require.NoError(t, err)
		require.NoError(t, seal.Add(f))
		p.events = append(p.events, &client.Event{Sequence: frames.EventSequence(len(p.events) + 1), Kind: frames.EventSourceFactAdmitted,
			Object: runs.Ref(frames.KindBinding, frames.BindingID{4}), Payload: image})
	}
	status := int32(3)
	add(frames.FactOpened, &frames.Opened{})
	for _, r := range [][2]int{{0, 5}, {5, 14}} {
		add(frames.FactOutputRange, &frames.OutputRange{First: uint64(r[0] + 1), Last: uint64(r[1]), ByteCount: uint64(r[1] - r[0]), Content: sha256.Sum256(p.output[r[0]:r[1]])})
	}
	add(frames.FactClosed, &frames.Closed{Known: true, Status: status})
	outcome, err := codec.EncodeImage(nil, &frames.Closed{Known: true, Status: status})
	require.NoError(t, err)
	p.m = frames.EvidenceManifest{BindingID: frames.BindingID{4}, FactCount: 4, OutputBytes: 14, ExitStatus: &status, Seal: seal.Sum()}
	p.f = &runs.Family{ID: frames.RunID{2}, Run: frames.Run{State: frames.RunFailed, Outcome: outcome},
		Evidence: map[frames.BindingID]frames.Evidence{{4}: {ArtifactID: frames.ArtifactID{5}, Seal: seal.Sum()}},
		Manifest: map[frames.ArtifactID]frames.ArtifactManifest{}}
	return p
}

// report is what verify prints of it, output included.
func (p *proof) report(t *testing.T) (text string, err error) {
	raw, err := codec.Encode(nil, &p.m)
	require.NoError(t, err)
	if _, gone := p.f.Manifest[frames.ArtifactID{6}]; !gone {
		p.f.Manifest[frames.ArtifactID{5}] = frames.ArtifactManifest{ArtifactID: frames.ArtifactID{5}, Revision: 1, Schema: 1, Manifest: raw}
	}
	l := client.NewLedger(frames.CoordinatorID{0xc0}, frames.BindingID{4})
	for _, e := range p.events {
		require.NoError(t, l.Take(e))
	}
	var out, shown bytes.Buffer
	check := l.Check(&shown)
	_, err = check.Write(p.output)
	require.NoError(t, err)
	findings := append(p.f.Compare(p.b, l, p.after), runs.JudgeOutput(l, p.after, check))
	err = (&app{stdout: &out}).showFindings(p.f, p.b, l, findings)
	return out.String(), err
}

// TestC16_EvidenceIsHeldAgainstEverything spoils each thing that a verification compares.
func TestC16_EvidenceIsHeldAgainstEverything(t *testing.T) {
	one := int32(1)
	var all strings.Builder
	for _, tt := range []struct {
		name   string
		spoil  func(p *proof)
		proved bool
	}{
		{"nothing", func(*proof) {}, true},
		{"a fact was changed", func(p *proof) { e := p.events[1]; e.Payload[len(e.Payload)-1] ^= 1 }, false},
		{"a fact is missing in the middle", func(p *proof) { p.events = append(p.events[:1], p.events[2:]...) }, false},
		{"the first fact is missing", func(p *proof) { p.events = p.events[1:] }, false},
		{"retention removed the first fact", func(p *proof) { p.events, p.after = p.events[1:], 2 }, false},
		{"retention removed all facts", func(p *proof) { p.events, p.after = nil, 9 }, false},
		{"retention removed only what came before", func(p *proof) { p.after = 2 }, true},
		{"a source gap", func(p *proof) {
			p.events = append(p.events, &client.Event{Kind: frames.EventSourceGap, Object: runs.Ref(frames.KindBinding, frames.BindingID{4})})
		}, false},
		{"the EVIDENCE record's seal", func(p *proof) {
			p.f.Evidence[frames.BindingID{4}] = frames.Evidence{ArtifactID: frames.ArtifactID{5}, Seal: [32]byte{9}}
		}, false},
		{"no EVIDENCE record", func(p *proof) { clear(p.f.Evidence) }, false},
		{"no manifest", func(p *proof) { p.f.Manifest[frames.ArtifactID{6}] = frames.ArtifactManifest{} }, false},
		{"the manifest's seal", func(p *proof) { p.m.Seal[0] ^= 1 }, false},
		{"the manifest's binding", func(p *proof) { p.m.BindingID[0] ^= 1 }, false},
		{"the manifest's fact count", func(p *proof) { p.m.FactCount++ }, false},
		{"the manifest's output bytes", func(p *proof) { p.m.OutputBytes-- }, false},
		{"the manifest's exit status", func(p *proof) { p.m.ExitStatus = &one }, false},
		{"the manifest has no exit status", func(p *proof) { p.m.ExitStatus = nil }, false},
		{"the run's outcome", func(p *proof) { p.f.Run.Outcome[4] ^= 1 }, false},
		{"the run has no outcome", func(p *proof) { p.f.Run.Outcome = nil }, false},
		{"a byte of output", func(p *proof) { p.output[7] ^= 1 }, false},
		{"output that no fact covers", func(p *proof) { p.output = append(p.output, '!') }, false},
		{"output that the cap kept away, or somebody cut off", func(p *proof) { p.output = p.output[:7] }, false},
		{"all output is gone", func(p *proof) { p.output = nil }, false},
		{"another session's EVIDENCE", func(p *proof) {
			e := p.f.Evidence[frames.BindingID{4}]
			e.WorkSessionID[0]++
			p.f.Evidence[frames.BindingID{4}] = e
		}, false},
		{"another fact with the same sequence", func(p *proof) { p.events = append(p.events, p.events[2]) }, false},
		{"the CLOSED fact's status", func(p *proof) { p.events[3].Payload[len(p.events[3].Payload)-1] ^= 1 }, false},
		{"facts of another owner among them", func(p *proof) { p.events[1].Payload[16] ^= 1 }, false},
	} {
		p := newProof(t)
		tt.spoil(p)
		text, err := p.report(t)
		if tt.proved {
			require.NoError(t, err, "%s\n%s", tt.name, text)
		} else {
			require.ErrorIs(t, err, errNotProved, "%s\n%s", tt.name, text)
		}
		fmt.Fprintf(&all, "# %s\n%s\n", tt.name, text)
	}
	golden(t, "evidence", all.String())
}

func TestStatusCodes(t *testing.T) {
	for status, code := range map[int32]int{0: 0, 1: 1, 255: 255, -9: 137, -15: 143} {
		require.Equal(t, code, statusCode(status))
	}
}

// TestAddOwner edits configurations and leaves what is there.
func TestAddOwner(t *testing.T) {
	pin, other := frames.Fingerprint{1}, frames.Fingerprint{2}
	for _, text := range []string{"", "a = 1", "a = 1\n", "[witness]\nsocket = \"x\"\n# [[owner]]\n# name = \"local\"\n"} {
		got, err := addOwner(text, "local", "/s/owner.sock", pin)
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(got, text))
		require.Contains(t, got, "\n[[owner]]\nname = \"local\"\nsocket = \"/s/owner.sock\"\n")
		again, err := addOwner(got, "local", "/elsewhere", pin)
		require.NoError(t, err)
		require.Equal(t, got, again, "that owner is there")
		more, err := addOwner(got, "local", "/s/other.sock", other)
		require.NoError(t, err)
		require.Contains(t, more, `name = "local-2"`)
	}
	for _, bad := range []string{"a = ", "owner = 3\n", "[owner]\nname = \"x\"\n"} {
		_, err := addOwner(bad, "local", "/s", pin)
		require.Error(t, err, "%q", bad)
	}
}

func TestRunDocument(t *testing.T) {
	f := runFlags{cwd: "/w", env: []string{"A=1", "B=x=y"}, grace: 9, given: func(flag string) bool { return flag == "grace" }}
	raw, err := f.document([]string{"make", "all"}, io.Discard)
	require.NoError(t, err)
	require.JSONEq(t, `{"argv":["make","all"],"cwd":"/w","env":{"A":"1","B":"x=y"},"grace_secs":9}`, string(raw))
	for name, tt := range map[string]struct {
		f    runFlags
		argv []string
	}{
		"relative directory":       {runFlags{cwd: "w"}, []string{"x"}},
		"no name":                  {runFlags{cwd: "/", env: []string{"=1"}}, []string{"x"}},
		"zero byte in an argument": {runFlags{cwd: "/"}, []string{"a\x00b"}},
		"a variable twice":         {runFlags{cwd: "/", env: []string{"A=1", "A=2"}}, []string{"x"}},
		"zero byte in a value":     {runFlags{cwd: "/", env: []string{"A=\x00"}}, []string{"x"}},
		// JSON would quietly carry another command than this one.
		"an argument that is no text":  {runFlags{cwd: "/"}, []string{"cat", "\xff"}},
		"a value that is no text":      {runFlags{cwd: "/", env: []string{"A=\xff"}}, []string{"x"}},
		"a name that is no text":       {runFlags{cwd: "/", env: []string{"\xff=1"}}, []string{"x"}},
		"a directory that is no text":  {runFlags{cwd: "/\xff"}, []string{"x"}},
		"a megabyte of environment":    {runFlags{cwd: "/", env: []string{"A=" + strings.Repeat("z", 1<<20)}}, []string{"x"}},
		"more than a coordinator has":  {runFlags{cwd: "/", env: []string{"A=" + strings.Repeat("z", 128<<10)}}, []string{"x"}},
		"an argument that is too long": {runFlags{cwd: "/"}, []string{"x", strings.Repeat("z", 200<<10)}},
	} {
		_, err := tt.f.document(tt.argv, io.Discard)
		var use *usageError
		require.ErrorAs(t, err, &use, name)
		require.NotContains(t, err.Error(), "zzz", "no value is shown")
	}
	require.Equal(t, "make all", (&runFlags{}).objectiveTitle([]string{"make", "all"}))
	require.Equal(t, "given", (&runFlags{title: "given"}).objectiveTitle([]string{"make"}))
}

// TestRunDocumentOnATerminal takes the size of the terminal that shows the output.
func TestRunDocumentOnATerminal(t *testing.T) {
	master, terminal, err := pty.Open()
	require.NoError(t, err)
	defer master.Close()
	defer terminal.Close()
	require.NoError(t, pty.Setsize(master, &pty.Winsize{Rows: 33, Cols: 101}))
	t.Setenv("TERM", "vt220")
	f := runFlags{cwd: "/"}
	raw, err := f.document([]string{"top"}, terminal)
	require.NoError(t, err)
	require.JSONEq(t, `{"argv":["top"],"cwd":"/","rows":33,"cols":101,"term":"vt220"}`, string(raw))
	t.Setenv("TERM", "")
	raw, err = f.document([]string{"top"}, terminal)
	require.NoError(t, err)
	require.JSONEq(t, `{"argv":["top"],"cwd":"/","rows":33,"cols":101}`, string(raw))
	f.detach = true // nobody looks at it here
	raw, err = f.document([]string{"top"}, terminal)
	require.NoError(t, err)
	require.JSONEq(t, `{"argv":["top"],"cwd":"/"}`, string(raw))
}
