package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
)

// A looker is one way to connect, for the four surfaces of §6.
type looker struct {
	name  string
	scope frames.Scope
	caps  frames.Capability
	other bool // proved by the key that did almost nothing
}

func (l *looker) has(s frames.Scope, c frames.Capability) bool {
	return l.scope&s == s && l.caps&c == c
}

// sees is §6 for one record, said once more and not with the server's code. mine says that the operation is of the looker's own principal.
func (l *looker) sees(kind frames.ObjectKind, mine bool) bool {
	switch kind {
	case frames.KindObjective, frames.KindRun, frames.KindWorkSession, frames.KindArtifact:
		return l.has(frames.ScopeWorkRead, 0)
	case frames.KindBinding:
		return l.has(frames.ScopeWorkRead, frames.CapTerminalBindings)
	case frames.KindSignal:
		return l.has(frames.ScopeWorkRead, frames.CapSignals)
	case frames.KindArtifactManifest, frames.KindEvidence:
		return l.has(frames.ScopeArtifactRead, frames.CapArtifactManifests)
	case frames.KindOperation:
		return l.has(frames.ScopeAdmin, 0) || mine && l.scope&(frames.ScopeWorkRead|frames.ScopeWorkCommand) != 0
	case frames.KindAdmin:
		return l.has(frames.ScopeAdmin, frames.CapAdministration)
	}
	return false
}

// shown is sees for snapshot, subscription and replay.
func (l *looker) shown(kind frames.ObjectKind, mine bool) bool {
	return l.sees(kind, mine) && (kind != frames.KindOperation || !l.has(0, frames.CapWithoutOperations))
}

// A surfaces is a coordinator whose log holds an event of every family, by two principals.
type surfaces struct {
	*ownerRig
	key    *handshake.Key // of the other principal
	ours   frames.OperationID
	theirs frames.OperationID
	last   frames.ObjectRef         // of the last event that a reader sees
	about  map[frames.ObjectRef]int // operations shown about an object, in one stream of events
}

func (s *surfaces) dialAs(l *looker) *client.Conn {
	s.t.Helper()
	opts := client.Options{Scope: l.scope, Offered: l.caps | frames.CapEventReplay}
	if l.other {
		opts.Key = s.key
	}
	c, err := client.Dial(s.t.Context(), s.ctx, opts)
	require.NoError(s.t, err, l.name)
	snap, err := c.Snapshot(s.t.Context())
	require.NoError(s.t, err, l.name)
	require.NoError(s.t, snap.Close())
	return c
}

// word names an event by what decides who sees it.
func (s *surfaces) word(l *looker, e *client.Event) string {
	text := fmt.Sprint(e.Kind, " of ", e.Object.Kind)
	if e.Object.Kind == frames.KindOperation {
		rec, _, err := e.Record()
		require.NoError(s.t, err)
		var op frames.Operation
		require.NoError(s.t, codec.Decode(&op, rec.Payload))
		theirs := op.Principal == handshake.KeyIDOf(s.key.Public())
		text += map[bool]string{true: ", own", false: ", foreign"}[theirs == l.other]
	}
	return text
}

// everything that happens to a run, by our principal, and one command of the other's.
func (s *surfaces) happen() {
	t := s.t
	c, theirs := s.dial(), s.dialAs(&looker{scope: frames.AllScopes, other: true})
	defer c.Close()
	defer theirs.Close()
	cmd, _ := create(t)
	s.theirs = cmd.OperationID
	_, err := theirs.Command(t.Context(), cmd)
	require.NoError(t, err)

	run := s.begun(c, map[string]any{"argv": []string{"/bin/false"}})
	s.ours = run.op
	require.Equal(t, frames.RunFailed, s.ended(c, run).State)
	lost := s.begun(c, forever("echo lost"))
	s.process.kill()
	end := &frames.EndBinding{BindingID: frames.BindingID(lost.PendingBindingID), Reason: frames.EndOwnerLost}
	require.Eventually(t, func() bool {
		_, err := s.command(c, frames.CommandEndBinding, end)
		if refusedWith(err, frames.CodeRevisionConflict) {
			return false // the link is not yet known to be down
		}
		require.NoError(t, err)
		return true
	}, waitFor, tick)
	must := func(kind frames.CommandKind, body codec.Message, pre ...frames.Precondition) {
		t.Helper()
		got, err := s.command(c, kind, body, pre...)
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, got.State)
	}
	session := uint64(0)
	snap, err := c.Snapshot(t.Context())
	require.NoError(t, err)
	var signal frames.SignalID
	require.NoError(t, snap.Each(func(r frames.SnapshotRecord) error {
		switch r.Kind {
		case frames.KindWorkSession:
			if r.ID == frames.ObjectID(run.WorkSessionID) {
				session = uint64(r.Revision)
			}
		case frames.KindSignal:
			signal = frames.SignalID(r.ID)
		}
		return nil
	}))
	require.NoError(t, snap.Close())
	must(frames.CommandAckSignal, &frames.SignalCommand{SignalID: signal})
	must(frames.CommandSuppressSignal, &frames.SignalCommand{SignalID: signal})
	ours := c
	c = s.dialAs(&looker{scope: frames.AllScopes, caps: frames.CapAdministration})
	must(frames.CommandChangeRetention, &frames.ChangeRetention{Retention: frames.Retention{
		OperationResultSecs: frames.MinOperationRetained + 1, EventBytes: 1 << 30, ArtifactBytes: 1 << 30}})
	require.NoError(t, c.Close())
	c = ours
	artifact := fresh[frames.ArtifactID](t)
	for rev := frames.ObjectRevision(1); rev <= 2; rev++ {
		var pre []frames.Precondition
		if rev == 1 {
			pre = []frames.Precondition{{Object: ref(frames.KindWorkSession, run.WorkSessionID), Revision: session}}
		}
		must(frames.CommandRegisterArtifactManifest, &frames.RegisterArtifactManifest{ArtifactID: artifact, Revision: rev, Schema: 1, Manifest: []byte("m")}, pre...)
	}
	must(frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: run.ObjectiveID, Schema: 1, Document: []byte(`{"title":"done"}`)})
	s.last = ref(frames.KindArtifactManifest, artifact)
}

// done reports whether e is the last that l is shown: everything else came before it.
func (s *surfaces) done(l *looker, e *client.Event) bool {
	switch {
	case l.shown(frames.KindOperation, !l.other): // what commands ended with
		if e.Object.Kind != frames.KindOperation {
			return false
		}
		rec, _, err := e.Record()
		require.NoError(s.t, err)
		var op frames.Operation
		require.NoError(s.t, codec.Decode(&op, rec.Payload))
		var object frames.ObjectRef
		return op.Result.Kind == frames.ResultObjectRef && codec.DecodeImage(&object, op.Result.Payload) == nil &&
			object.Kind == frames.KindObjective && s.updated(object)
	case l.has(frames.ScopeWorkRead, 0):
		return e.Object.Kind == frames.KindObjective && e.Revision == 2
	}
	return e.Object == s.last && e.Revision == 2
}

// updated reports whether the OPERATION about an objective is the second one.
func (s *surfaces) updated(o frames.ObjectRef) bool {
	s.about[o]++
	return s.about[o] == 2
}

// events gives what l is shown up to the last of it, each event by its word. A gap on the way
// is a failure.
func (s *surfaces) events(l *looker, sub *client.Subscription) map[string]bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	s.about = map[frames.ObjectRef]int{}
	got := map[string]bool{}
	for {
		u, err := sub.Next(ctx)
		require.NoError(s.t, err, "%s: so far %v", l.name, slices.Sorted(maps.Keys(got)))
		e, ok := u.(*client.Event)
		require.True(s.t, ok, "%s: %+v", l.name, u)
		got[s.word(l, e)] = true
		if s.done(l, e) {
			return got
		}
	}
}

// wanted is what l is to be shown of all the events there are.
func (s *surfaces) wanted(l *looker) map[string]bool {
	want := map[string]bool{}
	for _, e := range []struct {
		event  frames.EventKind
		object frames.ObjectKind
	}{
		{frames.EventObjectiveChanged, frames.KindObjective}, {frames.EventRunChanged, frames.KindRun},
		{frames.EventWorkSessionChanged, frames.KindWorkSession}, {frames.EventBindingOpened, frames.KindBinding},
		{frames.EventBindingEnded, frames.KindBinding}, {frames.EventSourceFactAdmitted, frames.KindBinding},
		{frames.EventSourceGap, frames.KindBinding}, {frames.EventArtifactRevisionAdded, frames.KindArtifact},
		{frames.EventArtifactRevisionAdded, frames.KindArtifactManifest}, {frames.EventSignalRaised, frames.KindSignal},
		{frames.EventSignalAcknowledged, frames.KindSignal}, {frames.EventSignalSuppressed, frames.KindSignal},
		{frames.EventEvidenceSealed, frames.KindEvidence},
	} {
		if l.shown(e.object, false) {
			want[fmt.Sprint(e.event, " of ", e.object)] = true
		}
	}
	for text, mine := range map[string]bool{"own": true, "foreign": false} {
		if l.shown(frames.KindOperation, mine) {
			want["OPERATION_CHANGED of OPERATION, "+text] = true
		}
	}
	return want
}

// checkSnapshot compares the kinds of a snapshot's records.
func (s *surfaces) checkSnapshot(l *looker, c *client.Conn) {
	s.t.Helper()
	got, want := map[string]bool{}, map[string]bool{}
	for at, m := range s.records(c) {
		text := at.Kind.String()
		if op, ok := m.(*frames.Operation); ok {
			theirs := op.Principal == handshake.KeyIDOf(s.key.Public())
			text += map[bool]string{true: ", own", false: ", foreign"}[theirs == l.other]
		}
		got[text] = true
	}
	for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
		if kind != frames.KindOperation && l.shown(kind, false) {
			want[kind.String()] = true
		}
	}
	for text, mine := range map[string]bool{"own": true, "foreign": false} {
		if l.shown(frames.KindOperation, mine) {
			want[frames.KindOperation.String()+", "+text] = true
		}
	}
	require.Equal(s.t, want, got, "snapshot of %s", l.name)
}

// checkLookup asks for three operations, as [D-11] has it.
func (s *surfaces) checkLookup(l *looker, c *client.Conn) {
	s.t.Helper()
	for _, tt := range []struct {
		op   frames.OperationID
		mine bool
		want frames.OperationState
	}{
		{s.ours, !l.other, frames.OperationSucceeded}, {s.theirs, l.other, frames.OperationSucceeded},
		{fresh[frames.OperationID](s.t), false, frames.OperationUnknown},
	} {
		got, err := c.Lookup(s.t.Context(), tt.op)
		if l.scope&(frames.ScopeWorkRead|frames.ScopeWorkCommand|frames.ScopeAdmin) == 0 {
			require.True(s.t, refusedWith(err, frames.CodeNotFound), "%s: %v", l.name, err)
			continue
		}
		require.NoError(s.t, err, l.name)
		want := tt.want
		if !l.sees(frames.KindOperation, tt.mine) {
			want = frames.OperationUnknown
		}
		require.Equal(s.t, want, got.State, "lookup by %s", l.name)
	}
}

// checkPreconditions finds out by commands which objects count as they are and which as
// absent [D-55]. What is given is one object of each kind with its revision.
func (s *surfaces) checkPreconditions(l *looker, objects map[frames.ObjectRef]frames.ObjectRevision) {
	s.t.Helper()
	l = &looker{name: l.name, scope: l.scope | frames.ScopeWorkCommand, caps: l.caps, other: l.other}
	c := s.dialAs(l)
	defer c.Close()
	for at, revision := range objects {
		visible := l.sees(at.Kind, at.ID == frames.ObjectID(s.theirs) == l.other)
		for _, expect := range []frames.ObjectRevision{0, revision} {
			cmd, _ := create(s.t)
			cmd.Preconditions = []frames.Precondition{{Object: at, Revision: uint64(expect)}}
			_, err := c.Command(s.t.Context(), cmd)
			if visible == (expect != 0) {
				require.NoError(s.t, err, "%s: %v at %d", l.name, at.Kind, expect)
			} else {
				require.True(s.t, refusedWith(err, frames.CodeRevisionConflict), "%s: %v at %d: %v", l.name, at.Kind, expect, err)
			}
		}
	}
}

// oneOfEach is one object of each kind, and an operation of either principal.
func (s *surfaces) oneOfEach() map[frames.ObjectRef]frames.ObjectRevision {
	s.t.Helper()
	l := &looker{scope: frames.AllScopes, caps: frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals | frames.CapAdministration}
	c := s.dialAs(l)
	defer c.Close()
	snap, err := c.Snapshot(s.t.Context())
	require.NoError(s.t, err)
	defer snap.Close()
	out, have := map[frames.ObjectRef]frames.ObjectRevision{}, map[frames.ObjectKind]bool{}
	require.NoError(s.t, snap.Each(func(r frames.SnapshotRecord) error {
		op := r.ID == frames.ObjectID(s.ours) || r.ID == frames.ObjectID(s.theirs)
		if op || r.Kind != frames.KindOperation && !have[r.Kind] {
			out[r.Ref()], have[r.Kind] = r.Revision, true
		}
		return nil
	}))
	require.Len(s.t, out, 11)
	return out
}

// shortQueues makes every backlog a gap, so that it has to be replayed.
func (s *surfaces) shortQueues() {
	s.t.Helper()
	path := filepath.Join(s.dir, configFile)
	raw, err := os.ReadFile(path)
	require.NoError(s.t, err)
	const table = "[quota.principal]\n"
	require.Contains(s.t, string(raw), table)
	require.NoError(s.t, os.WriteFile(path, []byte(strings.Replace(string(raw), table, table+"unsent_frames = 1\n", 1)), 0o600))
}

// §6: one predicate for snapshots, live subscriptions, replays, lookups and preconditions,
// against real processes.
func TestC10_OnePredicateOnEverySurface(t *testing.T) {
	t.Parallel()
	const (
		read, command, artifacts, admin = frames.ScopeWorkRead, frames.ScopeWorkCommand, frames.ScopeArtifactRead, frames.ScopeAdmin
		bindings, manifests, signals    = frames.CapTerminalBindings, frames.CapArtifactManifests, frames.CapSignals
		families                        = bindings | manifests | signals
	)
	lookers := []*looker{
		{"read alone", read, 0, false},
		{"read alone, the other's", read, 0, true},
		{"read without operations", read, frames.CapWithoutOperations, false},
		{"read and bindings", read, bindings, true},
		{"read and signals", read, signals, true},
		{"read and artifacts", read | artifacts, manifests, true},
		{"artifacts alone", artifacts, families, true},
		{"artifacts, not negotiated", read | artifacts, bindings | signals, true},
		{"manifests without their scope", read, families, true},
		{"command alone", command, families, false},
		{"ADMIN, not negotiated", admin, families, true},
		{"ADMINISTRATION without its scope", read, frames.CapAdministration, true},
		{"everything but administration", frames.AllScopes &^ admin, families, true},
		{"all scopes without operations", frames.AllScopes, families | frames.CapWithoutOperations, true},
	}
	administrator := &looker{"administrator", frames.AllScopes, families | frames.CapAdministration, true}
	nobody := &looker{"nobody", frames.ScopeTerminalControl | frames.ScopeSignalAck, families | frames.CapAdministration, true}

	s := &surfaces{ownerRig: withOwner(t)}
	var err error
	s.key, err = handshake.CreateKey(filepath.Join(s.root, "k", "other.ed25519"), rand.Reader)
	require.NoError(t, err)
	ok(t, coordinatord, "keys", "--state", s.dir, "add", "--label", "other", handshake.FormatPublicKey(s.key.Public()))
	p := s.serve()
	p.ready()

	live := map[*looker]*client.Subscription{}
	for _, l := range append([]*looker{administrator, nobody}, lookers...) {
		c := s.dialAs(l)
		defer c.Close()
		live[l], err = c.Subscribe(t.Context(), 0, client.SubscribeOptions{})
		if l == administrator {
			snap, serr := c.Snapshot(t.Context()) // the log before this activation is barred to it [D-12]
			require.NoError(t, serr)
			require.NoError(t, snap.Close())
			live[l], err = c.Subscribe(t.Context(), snap.Base, client.SubscribeOptions{})
		}
		require.NoError(t, err, l.name)
	}
	s.happen()
	for _, l := range lookers {
		require.Equal(t, s.wanted(l), s.events(l, live[l]), "live subscription of %s", l.name)
	}
	s.administratorsGap(live[administrator], administrator)
	s.silence(live[nobody])

	require.Equal(t, 0, p.stop())
	s.shortQueues()
	s.serve().ready()
	for _, l := range append([]*looker{administrator, nobody}, lookers...) {
		c := s.dialAs(l)
		defer c.Close()
		s.checkSnapshot(l, c)
		s.checkLookup(l, c)
		sub, err := c.Subscribe(t.Context(), 0, client.SubscribeOptions{CreditCount: 1})
		require.NoError(t, err)
		switch l {
		case nobody:
			s.silence(sub)
		case administrator:
			s.gap(sub, frames.GapRevisionMismatch)
			err := sub.Replay(t.Context())
			require.True(t, refusedWith(err, frames.CodeCursorInvalid), "[D-12]: %v", err)
		default:
			s.gap(sub, frames.GapQueueOverflow)
			require.NoError(t, sub.Replay(t.Context()), l.name)
			require.Equal(t, s.wanted(l), s.events(l, sub), "replay of %s", l.name)
		}
	}
	objects := s.oneOfEach()
	for _, l := range append([]*looker{administrator, nobody}, lookers...) {
		s.checkPreconditions(l, objects)
	}
}

// gap takes the next update, which is a gap for this reason.
func (s *surfaces) gap(sub *client.Subscription, reason frames.GapReason) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	u, err := sub.Next(ctx)
	require.NoError(s.t, err)
	g, ok := u.(*client.Gap)
	require.True(s.t, ok, "%+v", u)
	require.Equal(s.t, reason, g.Reason)
}

// administratorsGap reads up to the change of an ADMIN record, which is a gap to whoever sees
// those [D-12].
func (s *surfaces) administratorsGap(sub *client.Subscription, l *looker) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitFor)
	defer cancel()
	for {
		u, err := sub.Next(ctx)
		require.NoError(s.t, err)
		if g, ok := u.(*client.Gap); ok {
			require.Equal(s.t, frames.GapRevisionMismatch, g.Reason)
			return
		}
		require.NotEqual(s.t, s.last, u.(*client.Event).Object, "it lies behind the change")
	}
}

// silence checks that nothing has come so far.
func (s *surfaces) silence(sub *client.Subscription) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), tick)
	defer cancel()
	u, err := sub.Next(ctx)
	require.ErrorIs(s.t, err, context.DeadlineExceeded, "%+v", u)
}
