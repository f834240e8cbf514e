package commit

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
)

// Whatever is proposed at once with an archive, and in whatever order: nothing is left beneath
// an objective that is gone, nothing waits there, and its ids are not used again.
func TestArchiveAmongWhatIsProposedAtOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := withOwner(t)
		for n := range rapid.IntRange(0, 3).Draw(rt, "runs") {
			b.ran(n+1, int32(n%2))
		}
		if rapid.Bool().Draw(rt, "history") {
			b.checkpoint()
		}
		const started, completed, archived, again, created, crossed = 0x100, 0x101, 0x102, 0x103, 0x104, 0x105
		commands := map[int]*frames.CoordCommand{
			started: start(t, started, 9), completed: finish(t, completed, 1), archived: archive(t, archived, 1),
			again: archive(t, again, 1), created: create(t, created, 1, "{}"), crossed: archive(t, archived, 1),
		}
		order := rapid.Permutation([]int{started, completed, archived, again, created, crossed}).Draw(rt, "order")
		answers := map[int]chan answer{}
		for _, n := range order {
			answers[n] = b.propose(commands[n], alice)
			if rapid.IntRange(0, 3).Draw(rt, "step") == 0 {
				require.NoError(rt, b.step())
			}
		}
		require.NoError(rt, b.step())
		got := map[int]error{}
		for n, c := range answers {
			got[n] = (<-c).err
		}
		b.restart(func() { b.disk.Crash(rapid.Uint64().Draw(rt, "seed")) })
		rows := b.rows()
		require.Equal(rt, frames.CodeRevisionConflict, code(t, got[created]), "the id is used before and after")
		require.False(rt, got[started] == nil && got[completed] == nil, "a run that has not ended, or an objective that has")
		gone := got[archived] == nil || got[again] == nil || got[crossed] == nil
		if gone {
			require.NoError(rt, got[completed])
			require.Error(rt, got[started])
			for kind := range rows {
				require.Contains(rt, []frames.ObjectKind{frames.KindOperation, frames.KindAdmin}, kind)
			}
		}
		require.Equal(rt, boolean(got[started] == nil), pendings(t, b), "only the run that has started waits")
		require.NoError(rt, b.store.Abandon())
	})
}

func boolean(v bool) int {
	if v {
		return 1
	}
	return 0
}

// pendings counts the operations that have not ended.
func pendings(t testing.TB, b *bed) (n int) {
	b.store.LiveRows(frames.KindOperation, func(r store.Row) bool {
		var op frames.Operation
		require.NoError(t, codec.Decode(&op, r.Record.Payload))
		if op.Result.State == frames.OperationPending {
			n++
		}
		return true
	})
	return n
}
