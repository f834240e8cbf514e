package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/work"
)

const month = work.DefaultOperationResultSecs * time.Second

// Retention ends when its time has passed by both clocks.
func TestTimeOfRetention(t *testing.T) {
	began := clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour}
	for _, tt := range []struct {
		name       string
		wall, boot time.Duration // since then
		want       time.Duration
	}{
		{"both go on", month, month, month},
		{"set forward", month, time.Minute, time.Minute},
		{"set back", -month, time.Minute, -month},
		{"set back and caught up", time.Hour, 2 * time.Hour, time.Hour},
	} {
		now := clock.Reading{Wall: began.Wall.Add(tt.wall), Boot: began.Boot + tt.boot}
		require.EqualValues(t, began.Unix()+uint64(tt.want/time.Second), trusted(began, now), tt.name)
	}
}

// A wall clock that is set forward by a month takes no result away.
func TestAClockSetForwardEndsNoResult(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		p := b.raw()
		require.NoError(t, p.shake(b.r, b.r.keys[0], uint64(frames.AllScopes), b.channel()))
		op := newID[frames.OperationID](t)
		_, err := p.command(frames.CommandCreateObjective, op, &frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1, Document: []byte("{}")})
		require.NoError(t, err)
		p.close()
		retiring := start(b.s.retire)
		defer retiring.stop() //nolint:errcheck // it ends when told to
		time.Sleep(time.Minute)
		b.clock.by.Store(int64(month + time.Hour))
		time.Sleep(5 * time.Minute) // renewals, and many looks
		require.NoError(t, b.s.fence.Check())
		result, err := b.s.writer.Lookup(t.Context(), op, work.Viewer{Scope: frames.ScopeAdmin})
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, result.State)
		// The month really passes for a process that begins now.
		require.NoError(t, b.s.writer.Retire(t.Context(), b.s.clock.Now().Unix()))
		result, err = b.s.writer.Lookup(t.Context(), op, work.Viewer{Scope: frames.ScopeAdmin})
		require.NoError(t, err)
		require.Equal(t, frames.OperationTombstoned, result.State)
	})
}

// Nor does one that was behind when the result came, and is put right.
func TestAClockSetBackForAWhileEndsNoResult(t *testing.T) {
	bubble(t, func(t *testing.T, b *bed) {
		retiring := start(b.s.retire)
		defer retiring.stop() //nolint:errcheck // it ends when told to
		time.Sleep(time.Minute)
		b.clock.by.Store(-int64(month + time.Hour))
		time.Sleep(5 * time.Minute) // renewals
		p := b.raw()
		require.NoError(t, p.shake(b.r, b.r.keys[0], uint64(frames.AllScopes), b.channel()))
		op := newID[frames.OperationID](t)
		_, err := p.command(frames.CommandCreateObjective, op, &frames.CreateObjective{ObjectiveID: newID[frames.ObjectiveID](t), Schema: 1, Document: []byte("{}")})
		require.NoError(t, err)
		p.close()
		b.clock.by.Store(0)
		time.Sleep(5 * time.Minute) // renewals, and many looks
		require.NoError(t, b.s.fence.Check())
		result, err := b.s.writer.Lookup(t.Context(), op, work.Viewer{Scope: frames.ScopeAdmin})
		require.NoError(t, err)
		require.Equal(t, frames.OperationSucceeded, result.State)
	})
}
