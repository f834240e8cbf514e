package client

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestEventsOfARange reads every kind of range out of logs that were trimmed at every kind of place:
// each event of the range is visited once and in order, or lies in what is told to be removed.
func TestEventsOfARange(t *testing.T) {
	const written = 12
	for _, kept := range []int{0, 1, 5, 11} {
		for _, from := range []int{-1, 0, 4, 5, 10, 11} {
			for _, to := range []int{-1, 3, 5, 11} {
				w := newWorld(t)
				m := newModel(w)
				for range written {
					m.write()
				}
				m.kept = kept
				var r EventRange
				if from >= 0 {
					r.After = frames.EventCut(m.log[from].Sequence)
				}
				through := m.log[written-1].Sequence
				if to >= 0 {
					through = m.log[to].Sequence
					r.Through = frames.EventCut(through)
				}
				var want, got []frames.EventSequence
				for _, e := range m.log[kept:] {
					if e.Sequence > frames.EventSequence(r.After) && e.Sequence <= through {
						want = append(want, e.Sequence)
					}
				}
				opts := w.options(m.serve)
				opts.Offered = frames.CapSignals
				opts.Clock = quietly{w.clock, func() bool { return len(got) == len(want) }}
				var goneThrough frames.EventSequence
				read, err := ReadEvents(t.Context(), w.pins, opts, r, func(first, last frames.EventSequence) error {
					require.Empty(t, got, "what is gone comes first")
					require.EqualValues(t, r.After+1, first)
					require.LessOrEqual(t, last, through)
					goneThrough = last
					return nil
				}, func(e *Event) error {
					got = append(got, e.Sequence)
					return nil
				})
				require.NoError(t, err, "kept %d, from %d to %d", kept, from, to)
				require.Equal(t, want, got, "kept %d, from %d to %d", kept, from, to)
				require.EqualValues(t, through, read.Through)
				for _, e := range m.log[:kept] {
					if e.Sequence > frames.EventSequence(r.After) && e.Sequence <= through {
						require.LessOrEqual(t, e.Sequence, goneThrough, "it is told to be gone")
					}
				}
				if len(want) > 0 {
					require.Less(t, goneThrough, want[0])
				}
			}
		}
	}
}

func TestEventsRefusals(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	opts := w.options(m.serve)
	opts.Offered = frames.CapAdministration
	_, err := ReadEvents(t.Context(), w.pins, opts, EventRange{}, nil, nil)
	require.ErrorIs(t, err, ErrAdministration)
	opts.Offered = 0
	mine := errors.New("the visitor's own")
	_, err = ReadEvents(t.Context(), w.pins, opts, EventRange{}, nil, func(*Event) error { return mine })
	require.ErrorIs(t, err, mine)
	var beyond *CutBeyondError
	_, err = ReadEvents(t.Context(), w.pins, opts, EventRange{After: 1 << 40}, nil, nil)
	require.ErrorAs(t, err, &beyond)
	require.Equal(t, m.log[0].Sequence, frames.EventSequence(beyond.Head))
}

func TestACutIsHeldAgainstTheHistory(t *testing.T) {
	// Epochs 5 to 8, activations 3 to 6; a backup of event 40 was restored before the last one.
	s := &Snapshot{Guard: frames.AuthorityGuard{Epoch: 8, Activation: 6}, Base: 60, begin: &frames.SnapshotBegin{Bases: []frames.ActivationBase{
		{Activation: 6, Base: 40}, {Activation: 5, Base: 35}, {Activation: 4, Base: 20}, {Activation: 3, Base: 0}}}}
	for _, tt := range []struct {
		epoch  frames.AuthorityEpoch
		cut    frames.EventCut
		lost   frames.EventCut
		beyond bool
	}{
		{epoch: 0, cut: 60}, {epoch: 0, cut: 61, beyond: true},
		{epoch: 8, cut: 60}, {epoch: 8, cut: 61, beyond: true}, {epoch: 9, cut: 1, beyond: true},
		{epoch: 7, cut: 40}, {epoch: 7, cut: 41, lost: 40}, {epoch: 7, cut: 99, lost: 40},
		{epoch: 6, cut: 35}, {epoch: 6, cut: 36, lost: 35},
		{epoch: 5, cut: 20}, {epoch: 5, cut: 21, lost: 20},
		{epoch: 1, cut: 0}, {epoch: 1, cut: 1, lost: 0},
	} {
		err := s.holds(EventRange{After: tt.cut, Epoch: tt.epoch})
		if tt.epoch != 0 && tt.epoch != 8 { // under the present one the end may be still to come
			require.Equal(t, err, s.holds(EventRange{Through: tt.cut, ThroughEpoch: tt.epoch}), "%+v", tt)
		}
		var lost *CutLostError
		var beyond *CutBeyondError
		switch {
		case tt.beyond:
			require.ErrorAs(t, err, &beyond, "%+v", tt)
		case tt.epoch == 1 && tt.cut == 1, tt.lost > 0:
			require.ErrorAs(t, err, &lost, "%+v", tt)
			require.Equal(t, tt.lost, lost.Base)
		default:
			require.NoError(t, err, "%+v", tt)
		}
	}
	require.NoError(t, s.holds(EventRange{After: 60, Through: 61, ThroughEpoch: 8}))
}

// The coordinator tells where its newest authorities began. A cut under an earlier one may lie in
// what a backup that was restored since has undone.
func TestACutOfAnAuthorityThatIsNoLongerListedIsLost(t *testing.T) {
	s := &Snapshot{Guard: frames.AuthorityGuard{Epoch: 103, Activation: 100}, Base: 900, begin: &frames.SnapshotBegin{}}
	for a := frames.ActivationSequence(37); a <= 100; a++ {
		s.begin.Bases = append(s.begin.Bases, frames.ActivationBase{Activation: a, Base: frames.EventCut(400 + a)})
	}
	require.Len(t, s.begin.Bases, frames.MaxActivationBases)
	require.NoError(t, s.holds(EventRange{After: 437, Epoch: 39}), "only listed ones can have followed")
	require.NoError(t, s.holds(EventRange{After: 0, Epoch: 1}), "the beginning is in every history")
	var lost *CutLostError
	require.ErrorAs(t, s.holds(EventRange{After: 438, Epoch: 39}), &lost)
	require.Equal(t, &CutLostError{Epoch: 39, Cut: 438, Base: 437}, lost)
	require.ErrorAs(t, s.holds(EventRange{After: 50, Epoch: 38}), &lost)
	require.Equal(t, &CutLostError{Epoch: 38, Cut: 50, Unlisted: true}, lost)
	s.begin.Bases = s.begin.Bases[1:] // not full: there were no others
	require.NoError(t, s.holds(EventRange{After: 50, Epoch: 38}))
}
