package store_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/server/store"
)

// scan reads all rows of the kind up to an id, few at a time.
func (b *bed) scan(kind frames.ObjectKind, last uint64, most int) (ids []uint64) {
	b.t.Helper()
	cut := b.s.Cut()
	defer cut.Close()
	var after store.Key
	for done := false; !done; {
		var rows []store.Row
		var err error
		rows, after, done, err = cut.Internal(ref(kind, last), after, most)
		require.NoError(b.t, err)
		require.LessOrEqual(b.t, len(rows), most)
		for i := range rows {
			require.Equal(b.t, kind, rows[i].Record.Kind)
			id := rows[i].Record.ID
			for n := uint64(0); n <= 40; n++ {
				if objectID(n) == id {
					ids = append(ids, n)
					require.Equal(b.t, strings.Repeat("x", int(n)), string(rows[i].Annex))
				}
			}
		}
	}
	return ids
}

// Internal rows come in order from wherever they are, and only those that there are.
func TestInternalRowsAreScannedInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBed(rt, t.TempDir())
		defer func() { b.s.Abandon() }()
		want := map[uint64]bool{}
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				tx := b.begin()
				for range rapid.IntRange(1, 4).Draw(rt, "rows") {
					id := rapid.Uint64Range(1, 40).Draw(rt, "id")
					want[id] = true
					tx.Put(internalRow(id, strings.Repeat("x", int(id)), rapid.Bool().Draw(rt, "live")))
				}
				for _, k := range []frames.ObjectKind{ownKind - 1, ownKind + 1} { // neighbours
					r := internalRow(7, "", false)
					r.Record.Kind = k
					tx.Put(r)
				}
				b.commit(tx)
			},
			"remove": func(rt *rapid.T) {
				tx := b.begin()
				id := rapid.Uint64Range(1, 40).Draw(rt, "id")
				delete(want, id)
				tx.Remove(ref(ownKind, id))
				b.commit(tx)
			},
			"checkpoint": func(*rapid.T) { b.checkpoint() },
			"step": func(rt *rapid.T) {
				_, err := b.s.CheckpointStep()
				require.NoError(rt, err)
			},
			"crash": func(rt *rapid.T) {
				b.crash(rapid.Uint64Range(0, 9).Draw(rt, "seed"))
				b.open()
			},
			"scan": func(rt *rapid.T) {
				last := rapid.Uint64Range(1, 41).Draw(rt, "last")
				var up []uint64
				for _, id := range slices.Sorted(maps.Keys(want)) {
					if id <= last {
						up = append(up, id)
					}
				}
				require.Equal(rt, up, b.scan(ownKind, last, rapid.IntRange(1, 5).Draw(rt, "most")))
			},
		})
	})
}

// Who removes a record needs no more than its head: it counts and weighs the same.
func TestRemovalByTheHead(t *testing.T) {
	for _, whole := range []bool{true, false} {
		b := newBed(t, t.TempDir())
		payload := strings.Repeat("p", 5000)
		b.put(frames.KindObjective, 1, 1, payload, false)
		b.put(frames.KindObjective, 2, 1, payload, false)
		b.checkpoint()
		cut := b.s.Cut()
		refs := []frames.ObjectRef{ref(frames.KindObjective, 1)}
		heads := []frames.ObjectRef{ref(frames.KindObjective, 1), ref(frames.KindObjective, 9)}
		if whole {
			heads = nil
		} else {
			refs = nil
		}
		l, err := b.s.PrefetchHeads(refs, heads)
		require.NoError(t, err)
		tx := b.s.Begin()
		require.True(t, tx.Use(l))
		if !whole {
			_, _, err = tx.Get(ref(frames.KindObjective, 1))
			require.ErrorIs(t, err, store.ErrNotLoaded, "a head is not a row")
			_, found, err := tx.GetHead(ref(frames.KindObjective, 9))
			require.NoError(t, err)
			require.False(t, found)
		}
		head, found, err := tx.GetHead(ref(frames.KindObjective, 1))
		require.NoError(t, err)
		require.True(t, found)
		require.EqualValues(t, 1, head.Record.Revision)
		require.Equal(t, whole, len(head.Record.Payload) > 0)
		_, _, err = tx.GetHead(ref(frames.KindObjective, 2))
		require.ErrorIs(t, err, store.ErrNotLoaded)
		tx.Remove(ref(frames.KindObjective, 1))
		b.commit(tx)
		require.EqualValues(t, 1, b.s.State().Counts[frames.KindObjective])
		require.Greater(t, cut.Superseded(), uint64(5000), "the cut pays for what it holds back [D-5]")
		rows, _, err := cut.Page(store.Key{}, everyone, 10)
		require.NoError(t, err)
		require.Len(t, rows, 3)
		require.Equal(t, payload, string(rows[0].Record.Payload))
		cut.Close()
		require.NoError(t, b.s.Close())
		b.open()
		require.EqualValues(t, 1, b.s.State().Counts[frames.KindObjective])
		require.NoError(t, b.s.Abandon())
	}
}

// Heads that a checkpoint has since overtaken are stale like rows.
func TestStaleHeadsAreRefused(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer func() { b.s.Abandon() }()
	b.put(frames.KindObjective, 1, 1, "a", false)
	l, err := b.s.PrefetchHeads(nil, []frames.ObjectRef{ref(frames.KindObjective, 1)})
	require.NoError(t, err)
	b.checkpoint()
	require.False(t, b.s.Begin().Use(l))
}

// OBJECT_REMOVED has a class of its own, in a commit, in the log and after a restart.
func TestRemovalsHaveTheirOwnClass(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer func() { b.s.Abandon() }()
	b.put(frames.KindObjective, 1, 1, "a", false)
	tx := b.begin(ref(frames.KindObjective, 1))
	tx.EmitEvent(frames.ReplayEvent{ID: eventID(9), Kind: frames.EventObjectRemoved, Object: ref(frames.KindObjective, 1), Revision: 2, Schema: 1, Payload: []byte("r")})
	tx.Remove(ref(frames.KindObjective, 1))
	batch := b.commit(tx)
	require.Equal(t, frames.KindObjective|store.ClassRemoved, batch.Events[0].Class)
	for range 2 {
		r, err := b.s.Replay(0, 2)
		require.NoError(t, err)
		var asked []frames.ObjectKind
		events, done, err := r.Page(0, func(k frames.ObjectKind, _ frames.KeyID) bool {
			asked = append(asked, k)
			return k != frames.KindObjective
		}, 10, 1<<20)
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, batch.Events, events)
		require.Equal(t, []frames.ObjectKind{frames.KindObjective, frames.KindObjective | store.ClassRemoved}, asked)
		r.Close()
		require.NoError(t, b.s.Close())
		b.open()
	}
}
