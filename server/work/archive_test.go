package work

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

func archive(t testing.TB, op, id byte, conds ...frames.Precondition) *frames.CoordCommand {
	return command(t, op, frames.CommandArchiveObjective, &frames.ArchiveObjective{ObjectiveID: frames.ObjectiveID{id}}, conds...)
}

// removedKinds names the kinds of the objects that the events since the last look removed.
func (s *state) removedKinds() (kinds []string) {
	for _, c := range s.events {
		if c.Event == frames.EventObjectRemoved {
			kinds = append(kinds, c.Ref().Kind.String())
		}
	}
	s.events = nil
	return kinds
}

// finished is the objective 1 with a run that exited with a status, and that failed by it
// unless it is zero; the objective is completed.
func finished(t testing.TB, status int32) *state {
	s := withRuns(t)
	s.running(1)
	s.admit(output(t, 1, 1, 10), exit(t, 1, 2, status))
	_, err := s.do(register(t, 0x10, 9, 1, "four", at(frames.KindWorkSession, 1, 3)), alice)
	require.NoError(t, err)
	_, err = s.do(update(t, 0x11, 1, "{}", ptr(frames.ObjectiveCompleted)), alice)
	require.NoError(t, err)
	s.events = nil
	return s
}

func TestArchiveRemovesAllThatIsBeneath(t *testing.T) {
	s := finished(t, 1)
	out, err := s.do(archive(t, 0x20, 1, at(frames.KindObjective, 1, 2)), alice)
	require.NoError(t, err)
	require.Equal(t, frames.OperationSucceeded, out.Result.State)
	require.Equal(t, frames.ResultNone, out.Result.Kind)
	require.Equal(t, []string{
		"BINDING", "WORK_SESSION", "RUN", "ARTIFACT", "ARTIFACT", "ARTIFACT_MANIFEST", "ARTIFACT_MANIFEST", "EVIDENCE", "SIGNAL", "OBJECTIVE",
	}, s.removedKinds())
	for ref := range s.rows {
		require.True(t, ref.Kind == frames.KindOperation || ref.Kind == frames.KindAdmin || internalKind(ref.Kind), "%v is left", ref)
		require.NotEqual(t, kindRuns, ref.Kind)
		require.NotEqual(t, kindBeneath, ref.Kind)
		require.False(t, ref.Kind >= kindUsed && s.live[ref], "what is used costs no memory")
	}
	var sum totals
	require.NoError(t, decodeAnnex("totals", &sum, s.rows[totalsRef].Annex))
	require.Zero(t, sum.ManifestBytes)
	newest, err := DecodeRemovals(s.rows[removalsRef].Annex)
	require.NoError(t, err)
	require.Len(t, newest, 8)
	require.Contains(t, newest, Removal{frames.KindObjective, frames.EventSequence(s.head) - 1})

	out, err = s.do(archive(t, 0x20, 1, at(frames.KindObjective, 1, 2)), alice)
	require.NoError(t, err)
	require.True(t, out.Duplicate)
	_, err = s.do(archive(t, 0x21, 1), alice)
	require.Equal(t, frames.CodeNotFound, code(t, err))
}

func TestArchivedIDsStayUsed(t *testing.T) {
	s := finished(t, 0)
	_, err := s.do(archive(t, 0x20, 1), alice)
	require.NoError(t, err)
	_, err = s.do(create(t, 0x21, 1, "{}"), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "objective")
	_, err = s.do(create(t, 0x22, 2, "{}"), alice)
	require.NoError(t, err)
	second := func(p *frames.StartRun) { p.ObjectiveID = frames.ObjectiveID{2} }
	for what, edit := range map[string]func(*frames.StartRun){
		"run": func(p *frames.StartRun) {
			p.WorkSessionID, p.PendingBindingID = frames.WorkSessionID{5}, frames.PendingBindingID{5}
		},
		"session": func(p *frames.StartRun) { p.RunID, p.PendingBindingID = frames.RunID{5}, frames.PendingBindingID{5} },
		"binding": func(p *frames.StartRun) { p.RunID, p.WorkSessionID = frames.RunID{5}, frames.WorkSessionID{5} },
	} {
		_, err = s.do(startCommand(t, 0x23, 1, second, edit), alice)
		require.Equal(t, frames.CodeRevisionConflict, code(t, err), what)
	}
	_, err = s.do(startCommand(t, 0x24, 5, second), alice)
	require.NoError(t, err)
	_, err = s.do(register(t, 0x25, 9, 1, "again", at(frames.KindWorkSession, 5, 1)), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "artifact")
	_, err = s.do(register(t, 0x26, 9, 2, "more"), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "a revision of nothing")

	status, err := StatusOf(s, frames.BindingID{1})
	require.NoError(t, err)
	require.Equal(t, BindingOver, status.State, "the owner may give it up")
	require.Equal(t, []Verdict{FactRefused}, s.admit(exit(t, 1, 3, 0)))
	_, err = s.do(create(t, 0x27, 3, "{}", at(frames.KindObjective, 1, 0)), alice)
	require.NoError(t, err, "what was removed is absent")
}

// A pending id whose run ended without a binding stays used as it was.
func TestArchivedClaimStaysUsed(t *testing.T) {
	s := withRuns(t)
	_, err := s.do(startCommand(t, 1, 1), alice)
	require.NoError(t, err)
	s.finding(s.effect(frames.EffectSpawn).Attempt.ID, Finding{State: frames.EffectRejected})
	_, err = s.do(update(t, 2, 1, "{}", ptr(frames.ObjectiveCancelled)), alice)
	require.NoError(t, err)
	s.events = nil
	_, err = s.do(archive(t, 3, 1), alice)
	require.NoError(t, err)
	require.Equal(t, []string{"WORK_SESSION", "RUN", "OBJECTIVE"}, s.removedKinds())
	_, err = s.do(create(t, 4, 2, "{}"), alice)
	require.NoError(t, err)
	_, err = s.do(startCommand(t, 5, 1, func(p *frames.StartRun) {
		p.ObjectiveID, p.RunID, p.WorkSessionID = frames.ObjectiveID{2}, frames.RunID{2}, frames.WorkSessionID{2}
	}), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	status, err := StatusOf(s, frames.BindingID{1})
	require.NoError(t, err)
	require.Equal(t, BindingOver, status.State)
}

func TestArchiveConditions(t *testing.T) {
	s := withRuns(t)
	_, err := s.do(archive(t, 1, 1), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "active")
	_, err = s.do(archive(t, 1, 7), alice)
	require.Equal(t, frames.CodeNotFound, code(t, err))
	_, err = s.do(update(t, 2, 1, "{}", ptr(frames.ObjectiveCancelled)), alice)
	require.NoError(t, err)
	_, err = s.do(archive(t, 1, 1, at(frames.KindObjective, 1, 1)), alice)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err), "precondition")
	s.env.LowDisk = true
	blind := alice.with(frames.ScopeWorkCommand)
	_, err = s.do(archive(t, 1, 1, at(frames.KindObjective, 1, 2)), blind)
	require.NoError(t, err, "a refusal leaves the operation id free, the reserve is for it, and who removes an object may expect it [D-41] [D-55]")
}

// A principal that sees nothing may still expect revisions of all that its archive removes.
func TestArchiveExpectsWhatItRemoves(t *testing.T) {
	s := finished(t, 0)
	blind := alice.with(frames.ScopeWorkCommand)
	_, err := s.do(archive(t, 0x20, 1, at(frames.KindRun, 1, 0)), blind)
	require.Equal(t, frames.CodeRevisionConflict, code(t, err))
	_, err = s.do(archive(t, 0x20, 1, at(frames.KindRun, 1, 3), at(frames.KindWorkSession, 1, 3)), blind)
	require.NoError(t, err)
}

// plant makes n runs beneath the completed objective 1, which nobody started.
func (s *state) plant(n int) {
	s.t.Helper()
	t := newTxn(s, s.now())
	counts := runCounts{Runs: uint32(n)}
	for i := range n {
		id := frames.RunID{0: 1, 12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
		record, err := frames.NewRecord(runRef(id), 1, &frames.Run{ObjectiveID: frames.ObjectiveID{1}, Attempt: 1, State: frames.RunCancelled})
		require.NoError(s.t, err)
		meta := runMeta{Session: frames.WorkSessionID(id), Binding: frames.BindingID(id)}
		s.rows[record.Ref()] = Stored{Record: record, Annex: image(s.t, &meta)}
		require.NoError(s.t, t.list(frames.ObjectiveID{1}, &counts, record.Ref()))
	}
	require.NoError(s.t, t.keepCounts(frames.ObjectiveID{1}, &counts))
	s.take(t.outcome())
}

func TestArchiveAtTheEdgeOfACommit(t *testing.T) {
	for _, tt := range []struct {
		name string
		runs int
		want frames.Code
	}{
		{"the most that fits", MaxArchived - 1, 0},
		{"one more", MaxArchived, frames.CodeResourceExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := withRuns(t)
			_, err := s.do(update(t, 2, 1, "{}", ptr(frames.ObjectiveCompleted)), alice)
			require.NoError(t, err)
			s.plant(tt.runs)
			before := s.head
			_, err = s.do(archive(t, 3, 1), alice)
			if tt.want != 0 {
				require.Equal(t, tt.want, code(t, err))
				require.Equal(t, before, s.head)
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, MaxArchived+1, s.head-before)
		})
	}
}

func TestRemovalsAreVisibleLikeTheirObjects(t *testing.T) {
	with := alice.offering(Capabilities)
	require.True(t, VisibleRemoval(frames.KindRun, with))
	require.False(t, VisibleRemoval(frames.KindRun, with.offering(Capabilities&^frames.CapArchive)))
	require.False(t, VisibleRemoval(frames.KindRun, with.with(frames.ScopeArtifactRead)))
	require.True(t, VisibleRemoval(frames.KindEvidence, with.with(frames.ScopeArtifactRead)))
	require.False(t, VisibleRemoval(frames.KindBinding, with.offering(Capabilities&^frames.CapTerminalBindings)))
}

// Every list that an objective can have is read back whole and in order.
func TestBeneathListsPages(t *testing.T) {
	for _, n := range []int{0, 1, beneathPage - 1, beneathPage, beneathPage + 1, 5 * beneathPage} {
		s := withRuns(t)
		tx := newTxn(s, s.now())
		var counts runCounts
		var want []frames.ObjectRef
		for i := range n {
			ref := signalRef(frames.SignalID{1, byte(i)})
			want = append(want, ref)
			require.NoError(t, tx.list(frames.ObjectiveID{1}, &counts, ref))
		}
		raw, err := codec.EncodeImage(nil, &counts)
		require.NoError(t, err)
		s.take(tx.outcome())
		var back runCounts
		require.NoError(t, codec.DecodeImage(&back, raw))
		require.EqualValues(t, n, back.listed())
		got, err := newTxn(s, s.now()).beneath(frames.ObjectiveID{1}, &back)
		require.NoError(t, err)
		require.ElementsMatch(t, want, got)
		require.Len(t, got, n)
	}
}
