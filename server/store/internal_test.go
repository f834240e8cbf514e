package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/server/store"
)

const ownKind = store.InternalKind + 3

func internalRow(id uint64, annex string, live bool) store.Row {
	r := makeRow(ownKind, id, 1, "", live)
	r.Record.Payload, r.Annex = nil, []byte(annex)
	return r
}

// everyone sees every kind there is.
func everyone(frames.ObjectKind, frames.KeyID) bool { return true }

// Internal rows are durable and checkpointed like others; no cut has them and none counts.
func TestInternalRowsAreSeenByNobody(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer func() { b.s.Abandon() }()
	tx := b.begin()
	tx.Put(internalRow(1, "live", true))
	tx.Put(internalRow(2, "history", false))
	batch := b.commit(tx)
	require.Empty(t, batch.Silent)
	require.Empty(t, batch.Events)
	require.Less(t, batch.Last, batch.First, "no sequence is consumed")
	require.Len(t, batch.Internal, 2)
	require.Equal(t, "live", string(batch.Internal[0].Row.Annex))

	shown := func() (n int) {
		cut := b.s.Cut()
		defer cut.Close()
		rows, done, err := cut.Page(store.Key{}, everyone, 100)
		require.NoError(t, err)
		require.True(t, done)
		for i := range rows {
			require.Less(t, rows[i].Record.Kind, store.InternalKind)
		}
		require.Zero(t, cut.Count(ownKind))
		return len(rows)
	}
	get := func(id uint64) (string, bool) {
		r, found, err := b.begin(ref(ownKind, id)).Get(ref(ownKind, id))
		require.NoError(t, err)
		return string(r.Annex), found
	}
	check := func() {
		t.Helper()
		require.Equal(t, 1, shown(), "RETENTION alone")
		require.NotContains(t, b.s.State().Counts, ownKind)
		for id, want := range map[uint64]string{1: "live", 2: "history"} {
			have, found := get(id)
			require.True(t, found)
			require.Equal(t, want, have)
		}
		var live []store.Row
		b.s.LiveRows(ownKind, func(r store.Row) bool { live = append(live, r); return true })
		require.Len(t, live, 1)
		require.Equal(t, objectID(1), live[0].Record.ID)
		b.s.LiveRows(ownKind-1, func(store.Row) bool { t.Error("a row of another kind"); return true })
		b.s.LiveRows(ownKind+1, func(store.Row) bool { t.Error("a row of another kind"); return true })
	}
	check()
	b.checkpoint()
	check()
	b.crash(3)
	b.open()
	check()

	// They are put and removed without a look.
	tx = b.s.Begin()
	tx.Put(internalRow(2, "again", false))
	tx.Remove(ref(ownKind, 1))
	tx.Remove(ref(ownKind, 9)) // was never there
	batch = b.commit(tx)
	require.True(t, batch.Internal[1].Removed)
	b.checkpoint()
	b.crash(4)
	b.open()
	require.Equal(t, 1, shown())
	have, found := get(2)
	require.True(t, found)
	require.Equal(t, "again", have)
	_, found = get(1)
	require.False(t, found)
	_, found = get(9)
	require.False(t, found)
}

// An open cut pays for no internal row and holds none back.
func TestC14_InternalRowsPinNothing(t *testing.T) {
	b := newBed(t, t.TempDir())
	defer func() { b.s.Abandon() }()
	tx := b.s.Begin()
	tx.Put(internalRow(1, "old", false))
	tx.Put(internalRow(2, "old", true))
	b.commit(tx)
	b.checkpoint()
	cut := b.s.Cut()
	defer cut.Close()
	for range 5 {
		tx = b.begin(ref(ownKind, 1))
		tx.Put(internalRow(1, "new", false))
		tx.Put(internalRow(2, "new", true))
		b.commit(tx)
		b.checkpoint()
	}
	tx = b.begin(ref(ownKind, 1))
	tx.Remove(ref(ownKind, 1))
	b.commit(tx)
	b.checkpoint()
	require.Zero(t, cut.Superseded())
}

// Against a map, with checkpoints and crashes as ordinary actions.
func TestInternalRowsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBed(rt, t.TempDir())
		defer func() { b.s.Abandon() }()
		type row struct {
			annex string
			live  bool
		}
		m := map[uint64]row{}
		rt.Repeat(map[string]func(*rapid.T){
			"commit": func(rt *rapid.T) {
				tx := b.s.Begin()
				for range rapid.IntRange(1, 4).Draw(rt, "changes") {
					id := rapid.Uint64Range(1, 6).Draw(rt, "id")
					if rapid.Bool().Draw(rt, "remove") {
						tx.Remove(ref(ownKind, id))
						delete(m, id)
						continue
					}
					r := row{rapid.StringN(0, 4, 8).Draw(rt, "annex"), rapid.Bool().Draw(rt, "live")}
					tx.Put(internalRow(id, r.annex, r.live))
					m[id] = r
				}
				b.commit(tx)
			},
			"checkpoint": func(*rapid.T) { b.checkpoint() },
			"crash": func(rt *rapid.T) {
				b.crash(rapid.Uint64Range(0, 3).Draw(rt, "seed"))
				b.open()
			},
			"": func(rt *rapid.T) {
				live := 0
				for id := uint64(1); id <= 6; id++ {
					want, has := m[id]
					r, found, err := b.begin(ref(ownKind, id)).Get(ref(ownKind, id))
					require.NoError(rt, err)
					require.Equal(rt, has, found)
					if has {
						require.Equal(rt, want.annex, string(r.Annex))
						require.Equal(rt, want.live, r.Live)
					}
					if want.live {
						live++
					}
				}
				b.s.LiveRows(ownKind, func(store.Row) bool { live--; return true })
				require.Zero(rt, live)
			},
		})
	})
}
