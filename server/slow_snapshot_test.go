package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server/quota"
)

// TestC14_FiftySlowSnapshots: fifty readers that stand still in the middle of a snapshot of
// everything hold no command back and do not make the file grow. What they pin is charged to
// them, and those that cannot pay for it are told so.
func TestC14_FiftySlowSnapshots(t *testing.T) {
	const readers, perKey, objects, rounds = 50, 13, 150, 5
	document := strings.Repeat("d", 16<<10)
	work := func(t *testing.T, readers int) (size int64) {
		r := newRig(t)
		var keys []*handshake.Key
		for i := range (readers + perKey - 1) / perKey {
			k := newKey(t)
			r.enrol(k, uint64(frames.AllScopes), fmt.Sprint("reader-", i))
			keys = append(keys, k)
		}
		r.start()
		maker := r.connect(r.keys[0])
		var ids []frames.ObjectiveID
		for range objects {
			ids = append(ids, maker.create(document))
		}
		type reader struct {
			*peer
			begin  *frames.SnapshotBegin
			cursor []byte
		}
		var slow []reader
		for i := range readers {
			p := r.connect(keys[i/perKey])
			begin, err := p.open()
			require.NoError(t, err)
			page, err := p.nextPage(begin.SnapshotID, begin.FirstCursor)
			require.NoError(t, err)
			require.NotNil(t, page.NextCursor, "it stands in the middle")
			slow = append(slow, reader{p, begin, page.NextCursor})
		}
		for round := range rounds {
			for _, id := range ids {
				res, err := maker.command(frames.CommandUpdateObjective, newID[frames.OperationID](t),
					&frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: []byte(document[:len(document)-round])})
				require.NoError(t, err)
				require.Equal(t, frames.OperationSucceeded, res.State)
			}
		}
		_, pinned := r.server().quotas.Use(principalOf(maker), quota.PinnedBytes)
		require.LessOrEqual(t, pinned, r.server().quotas.Limits()[quota.OfServer][quota.PinnedBytes])
		whole, ended := 0, 0
		for _, p := range slow {
			cursor := p.cursor
			for cursor != nil {
				page, err := p.nextPage(p.begin.SnapshotID, cursor)
				if err != nil {
					require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
					ended++
					break
				}
				for i := range page.Records {
					require.EqualValues(t, 1, page.Records[i].Revision, "the cut has not moved")
				}
				if cursor = page.NextCursor; cursor == nil {
					whole++
				}
			}
		}
		if readers > 0 {
			require.Positive(t, whole, "some could pay")
			require.Positive(t, ended, "some could not")
		}
		for _, p := range slow {
			p.close()
		}
		eventually(t, "nothing stays pinned", func() bool {
			_, pinned := r.server().quotas.Use(principalOf(maker), quota.PinnedBytes)
			return pinned == 0
		})
		require.NoError(t, r.stop())
		info, err := os.Stat(filepath.Join(r.dir, "state.db"))
		require.NoError(t, err)
		return info.Size()
	}
	alone, beside := work(t, 0), work(t, readers)
	t.Logf("state.db: %d KiB without readers, %d KiB with %d", alone>>10, beside>>10, readers)
	require.LessOrEqual(t, beside, 3*alone)
}
