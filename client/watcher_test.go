package client

import (
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// A watcher checks all that a follower tells: nothing missing, nothing twice, nothing out
// of order, and never silence about a gap.
type watcher struct {
	t       *testing.T
	revs    map[frames.ObjectRef]frames.ObjectRevision
	last    frames.EventCut
	current bool
	gaps    map[string]int
	causes  []error
	healed  int
	synced  int
	lost    int
}

func newWatcher(t *testing.T) *watcher {
	return &watcher{t: t, revs: map[frames.ObjectRef]frames.ObjectRevision{}, gaps: map[string]int{}}
}

func (w *watcher) take(u Update) {
	t := w.t
	switch u := u.(type) {
	case *Synced:
		require.False(t, w.current, "a snapshot without a gap before it")
		require.Equal(t, w.synced == 0, u.First)
		if u.Lost != nil {
			w.lost++
		} else {
			require.GreaterOrEqual(t, u.Base, w.last)
		}
		now := map[frames.ObjectRef]frames.ObjectRevision{}
		require.NoError(t, u.Each(func(r frames.SnapshotRecord) error {
			require.Equal(t, w.revs[r.Ref()], u.Was(r.Ref()))
			now[r.Ref()] = r.Revision
			return nil
		}))
		u.Removed(func(ref frames.ObjectRef) { require.Contains(t, w.revs, ref); require.NotContains(t, now, ref) })
		w.revs, w.last, w.current = now, u.Base, true
		w.synced++
	case *Healed:
		require.False(t, w.current, "healed without a gap before it")
		require.Equal(t, w.last, u.Last)
		w.current = true
		w.healed++
	case *Event:
		require.True(t, w.current, "an event within a gap")
		require.Greater(t, u.Sequence, frames.EventSequence(w.last))
		require.Equal(t, w.revs[u.Object]+1, u.Revision, "event %d of %v", u.Sequence, u.Object)
		w.revs[u.Object], w.last = u.Revision, frames.EventCut(u.Sequence)
	case *Gap:
		require.Equal(t, w.last, u.Last)
		w.current = false
		if u.Cause != nil {
			w.gaps["connection"]++
			w.causes = append(w.causes, u.Cause)
		} else {
			w.gaps[u.Reason.String()]++
		}
	}
}

// agrees holds the view against the model's.
func (w *watcher) agrees(m *model) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for n, rev := range m.revs {
		require.Equal(w.t, rev, w.revs[objectRef(n)])
	}
	require.Len(w.t, w.revs, len(m.revs))
}
