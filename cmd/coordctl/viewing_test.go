package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// A live is a command that goes on, in this process, on one fake.
type live struct {
	t    *testing.T
	out  *safeBuffer
	err  *safeBuffer
	done chan error
}

// on begins what shows to out; leave ends it as Ctrl-C does.
func (f *fake) on(out string, args ...string) *live {
	f.t.Helper()
	l := &live{t: f.t, out: &safeBuffer{}, err: &safeBuffer{}, done: make(chan error, 1)}
	a := &app{stdin: strings.NewReader(""), stdout: l.out, stderr: l.err}
	root := a.root()
	root.SetArgs(append([]string{"--context", f.path, "-o", out}, args...))
	go func() { l.done <- root.ExecuteContext(f.t.Context()) }()
	f.t.Cleanup(func() { // the test's context has ended
		if len(l.done) == 0 {
			<-l.done
		}
	})
	return l
}

func (l *live) shows(text string) {
	l.t.Helper()
	eventually(l.t, "it shows "+text, func() bool { return strings.Contains(l.out.String(), text) })
}

func objectiveAt(t *testing.T, revision byte, state frames.ObjectiveState, title string) frames.SnapshotRecord {
	r := record(t, frames.KindObjective, 1, &frames.Objective{DocumentSchema: 1, Document: []byte(`{"title":"` + title + `"}`), State: state})
	r.Revision = frames.ObjectRevision(revision)
	return r
}

func runOf(t *testing.T, n byte) frames.SnapshotRecord {
	r := record(t, frames.KindRun, n, &frames.Run{ObjectiveID: frames.ObjectiveID(objectiveAt(t, 1, 0, "x").ID), Attempt: uint32(n)})
	r.Revision = 1
	return r
}

func TestDescribeGoesOn(t *testing.T) {
	f := newFake(t)
	f.records = []frames.SnapshotRecord{objectiveAt(t, 1, frames.ObjectiveActive, "one")}
	f.listen()
	text, js := f.on("text", "describe", "objective", "01abcd", "--watch"), f.on("json", "describe", "objective", "01abcd", "-w")
	f.whileFollowed(2)
	text.shows("operations  none visible")
	js.shows("\n")
	require.NotContains(t, text.out.String(), "as of event")
	f.happen(frames.EventObjectiveChanged, objectiveAt(t, 2, frames.ObjectiveActive, "two"))
	text.shows("+     \"title\": \"two\"")
	other := objectiveAt(t, 1, frames.ObjectiveActive, "another")
	other.ID = frames.ObjectID{9}
	f.happen(frames.EventObjectiveChanged, other) // which is not shown
	f.cut()
	f.whileFollowed(2)
	f.happen(frames.EventRunChanged, runOf(t, 7))
	text.shows("-- as of event 8")
	js.shows(runOf(t, 7).ID.String()) // what comes at once is shown at once
	f.happen(frames.EventObjectRemoved, objectiveAt(t, 3, frames.ObjectiveActive, "two"))
	for _, l := range []*live{text, js} {
		require.NoError(t, <-l.done, l.err.String())
		require.NotContains(t, l.out.String(), "another")
		l.done <- nil
	}
	require.Contains(t, text.out.String(), "-- as of event 6\n- revision         1\n-     \"title\": \"one\"\n+ revision         2\n+     \"title\": \"two\"\n")
	require.Contains(t, text.out.String(), "-- as of event 8\n- related  none visible\n+ related\n+   RUN  "+runOf(t, 7).ID.String()+"  1  Planned\n")
	require.Contains(t, text.out.String(), "-- gap: ")
	require.Contains(t, text.out.String(), "-- healed ")
	require.Contains(t, text.out.String(), "is gone")
	var titles []string
	for line := range strings.Lines(js.out.String()) {
		var o struct {
			Type    string
			Related []any
			Payload struct{ Document struct{ Title string } }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &o), line)
		if o.Type == "" {
			titles = append(titles, o.Payload.Document.Title+strings.Repeat("+", len(o.Related)))
		}
	}
	require.Equal(t, []string{"one", "two", "two+"}, titles)
}

func TestOperationIsFollowedToItsEnd(t *testing.T) {
	f := newFake(t)
	op := func(revision byte, r frames.OperationResult) frames.SnapshotRecord {
		rec := record(t, frames.KindOperation, 1, &frames.Operation{Result: r})
		rec.Revision = frames.ObjectRevision(revision)
		return rec
	}
	f.records = []frames.SnapshotRecord{op(1, frames.OperationResult{State: frames.OperationPending, Epoch: 7, Sequence: 5})}
	f.listen()
	id := f.records[0].ID.String()
	done := f.begin("op", "get", id, "--watch")
	js := f.begin("op", "get", id[:8], "--watch", "-o", "json")
	f.whileFollowed(2)
	f.happen(frames.EventOperationChanged, op(2, frames.OperationResult{State: frames.OperationRejected, Sequence: 6, Code: frames.CodeNotFound, Message: "no owner"}))
	r := <-done
	require.Equal(t, exitRefused, r.code)
	require.Contains(t, r.out, "- state                    PENDING\n")
	require.Contains(t, r.out, "+ state                     REJECTED\n")
	require.Contains(t, r.errout, "REJECTED NOT_FOUND: no owner")
	r = <-js
	require.Equal(t, exitRefused, r.code)
	require.Equal(t, 2, strings.Count(r.out, "\n"))
	require.Contains(t, r.out, `"error_code":"NOT_FOUND"`)

	ended := f.cli("op", "get", id, "--watch") // which it is already
	require.Equal(t, exitRefused, ended.code)
	unknown := f.cli("op", "get", strings.Repeat("ab", 16), "-w")
	require.Equal(t, exitUnknown, unknown.code)
	require.Equal(t, exitRefused, f.cli("op", "get", "ababab", "-w").code)
}

func TestSignalsOfARunAreFollowed(t *testing.T) {
	f := newFake(t)
	session := func(n byte, run frames.RunID) frames.SnapshotRecord {
		r := record(t, frames.KindWorkSession, n, &frames.WorkSession{RunID: run})
		r.Revision = 1
		return r
	}
	one, two := runOf(t, 1), runOf(t, 2)
	s1, s2 := session(1, frames.RunID(one.ID)), session(2, frames.RunID(two.ID))
	signal := func(n, revision byte, of frames.SnapshotRecord, state frames.SignalState) frames.SnapshotRecord {
		r := record(t, frames.KindSignal, n, &frames.Signal{WorkSessionID: frames.WorkSessionID(of.ID), Kind: frames.SignalPolicy, State: state, Message: "m" + string('0'+n)})
		r.Revision = frames.ObjectRevision(revision)
		return r
	}
	f.records = []frames.SnapshotRecord{one, two, s1, s2, signal(1, 1, s1, frames.SignalOpen), signal(2, 1, s2, frames.SignalOpen), signal(3, 2, s1, frames.SignalSuppressed)}
	f.listen()
	all, mine := f.on("text", "signals", "--watch"), f.on("json", "signals", one.ID.String(), "-w", "--all")
	f.whileFollowed(2)
	all.shows("m2")
	mine.shows("m3")
	require.NotContains(t, all.out.String(), "m3", "it is suppressed")
	f.happen(frames.EventSignalAcknowledged, signal(2, 2, s2, frames.SignalAcknowledged))
	f.happen(frames.EventSignalAcknowledged, signal(1, 2, s1, frames.SignalAcknowledged))
	f.happen(frames.EventSignalRaised, signal(4, 1, s2, frames.SignalOpen))
	f.happen(frames.EventSignalRaised, signal(5, 1, s1, frames.SignalOpen))
	all.shows("m5")
	mine.shows("m5")
	require.Equal(t, 2, strings.Count(all.out.String(), "Acknowledged"))
	require.NotRegexp(t, "m2|m4", mine.out.String())
	require.Equal(t, 4, strings.Count(mine.out.String(), "\n"))
	require.Equal(t, exitRefused, f.cli("signals", "02ffff", "--watch").code)
}

func TestApartSeesLinesAndNotColumns(t *testing.T) {
	gone, come := apart([]string{"a  1", "b  2", "same", "twice", "twice"}, []string{"a     1", "b     3", "same", "twice"})
	require.Equal(t, []string{"b  2", "twice"}, gone)
	require.Equal(t, []string{"b     3"}, come)
}
