package work

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
)

const day = 24 * 60 * 60

// due are the due rows up to a time, in order.
func (s *state) due(now uint64) (rows []frames.ObjectRef) {
	for ref := range s.rows {
		if ref.Kind == kindDue && ref.Compare(DueRef(now, 1<<63)) <= 0 {
			rows = append(rows, ref)
		}
	}
	return rows
}

// retire retires what is due at a time, until nothing is.
func (s *state) retire(now uint64) {
	s.t.Helper()
	s.env.Now = now
	for range 4 {
		rows := s.due(now)
		if len(rows) == 0 {
			return
		}
		s.amend(Retire(s, rows, now, s.now()))
	}
	require.Empty(s.t, s.due(now), "what was looked at is not due any more")
}

func (s *state) has(op byte) bool {
	_, ok := s.rows[OperationRef(frames.OperationID{op})]
	return ok
}

const t0 = 1_800_000_000

func TestResultsBecomeTombstonesAndGo(t *testing.T) {
	s := newState(t)
	_, err := s.do(create(t, 1, 1, "{}"), alice)
	require.NoError(t, err)
	_, err = s.do(update(t, 2, 1, "{}", ptr(frames.ObjectiveCompleted)), alice)
	require.NoError(t, err)
	s.retire(t0 + 30*day) // it may have been completed at the end of its second
	require.Equal(t, "SUCCEEDED", s.opState(1))
	s.events = nil
	s.retire(t0 + 30*day + 1)
	require.Equal(t, []string{"OPERATION_CHANGED", "OPERATION_CHANGED"}, s.seen())
	for op, cmd := range map[byte]*frames.CoordCommand{1: create(t, 1, 1, "{}"), 2: update(t, 2, 1, "{}", ptr(frames.ObjectiveCompleted))} {
		require.EqualValues(t, 2, s.rows[OperationRef(frames.OperationID{op})].Record.Revision)
		result := s.op(op)
		require.Equal(t, frames.OperationTombstoned, result.State)
		require.Equal(t, frames.OperationSucceeded, result.Final)
		out, err := s.do(cmd, alice)
		require.NoError(t, err)
		require.True(t, out.Duplicate)
		require.Equal(t, result, out.Result, "a retry is answered with the tombstone")
		_, err = s.do(cmd, bob)
		require.Equal(t, frames.CodeOperationConflict, code(t, err), "another principal learns nothing")
		got, err := Lookup(s, frames.OperationID{op}, alice)
		require.NoError(t, err)
		require.Equal(t, result, got)
	}
	_, err = s.do(create(t, 1, 1, "{ }"), alice)
	require.Equal(t, frames.CodeOperationConflict, code(t, err), "another digest")

	s.retire(t0 + 60*day + 1)
	require.True(t, s.has(2))
	s.events = nil
	s.retire(t0 + 60*day + 2)
	require.Empty(t, s.seen(), "a tombstone goes without an event [D-42]")
	require.False(t, s.has(2), "it created nothing and has stayed one further period")
	require.True(t, s.has(1), "the objective that it created remains")
	require.Empty(t, s.due(t0+1000*day), "nothing is looked at while it waits")
	result, err := Lookup(s, frames.OperationID{2}, alice)
	require.NoError(t, err)
	require.Equal(t, frames.OperationUnknown, result.State)
}

// A tombstone goes with the objects that its operation created, but not before one further
// period has passed.
func TestTombstonesStayWithTheirObjects(t *testing.T) {
	for _, tt := range []struct {
		name     string
		archived uint64 // when
		gone     uint64 // when the operation may go at the earliest
	}{
		{"archived while the result was there", t0 + 10*day, t0 + 60*day + 2},
		{"archived in the further period", t0 + 40*day, t0 + 60*day + 2},
		{"archived long after", t0 + 400*day, t0 + 400*day},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := finished(t, 1)
			ops := []byte{0xf0, 1, 0x10} // they created objective; run, session, binding; artifact
			for now := uint64(t0 + 1); now < tt.archived; now += day {
				s.retire(now)
			}
			s.env.Now = tt.archived
			_, err := s.do(archive(t, 0x20, 1), alice)
			require.NoError(t, err)
			for ref := range s.rows {
				require.Less(t, ref.Kind, kindWaits, "nothing waits for what is gone")
			}
			for now := tt.archived + 1; now < tt.gone; now += day {
				s.retire(now)
			}
			for _, op := range ops {
				require.True(t, s.has(op))
			}
			s.retire(tt.gone)
			for _, op := range ops {
				require.False(t, s.has(op), "operation %#x", op)
			}
			for now := tt.gone; now <= tt.archived+63*day; now += day {
				s.retire(now)
			}
			for ref := range s.rows {
				require.NotEqual(t, frames.KindOperation, ref.Kind)
				require.NotEqual(t, kindDue, ref.Kind)
			}
		})
	}
}

// What is advertised meanwhile moves both ends [D-42].
func TestRetentionThatIsRaisedPutsOff(t *testing.T) {
	s := newState(t)
	_, err := s.do(create(t, 1, 1, "{}"), alice)
	require.NoError(t, err)
	s.env.Now = t0 + 29*day
	_, err = s.do(retention(t, 2, 50*day), alice)
	require.NoError(t, err)
	_, err = s.do(retention(t, 3, 30*day), alice)
	require.NoError(t, err)
	s.retire(t0 + 50*day)
	require.Equal(t, "SUCCEEDED", s.opState(1))
	s.retire(t0 + 50*day + 1)
	require.Equal(t, "TOMBSTONED", s.opState(1))
	require.Equal(t, "SUCCEEDED", s.opState(3), "it completed when 50 days had been advertised, and as much as 30 were")
	_, err = s.do(retention(t, 4, 100*day), alice)
	require.NoError(t, err)
	s.retire(t0 + 149*day)
	require.Equal(t, "TOMBSTONED", s.opState(1))
}

// Results against a model, whatever the clock does: none goes before its time, and each by
// the first look after it.
func TestRetirementAgainstAModel(t *testing.T) {
	type entry struct {
		completed, promise, entombed uint64
		creates                      bool
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := newState(t)
		s.env.Now = t0
		ops := map[byte]*entry{}
		next, inForce := byte(0), uint64(30*day)
		finish := func(creates bool) {
			ops[next] = &entry{completed: s.env.Now, promise: inForce, creates: creates}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(rt *rapid.T) {
				if next == 250 {
					rt.Skip()
				}
				next++
				_, err := s.do(create(t, next, next, "{}"), alice)
				require.NoError(rt, err)
				finish(true)
			},
			"change": func(rt *rapid.T) {
				if next == 250 {
					rt.Skip()
				}
				next++
				secs := rapid.Uint64Range(30, 90).Draw(rt, "days") * day
				// The result of the change itself was completed as it took effect.
				finish(false)
				_, err := s.do(retention(t, next, secs), alice)
				require.NoError(rt, err)
				inForce = secs
				for _, e := range ops {
					e.promise = max(e.promise, secs)
				}
			},
			"time": func(rt *rapid.T) { s.env.Now += rapid.Uint64Range(1, 40).Draw(rt, "days") * day },
			"step": func(rt *rapid.T) { s.env.Now -= min(s.env.Now, rapid.Uint64Range(1, 40).Draw(rt, "days")*day) },
			"retire": func(rt *rapid.T) {
				now := s.env.Now
				s.retire(now)
				for op, e := range ops {
					switch {
					case e.entombed != 0 && !e.creates && after(e.entombed, e.promise) < now:
						require.False(rt, s.has(op), "operation %d is pruned", op)
						delete(ops, op)
					case e.entombed != 0:
						require.Equal(rt, "TOMBSTONED", s.opState(op))
					case after(e.completed, e.promise) < now:
						require.Equal(rt, "TOMBSTONED", s.opState(op))
						e.entombed = now
					default:
						require.Equal(rt, "SUCCEEDED", s.opState(op), "operation %d is kept", op)
					}
				}
			},
		})
	})
}

func TestRetireIsDoneOnce(t *testing.T) {
	s := newState(t)
	_, err := s.do(create(t, 1, 1, "{}"), alice)
	require.NoError(t, err)
	rows := s.due(t0 + 30*day + 1)
	require.Len(t, rows, 1)
	s.env.Now = t0 + 30*day + 1
	s.amend(Retire(s, rows, s.env.Now, s.now()))
	out := s.amend(Retire(s, rows, s.env.Now, s.now()))
	require.Empty(t, out.Changes)
	require.EqualValues(t, 2, s.rows[OperationRef(frames.OperationID{1})].Record.Revision)
	require.Equal(t, uint64(1<<64-1), after(5, 1<<64-2))
	require.Equal(t, uint64(1<<64-1), ends(1, 1<<64-2))
}

// A clock that was never set may read nothing at all, which is no reason to stop.
func TestCommandsAtTheBeginningOfTime(t *testing.T) {
	s := newState(t)
	c, err := Parse(create(t, 1, 1, "{}"), alice, frames.MaxTypedPayload)
	require.NoError(t, err)
	env := s.now()
	env.Now = 0
	out, err := Apply(s, c, env)
	require.NoError(t, err)
	s.take(out)
	require.Equal(t, "SUCCEEDED", s.opState(1))
}
