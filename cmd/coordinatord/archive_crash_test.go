package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// TestAKillAroundAnArchive crashes the coordinator around the commits of a line of objectives
// that are made, completed and archived. Under the next activation every command is retried: each
// was done once, nothing is left, and no id can be used again.
func TestAKillAroundAnArchive(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"record-built", "record-written", "record-synced", "published", "replied"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			p := r.serve(fmt.Sprintf("COORDINATOR_FAILPOINT=%s=kill@11", point)) // the third archive, or next to it
			p.ready()
			c := r.archiver()
			var sent []client.Command
			var ids []frames.ObjectiveID
			for len(sent) < 60 {
				made, id := create(t)
				ids = append(ids, id)
				state := frames.ObjectiveCompleted
				line := []client.Command{
					made,
					command(t, frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}"), State: &state}),
					command(t, frames.CommandArchiveObjective, &frames.ArchiveObjective{ObjectiveID: id}),
				}
				sent = append(sent, line...)
				var err error
				for i := 0; i < len(line) && err == nil; i++ {
					_, err = c.Command(t.Context(), line[i])
				}
				if err != nil {
					break
				}
			}
			require.Equal(t, -1, p.ends(), "the fail point was not reached")
			q := r.serve()
			q.ready()
			c = r.archiver()
			for i, cmd := range sent {
				result, err := c.Retry(t.Context(), cmd)
				require.NoError(t, err, "command %d", i)
				require.Equal(t, frames.OperationSucceeded, result.State)
			}
			used := func() {
				for _, id := range ids {
					_, err := c.Command(t.Context(), command(t, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte("{}")}))
					var refused *client.RefusedError
					require.ErrorAs(t, err, &refused)
					require.Equal(t, frames.CodeRevisionConflict, refused.Code)
				}
			}
			used()
			snap, err := c.Snapshot(t.Context())
			require.NoError(t, err)
			defer snap.Close()
			operations := 0
			require.NoError(t, snap.Each(func(rec frames.SnapshotRecord) error {
				require.NotEqual(t, frames.KindObjective, rec.Kind)
				if rec.Kind == frames.KindOperation {
					operations++
				}
				return nil
			}))
			require.Equal(t, len(sent), operations)

			require.Equal(t, 0, q.stop())
			ok(t, coordinatord, "verify", "--state", r.dir)
			ok(t, coordinatord, "compact", "--state", r.dir)
			r.serve().ready()
			c = r.archiver()
			used()
		})
	}
}

// archiver is connect for whoever archives.
func (r *rig) archiver() *client.Conn {
	r.t.Helper()
	c, err := client.Dial(r.t.Context(), r.ctx, client.Options{Offered: frames.CapObjectiveLifecycle | frames.CapArchive})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { c.Close() })
	s, err := c.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, s.Close())
	return c
}

// command is one under a fresh operation id.
func command(t *testing.T, kind frames.CommandKind, body codec.Message) client.Command {
	t.Helper()
	cmd, err := client.NewCommand(fresh[frames.OperationID](t), kind, body)
	require.NoError(t, err)
	return cmd
}
