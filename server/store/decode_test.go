package store

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
)

// TestItemsReadBack: what a record says is what was put into it, and any damage to its
// form is an error and never a panic.
func TestItemsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &row{commit: 7, key: KeyOf(frames.ObjectRef{Kind: frames.KindOperation, ID: frames.ObjectID{1}})}
		r.Record = frames.SnapshotRecord{
			Kind: frames.KindOperation, ID: frames.ObjectID{1}, Revision: frames.ObjectRevision(rapid.Uint64Min(1).Draw(t, "revision")),
			Schema: 1, Payload: rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "payload"),
		}
		r.Live, r.Principal, r.Annex = rapid.Bool().Draw(t, "live"), frames.KeyID{rapid.Byte().Draw(t, "principal")}, []byte{4}
		items := []item{
			{op: itemEvent, seq: 21, kind: 1, eventID: frames.EventID{1}, row: r, created: true},
			{op: itemHidden, seq: 22},
			{op: itemFact, seq: 23, kind: 12, eventID: frames.EventID{2}, ref: r.key.Ref(), revision: 3, schema: 4, image: []byte("fact")},
			{op: itemRemove, ref: r.key.Ref(), created: true, principal: frames.KeyID{3}},
			{op: itemInstall, install: &install{epoch: 1, activation: 2, base: 3, token: [32]byte{4}}},
		}
		body := []byte{bodyVersion}
		for i := range items {
			items[i].off = len(body)
			body = items[i].append(body)
		}
		h := recordHead{commit: 7, base: 20, count: 3}
		got, err := decodeBody(h, append(body, make([]byte, 3)...))
		require.NoError(t, err)
		r.Seq = 21
		require.Equal(t, items, got)

		cut := rapid.IntRange(0, len(body)-1).Draw(t, "cut")
		if got, err := decodeBody(h, body[:cut]); err == nil {
			require.Less(t, len(got), len(items))
		}
		body[rapid.IntRange(0, len(body)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		_, _ = decodeBody(h, body)
		_, _ = decodeBody(h, rapid.SliceOf(rapid.Byte()).Draw(t, "noise"))
	})
}

func TestStoredValuesAreBoundToTheirKey(t *testing.T) {
	h := &history{path: "state.db"}
	k := KeyOf(frames.ObjectRef{Kind: frames.KindRun, ID: frames.ObjectID{2}})
	r := &row{key: k, commit: 9}
	r.Record = frames.SnapshotRecord{Kind: frames.KindRun, ID: frames.ObjectID{2}, Revision: 1, Payload: []byte("p")}
	r.Seq, r.Annex = 5, []byte{}
	v := encodeChange(&change{key: k, row: r, commit: 9})
	c, err := h.decodeChange(bucketHistory, k[:], v)
	require.NoError(t, err)
	require.Equal(t, r, c.row)
	other := k
	other[17]++
	_, err = h.decodeChange(bucketHistory, other[:], v)
	require.Error(t, err)
	for i := range v {
		v[i] ^= 0x10
		_, err := h.decodeChange(bucketHistory, k[:], v)
		require.Error(t, err, "byte %d", i)
		v[i] ^= 0x10
	}
	gone := encodeChange(&change{key: k, commit: 9})
	c, err = h.decodeChange(bucketCarry, k[:], gone)
	require.NoError(t, err)
	require.Nil(t, c.row)
	_, err = h.decodeChange(bucketHistory, k[:], gone)
	require.Error(t, err, "history holds no removals")
}
