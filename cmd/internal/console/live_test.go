package console

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/overview"
)

// TestAPageSeesWhatHappens follows a coordinator through work, its death and its return.
func TestAPageSeesWhatHappens(t *testing.T) {
	x := newWorld(t)
	w := x.worker()
	first := w.objective("first")
	p := x.opened(x.commander, nil)
	f := p.live()
	reset := f.next()
	require.Equal(t, "reset", reset.name)
	require.Equal(t, "1", reset.id)
	has := func(e told, title string) bool {
		return slices.ContainsFunc(e.decode(t).Objectives, func(r *overview.Objective) bool { return r.Title == title })
	}
	if !has(reset, "first") { // the replica may not have been there yet
		f.until("the first objective", func(e told) bool { return has(e, "first") })
	}
	second := w.objective("second")
	rows := f.until("the second objective", func(e told) bool { return e.name == "rows" && has(e, "second") })
	now := rows.decode(t)
	require.Equal(t, second.String(), now.Objectives[0].ID)
	require.Len(t, now.Objectives, 1, "only what has changed is told")
	require.False(t, now.State.Stale)
	f.until("its event", func(e told) bool {
		return e.name == "activity" && slices.ContainsFunc(e.decode(t).Events, func(e *overview.Activity) bool { return e.Object != nil && e.Object.ID == second.String() })
	})

	require.NoError(t, x.stop())
	stale := f.until("the end of the coordinator", func(e told) bool {
		s := e.decode(t).State
		return s != nil && s.Stale && s.StaleReason == "disconnected"
	}).decode(t).State
	require.NotNil(t, stale.Gap)
	require.Equal(t, "DISCONNECTED", stale.Gap.Reason)
	require.False(t, stale.Since.IsZero())
	late := p.live() // who comes now is told so, and what was known
	late.close()
	x.run()
	again := f.until("its return", func(e told) bool { s := e.decode(t).State; return s != nil && !s.Stale }).decode(t).State
	require.EqualValues(t, 2, again.Authority.Epoch)

	f.close()
	whole := p.live().next()
	require.Equal(t, "reset", whole.name)
	require.True(t, has(whole, "first") && has(whole, "second"))
	require.Contains(t, string(whole.data), first.String())
	require.NotEmpty(t, whole.decode(t).Activity)
}
