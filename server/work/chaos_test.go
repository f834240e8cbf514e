package work

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
)

// A chaos is random commands, answers, facts and restarts over a few runs. What must hold
// after each of them is said by invariants.
type chaos struct {
	*state
	runs  byte
	op    byte
	owned map[byte]uint64 // run to the newest fact that its owner has made
}

func (l *chaos) nextOp(rt *rapid.T) byte {
	if l.op == 0xee {
		rt.Skip()
	}
	l.op++
	return l.op
}

func (l *chaos) anyRun(rt *rapid.T) byte {
	if l.runs == 0 {
		rt.Skip()
	}
	return byte(rapid.IntRange(1, int(l.runs)).Draw(rt, "run"))
}

// try sends a command, which may be refused.
func (l *chaos) try(cmd *frames.CoordCommand) {
	_, err := l.do(cmd, alice)
	if err != nil {
		code(l.t, err) // a refusal and nothing else
	}
}

func (l *chaos) anyEffect(rt *rapid.T) Effect {
	all := append(l.effects(frames.EffectSpawn), l.effects(frames.EffectKill)...)
	if len(all) == 0 {
		rt.Skip()
	}
	slices.SortFunc(all, func(a, b Effect) int { return slices.Compare(a.Attempt.ID[:], b.Attempt.ID[:]) })
	return all[rapid.IntRange(0, len(all)-1).Draw(rt, "effect")]
}

func (l *chaos) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"start": func(rt *rapid.T) {
			if l.runs == 6 {
				rt.Skip()
			}
			l.runs++
			l.try(startCommand(l.t, l.nextOp(rt), l.runs))
		},
		"cancel": func(rt *rapid.T) { l.try(runCommand(l.t, l.nextOp(rt), frames.CommandCancelRun, l.anyRun(rt))) },
		"pause":  func(rt *rapid.T) { l.try(runCommand(l.t, l.nextOp(rt), frames.CommandPauseRun, l.anyRun(rt))) },
		"resume": func(rt *rapid.T) { l.try(runCommand(l.t, l.nextOp(rt), frames.CommandResumeRun, l.anyRun(rt))) },
		"end": func(rt *rapid.T) {
			reason := frames.EndReason(rapid.IntRange(0, 3).Draw(rt, "reason"))
			l.try(endCommand(l.t, l.nextOp(rt), l.anyRun(rt), reason))
		},
		"objective": func(rt *rapid.T) {
			if rapid.IntRange(0, 5).Draw(rt, "rarely") == 0 {
				l.try(update(l.t, l.nextOp(rt), 1, "", ptr(frames.ObjectiveCompleted)))
			}
		},
		"dispatch": func(rt *rapid.T) { l.dispatch(l.anyEffect(rt).Attempt.ID, rapid.Bool().Draw(rt, "denied")) },
		"answer": func(rt *rapid.T) {
			e := l.anyEffect(rt)
			f := Finding{
				Never: rapid.IntRange(0, 4).Draw(rt, "never") == 0,
				State: frames.EffectState(rapid.IntRange(2, 4).Draw(rt, "state")), Resource: frames.ResourceID{ID: uint32(e.Run[0])},
			}
			l.finding(e.Attempt.ID, f)
		},
		"lose effect":  func(rt *rapid.T) { l.amend(LoseEffect(l, l.anyEffect(rt).Attempt.ID, l.now())) },
		"lose binding": func(rt *rapid.T) { l.amend(LoseBinding(l, frames.BindingID{l.anyRun(rt)}, l.now())) },
		"fact": func(rt *rapid.T) {
			id := l.anyRun(rt)
			l.owned[id] += rapid.SampledFrom([]uint64{1, 1, 1, 2}).Draw(rt, "over")
			switch seq := l.owned[id]; rapid.IntRange(0, 4).Draw(rt, "kind") {
			case 0:
				l.admit(attention(l.t, id, seq, frames.AttentionBlocked))
			case 1:
				l.admit(exit(l.t, id, seq, int32(rapid.IntRange(-1, 1).Draw(rt, "status"))))
			default:
				l.admit(output(l.t, id, seq, 1))
			}
		},
		"owner goes":  func(*rapid.T) { l.env.Owners = nil },
		"owner comes": func(*rapid.T) { l.env.Owners = ownersUp{theOwner: life} },
		"restart": func(*rapid.T) {
			l.env.Activation++
			for _, e := range append(l.effects(frames.EffectSpawn), l.effects(frames.EffectKill)...) {
				require.Empty(l.t, l.amend(CheckEffect(l, e.Attempt.ID, l.now())).Changes, "recovery finds no contradiction")
			}
		},
		"": func(rt *rapid.T) { l.invariants(rt) },
	}
}

func (l *chaos) invariants(rt *rapid.T) {
	waited := map[frames.OperationID]bool{} // by an effect, or by a spawn that is unresolved
	attempts := 0
	for _, kind := range []frames.EffectKind{frames.EffectSpawn, frames.EffectKill} {
		for _, e := range l.effects(kind) {
			require.False(rt, waited[e.Attempt.OperationID], "one attempt for one operation")
			waited[e.Attempt.OperationID] = true
			attempts++
		}
	}
	unfinished := 0
	for id := byte(1); id <= l.runs; id++ {
		row, ok := l.rows[runRef(frames.RunID{id})]
		if !ok {
			continue
		}
		var r frames.Run
		var meta runMeta
		require.NoError(rt, codec.Decode(&r, row.Record.Payload))
		require.NoError(rt, decodeAnnex("run", &meta, row.Annex))
		if meta.Cancel != (frames.OperationID{}) {
			require.NotZero(rt, meta.Spawn)
			waited[meta.Cancel] = true
		}
		session := l.sessionOf(id)
		require.Equal(rt, r.State.Terminal(), session.State == frames.StateEnded, "run %d and its session", id)
		require.Equal(rt, !r.State.Terminal(), l.live[runRef(frames.RunID{id})])
		_, bound := l.rows[bindingRef(frames.BindingID{id})]
		active := bound && l.bindingOf(id).State == frames.StateActive
		require.Equal(rt, active, session.ActiveBinding == frames.BindingID{id})
		require.Equal(rt, active, r.State == frames.RunRunning || r.State == frames.RunPaused, "run %d is %v", id, r.State)
		if r.State == frames.RunCompleted {
			require.True(rt, bound)
		}
		if !r.State.Terminal() {
			unfinished++
		}
	}
	pending := 0
	for ref, row := range l.rows {
		if ref.Kind != frames.KindOperation {
			continue
		}
		result, err := storedResult(row)
		require.NoError(rt, err)
		if result.State == frames.OperationPending {
			pending++
			require.True(rt, waited[frames.OperationID(ref.ID)], "operation %v waits for something", ref)
			delete(waited, frames.OperationID(ref.ID))
		}
	}
	require.Empty(rt, slices.Collect(maps.Keys(waited)), "nothing waits for a finished operation")
	require.Equal(rt, pending+attempts, l.pending[alice.Principal])
	var counts runCounts
	if row, ok := l.rows[runsRef(frames.ObjectiveID{1})]; ok {
		require.NoError(rt, decodeAnnex("runs", &counts, row.Annex))
	}
	require.EqualValues(rt, unfinished, counts.Unfinished)
	if obj, _ := objective(l.t, l.state, 1); obj.State != frames.ObjectiveActive {
		require.Zero(rt, unfinished, "an objective ends behind its runs")
	}
}

// calm answers everything, ends every run and checks that nothing is left.
func (l *chaos) calm(rt *rapid.T) {
	for _, kind := range []frames.EffectKind{frames.EffectSpawn, frames.EffectKill} {
		for _, e := range l.effects(kind) {
			l.finding(e.Attempt.ID, Finding{Never: true})
		}
	}
	for id := byte(1); id <= l.runs; id++ {
		l.amend(LoseBinding(l, frames.BindingID{id}, l.now()))
	}
	for id := byte(1); id <= l.runs; id++ {
		if _, ok := l.rows[runRef(frames.RunID{id})]; ok && !l.runState(id).Terminal() {
			_, err := l.do(runCommand(l.t, 0xef-id, frames.CommandCancelRun, id), alice)
			require.NoError(rt, err)
			require.Equal(rt, frames.RunCancelled, l.runState(id))
		}
	}
	l.settled()
	for ref := range l.rows {
		require.False(rt, l.live[ref] && ref.Kind != frames.KindObjective && ref.Kind != frames.KindSignal && ref.Kind != kindTotals && ref.Kind != frames.KindAdmin,
			"%v is live", ref)
	}
}

func TestC09_RunsAgainstInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := &chaos{state: withRuns(t), owned: map[byte]uint64{}}
		rt.Repeat(l.actions())
		l.calm(rt)
		l.archived(rt)
	})
}

// archived ends the objective and archives it: whatever has happened, nothing remains but
// operations, the ids that were used and what the store keeps of its own.
func (l *chaos) archived(rt *rapid.T) {
	if obj, _ := objective(l.t, l.state, 1); obj.State == frames.ObjectiveActive {
		_, err := l.do(update(l.t, 0xf1, 1, "{}", ptr(frames.ObjectiveCompleted)), alice)
		require.NoError(rt, err)
	}
	_, err := l.do(archive(l.t, 0xf2, 1), alice)
	require.NoError(rt, err)
	for ref := range l.rows {
		switch ref.Kind {
		case frames.KindOperation, frames.KindAdmin, kindTotals, kindRemovals, kindDue, kindClaim:
		default:
			require.True(rt, ref.Kind > kindUsed && ref.Kind <= kindUsed+frames.KindArtifactManifest, "%v is left", ref)
		}
	}
	var sum totals
	if row, ok := l.rows[totalsRef]; ok {
		require.NoError(rt, decodeAnnex("totals", &sum, row.Annex))
	}
	require.Zero(rt, sum.ManifestBytes)
}
