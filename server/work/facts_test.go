package work

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
)

func TestC15_FactsAreDistinct(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	rev := func() uint64 { return uint64(s.rows[bindingRef(frames.BindingID{7})].Record.Revision) }
	require.EqualValues(t, 1, rev())
	payload := s.rows[bindingRef(frames.BindingID{7})].Record.Payload
	require.Equal(t, []Verdict{FactAdmitted}, s.admit(fact(t, 7, 1, frames.FactOpened, &frames.Opened{})))
	require.Equal(t, []string{"SOURCE_FACT_ADMITTED"}, s.seen())
	require.EqualValues(t, 2, rev(), "[D-16]: one more")
	require.Equal(t, payload, s.rows[bindingRef(frames.BindingID{7})].Record.Payload, "and nothing else")

	require.Equal(t, []Verdict{FactDuplicate}, s.admit(fact(t, 7, 1, frames.FactOpened, &frames.Opened{})))
	require.Empty(t, s.seen())

	require.Equal(t, []Verdict{FactJumped}, s.admit(output(t, 7, 5, 10)))
	require.Equal(t, []string{"SOURCE_GAP/0 2 5", "SOURCE_FACT_ADMITTED"}, s.seen())
	require.EqualValues(t, 4, rev())
	require.Equal(t, []Verdict{FactRefused}, s.admit(output(t, 7, 3, 10)), "the gap stays")
	require.Equal(t, []Verdict{FactDuplicate}, s.admit(output(t, 7, 5, 10)))

	require.Equal(t, []Verdict{FactConflicted}, s.admit(output(t, 7, 5, 11)))
	require.Equal(t, []string{"SOURCE_GAP/1 5 5", "SOURCE_GAP/2 6 5", "BINDING_ENDED", "WORK_SESSION_CHANGED", "RUN_CHANGED"}, s.seen())
	require.Equal(t, frames.EndFailed, *s.bindingOf(7).Reason)
	require.Equal(t, []Verdict{FactRefused, FactRefused}, s.admit(output(t, 7, 5, 11), output(t, 7, 6, 1)), "after the end")
	require.Empty(t, s.seen())
	s.settled()
}

func TestC15_FactsOfSomebodyElse(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	for name, edit := range map[string]func(*frames.TerminalSourceFact){
		"another owner":       func(f *frames.TerminalSourceFact) { f.Source.Owner[0]++ },
		"another incarnation": func(f *frames.TerminalSourceFact) { f.Source.OwnerIncarnation[0]++ },
		"another binding":     func(f *frames.TerminalSourceFact) { f.Source.BindingID[0]++ },
	} {
		f := output(t, 7, 1, 1)
		edit(f)
		require.Equal(t, []Verdict{FactRefused}, s.admit(f), name)
	}
	out, verdicts, err := AdmitFacts(s, frames.Fingerprint{0xbb}, []*frames.TerminalSourceFact{output(t, 7, 1, 1)}, s.now())
	require.NoError(t, err)
	require.Equal(t, []Verdict{FactRefused}, verdicts, "over another owner's link")
	require.Empty(t, out.Changes)
	own := output(t, 7, 1, 1)
	own.Source.Owner = frames.Fingerprint{0xbb}
	out, verdicts, err = AdmitFacts(s, frames.Fingerprint{0xbb}, []*frames.TerminalSourceFact{own}, s.now())
	require.NoError(t, err)
	require.Equal(t, []Verdict{FactRefused}, verdicts, "and in its name")
	require.Empty(t, out.Changes)
}

// [D-22]: what CLOSED does, in the order of [D-35].
func TestD22_Closed(t *testing.T) {
	unknown := fact(t, 7, 2, frames.FactClosed, &frames.Closed{})
	for _, tt := range []struct {
		name    string
		fact    *frames.TerminalSourceFact
		reason  frames.EndReason
		run     frames.RunState
		signals map[string]int
		events  []string
		message string
	}{
		{"exit 0", exit(t, 7, 2, 0), frames.EndCompleted, frames.RunCompleted, map[string]int{}, nil, ""},
		{"exit 3", exit(t, 7, 2, 3), frames.EndFailed, frames.RunFailed, map[string]int{"2/Open": 1}, []string{"SIGNAL_RAISED"}, "status 3"},
		{"signal 9", exit(t, 7, 2, -9), frames.EndFailed, frames.RunFailed, map[string]int{"2/Open": 1}, []string{"SIGNAL_RAISED"}, "signal 9"},
		{"not known", unknown, frames.EndFailed, frames.RunFailed, map[string]int{"2/Open": 1}, []string{"SIGNAL_RAISED"}, "not known"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := withRuns(t)
			s.running(7)
			s.admit(output(t, 7, 1, 12))
			s.events = nil
			require.Equal(t, []Verdict{FactAdmitted}, s.admit(tt.fact))
			require.Equal(t, append([]string{"SOURCE_FACT_ADMITTED", "BINDING_ENDED", "WORK_SESSION_CHANGED", "RUN_CHANGED",
				"ARTIFACT_REVISION_ADDED", "ARTIFACT_REVISION_ADDED", "EVIDENCE_SEALED"}, tt.events...), s.seen())
			require.Equal(t, tt.reason, *s.bindingOf(7).Reason)
			require.Equal(t, tt.signals, s.signalsOf(7))
			r := read(s, runRef(frames.RunID{7}), new(frames.Run))
			require.Equal(t, tt.run, r.State)
			require.Equal(t, tt.fact.Payload, r.Outcome)
			s.evidence(7, 12, tt.fact)
			for ref := range s.rows {
				if ref.Kind == frames.KindSignal {
					require.Contains(t, read(s, ref, new(frames.Signal)).Message, tt.message)
				}
			}
			s.settled()
		})
	}
}

// evidence checks the three records of a seal against the event log, by the words of the
// protocol and not by the code that made it.
func (s *state) evidence(id byte, bytes uint64, closed *frames.TerminalSourceFact) {
	s.t.Helper()
	h := sha256.New()
	h.Write([]byte("phux-coordinator-evidence/v1\x00"))
	h.Write(coordinator[:])
	h.Write(slices.Concat([]byte{id}, make([]byte, 15)))
	facts := s.facts(id)
	for _, f := range facts {
		h.Write(f)
	}
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(facts))))
	seal := [32]byte(h.Sum(nil))

	evidence := read(s, evidenceRef(frames.BindingID{id}), new(frames.Evidence))
	require.Equal(s.t, seal, evidence.Seal)
	require.Equal(s.t, frames.WorkSessionID{id}, evidence.WorkSessionID)
	stub := read(s, artifactRef(evidence.ArtifactID), new(frames.Artifact))
	require.Equal(s.t, frames.Artifact{WorkSessionID: frames.WorkSessionID{id}, LatestRevision: 1}, *stub)
	manifest := read(s, manifestRef(evidence.ArtifactID), new(frames.ArtifactManifest))
	require.EqualValues(s.t, 1, manifest.Revision)
	require.EqualValues(s.t, 1, manifest.Schema)
	var m frames.EvidenceManifest
	require.NoError(s.t, codec.Decode(&m, manifest.Manifest))
	want := frames.EvidenceManifest{BindingID: frames.BindingID{id}, FactCount: uint64(len(facts)), OutputBytes: bytes, Seal: seal}
	var c frames.Closed
	require.NoError(s.t, codec.DecodeImage(&c, closed.Payload))
	if c.Known {
		want.ExitStatus = &c.Status
	}
	require.Equal(s.t, want, m)
}

func TestD22_AGapIsNeverSealed(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	s.admit(output(t, 7, 2, 1))
	s.events = nil
	s.admit(exit(t, 7, 3, 1))
	require.Equal(t, []string{"SOURCE_FACT_ADMITTED", "BINDING_ENDED", "WORK_SESSION_CHANGED", "RUN_CHANGED", "SIGNAL_RAISED", "SIGNAL_RAISED"}, s.seen())
	require.Equal(t, map[string]int{"2/Open": 1, "3/Open": 1}, s.signalsOf(7))
	require.NotContains(t, s.rows, evidenceRef(frames.BindingID{7}))
	s.settled()
}

func TestD22_Attention(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	s.admit(attention(t, 7, 1, frames.AttentionBell))
	require.Empty(t, s.signalsOf(7), "a bell is no signal")
	s.admit(attention(t, 7, 2, frames.AttentionBlocked), attention(t, 7, 3, frames.AttentionBlocked), attention(t, 7, 4, frames.AttentionFailed))
	require.Equal(t, map[string]int{"1/Open": 1, "2/Open": 1}, s.signalsOf(7), "one open for each kind")
	s.events = nil
	s.admit(output(t, 7, 5, 1))
	require.Equal(t, []string{"SOURCE_FACT_ADMITTED", "SIGNAL_RESOLVED"}, s.seen())
	s.admit(output(t, 7, 6, 1), attention(t, 7, 7, frames.AttentionBlocked))
	require.Equal(t, map[string]int{"1/Resolved": 1, "1/Open": 1, "2/Open": 1}, s.signalsOf(7))
	s.events = nil
	s.admit(exit(t, 7, 8, 1))
	require.Equal(t, "SIGNAL_RESOLVED", s.seen()[7])
	require.Equal(t, map[string]int{"1/Resolved": 2, "2/Open": 1}, s.signalsOf(7), "it had failed already")
	s.settled()
}

// Facts of one change build on each other, annexes included.
func TestFactsOfOneChangeBuildOnEachOther(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	s.admit(attention(t, 7, 1, frames.AttentionBlocked), attention(t, 7, 2, frames.AttentionBell), attention(t, 7, 3, frames.AttentionBell))
	require.Equal(t, []Verdict{FactDuplicate, FactAdmitted}, s.admit(attention(t, 7, 3, frames.AttentionBell), output(t, 7, 4, 1)))
	require.Equal(t, map[string]int{"1/Resolved": 1}, s.signalsOf(7))
	s.admit(output(t, 7, 5, 1), exit(t, 7, 6, 0), output(t, 7, 7, 1))
	s.evidence(7, 2, exit(t, 7, 6, 0))
	s.settled()
}

// What somebody has dealt with is not open: the next ATTENTION raises another, and output
// resolves nothing that is not open.
func TestD22_AttentionAfterAck(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	for seq, kind := range map[uint64]frames.AttentionKind{1: frames.AttentionBlocked} {
		s.admit(attention(t, 7, seq, kind))
	}
	_, err := s.do(signalCommand(t, 1, frames.CommandAckSignal, s.open(7)), alice)
	require.NoError(t, err)
	s.admit(output(t, 7, 2, 1))
	require.Equal(t, map[string]int{"1/Acknowledged": 1}, s.signalsOf(7))
	s.admit(attention(t, 7, 3, frames.AttentionBlocked))
	require.Equal(t, map[string]int{"1/Acknowledged": 1, "1/Open": 1}, s.signalsOf(7))
	_, err = s.do(signalCommand(t, 2, frames.CommandSuppressSignal, s.open(7)), alice)
	require.NoError(t, err)
	s.admit(exit(t, 7, 4, 0))
	require.Equal(t, map[string]int{"1/Acknowledged": 1, "1/Suppressed": 1}, s.signalsOf(7))
	s.settled()
}

// The same without output in between, and of both kinds: what is acknowledged is not open, so
// that the next ATTENTION, or the failed end, raises another.
func TestD22_AttentionRightAfterAck(t *testing.T) {
	for kind, name := range map[frames.AttentionKind]string{frames.AttentionBlocked: "1", frames.AttentionFailed: "2"} {
		s := withRuns(t)
		s.running(7)
		s.admit(attention(t, 7, 1, kind))
		_, err := s.do(signalCommand(t, 1, frames.CommandAckSignal, s.open(7)), alice)
		require.NoError(t, err)
		s.admit(attention(t, 7, 2, kind), attention(t, 7, 3, kind))
		require.Equal(t, map[string]int{name + "/Acknowledged": 1, name + "/Open": 1}, s.signalsOf(7))
		_, err = s.do(signalCommand(t, 2, frames.CommandSuppressSignal, s.open(7)), alice)
		require.NoError(t, err)
		s.admit(exit(t, 7, 4, 1))
		want := map[string]int{name + "/Acknowledged": 1, name + "/Suppressed": 1}
		want["2/Open"]++
		require.Equal(t, want, s.signalsOf(7), "the failure is told, as no signal of it is open")
		s.settled()
	}
}

// [D-32]: the last 4,096 facts can be told apart, also behind a jump.
func TestD32_RetainedDigests(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	bell := func(seq uint64) *frames.TerminalSourceFact { return attention(t, 7, seq, frames.AttentionBell) }
	for seq := uint64(1); seq <= 100; seq++ {
		s.admit(bell(seq))
	}
	for n := uint64(0); n < RetainedDigests-50; n++ {
		s.admit(bell(5000 + n)) // shares slots of a naive ring with what came before
	}
	last := uint64(5000 + RetainedDigests - 51)
	require.Equal(t, []Verdict{FactRefused}, s.admit(bell(50)), "older than what is retained")
	require.Equal(t, []Verdict{FactDuplicate}, s.admit(bell(51)), "the oldest that is")
	require.Equal(t, []Verdict{FactDuplicate, FactDuplicate, FactDuplicate}, s.admit(bell(100), bell(5000), bell(last)))
	require.Equal(t, []Verdict{FactRefused}, s.admit(bell(101)), "never admitted")
	before := s.head
	require.Equal(t, []Verdict{FactRefused}, s.admit(output(t, 7, 50, 1)), "without a gap, whatever it says")
	require.Equal(t, before, s.head)
	s.events = nil
	require.Equal(t, []Verdict{FactConflicted}, s.admit(output(t, 7, 51, 1)))
	require.Equal(t, "SOURCE_GAP/1 51 51", s.seen()[0])
	s.settled()
}

// What an owner claims to have put out never wraps around.
func TestOutputBytesSaturate(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	for seq := range uint64(3) {
		s.admit(fact(t, 7, seq+1, frames.FactOutputRange, &frames.OutputRange{First: 1, Last: math.MaxUint64, ByteCount: math.MaxUint64 - 1}))
	}
	s.admit(exit(t, 7, 4, 0))
	s.evidence(7, math.MaxUint64, exit(t, 7, 4, 0))
}

func TestManyJumpsForgetTheOldest(t *testing.T) {
	s := withRuns(t)
	s.running(7)
	for n := range uint64(maxSpans + 1) {
		s.admit(attention(t, 7, 10*(n+1), frames.AttentionBell))
	}
	require.Equal(t, []Verdict{FactRefused, FactDuplicate}, s.admit(attention(t, 7, 10, frames.AttentionBell), attention(t, 7, 20, frames.AttentionBell)))
}

// The model is a list of facts and three flags.
func TestC15_SourceAdmissionAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := withRuns(t)
		s.running(7)
		admitted := map[uint64]uint64{} // sequence to content
		var last, outputBytes uint64
		var gapped, ended, closed bool
		var final *frames.TerminalSourceFact
		revision := uint64(1)
		expect := func(f *frames.TerminalSourceFact, want Verdict, events ...string) {
			s.events = nil
			require.Equal(rt, []Verdict{want}, s.admit(f))
			require.Equal(rt, events, s.seen()[:len(events)])
			if len(events) == 0 {
				require.Empty(rt, s.seen())
			}
			revision += uint64(len(events))
		}
		take := func(seq, content uint64) {
			admitted[seq], last = content, seq
			outputBytes += content
		}
		content := func() uint64 { return rapid.Uint64Range(1, 3).Draw(rt, "content") }
		some := func() uint64 {
			if len(admitted) == 0 {
				rt.Skip()
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(admitted))).Draw(rt, "sequence")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"next": func(rt *rapid.T) {
				seq, c := last+1, content()
				if ended {
					expect(output(t, 7, seq, c), FactRefused)
					return
				}
				expect(output(t, 7, seq, c), FactAdmitted, "SOURCE_FACT_ADMITTED")
				take(seq, c)
			},
			"duplicate": func(rt *rapid.T) {
				seq := some()
				want := FactDuplicate
				if ended {
					want = FactRefused
				}
				expect(output(t, 7, seq, admitted[seq]), want)
			},
			"conflict": func(rt *rapid.T) {
				if rapid.IntRange(0, 3).Draw(rt, "rarely") != 0 {
					rt.Skip()
				}
				seq := some()
				f := output(t, 7, seq, admitted[seq]+10)
				if ended {
					expect(f, FactRefused)
					return
				}
				expect(f, FactConflicted, fmt.Sprintf("SOURCE_GAP/1 %d %d", seq, seq), fmt.Sprintf("SOURCE_GAP/2 %d %d", last+1, last), "BINDING_ENDED")
				ended, gapped = true, true
			},
			"jump": func(rt *rapid.T) {
				seq, c := last+rapid.Uint64Range(2, 9).Draw(rt, "over"), content()
				if ended {
					expect(output(t, 7, seq, c), FactRefused)
					return
				}
				if rapid.IntRange(0, 2).Draw(rt, "rarely") != 0 {
					rt.Skip()
				}
				expect(output(t, 7, seq, c), FactJumped, fmt.Sprintf("SOURCE_GAP/0 %d %d", last+1, seq), "SOURCE_FACT_ADMITTED")
				gapped = true
				take(seq, c)
			},
			"skipped": func(rt *rapid.T) { // a sequence behind the last that never came
				seq := rapid.Uint64Range(1, max(last, 1)).Draw(rt, "sequence")
				if _, was := admitted[seq]; was || seq > last {
					rt.Skip()
				}
				expect(output(t, 7, seq, 1), FactRefused)
			},
			"close": func(rt *rapid.T) {
				if ended || rapid.IntRange(0, 5).Draw(rt, "rarely") != 0 {
					rt.Skip()
				}
				final = exit(t, 7, last+1, 0)
				expect(final, FactAdmitted, "SOURCE_FACT_ADMITTED", "BINDING_ENDED")
				last++
				ended, closed = true, true
			},
			"restart": func(*rapid.T) { // everything that counts is in the rows
				s.env.Activation++
				for ref, row := range s.rows {
					row.Annex, row.Record.Payload = slices.Clone(row.Annex), slices.Clone(row.Record.Payload)
					s.rows[ref] = row
				}
			},
			"": func(rt *rapid.T) {
				row := s.rows[bindingRef(frames.BindingID{7})]
				require.EqualValues(rt, revision, row.Record.Revision)
				st, err := StatusOf(s, frames.BindingID{7})
				require.NoError(rt, err)
				require.Equal(rt, last, st.After)
				require.Equal(rt, ended, st.State == BindingOver)
				_, sealed := s.rows[evidenceRef(frames.BindingID{7})]
				require.Equal(rt, closed && !gapped, sealed)
				if sealed {
					s.evidence(7, outputBytes, final)
				}
				if ended {
					s.settled()
				}
			},
		})
	})
}
