package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
)

// TestReplicaThroughSIGKILL keeps a replica of a coordinator that is killed twice, while a
// watcher shows what a feed tells that is not read in between.
func TestReplicaThroughSIGKILL(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	c, err := client.LoadContext(filepath.Join(u.state, "client", "context.toml"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	r, err := client.OpenReplica(c, client.ReplicaOptions{Options: client.Options{Offered: quietCaps}})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	session, err := client.OpenSession(c, client.SessionOptions{})
	require.NoError(t, err)
	defer session.Close()
	_, err = r.WaitFor(ctx, func(*client.View) bool { return true })
	require.NoError(t, err)

	var out bytes.Buffer
	w := &watcher{a: &app{stdout: &out, contextPath: "/nonexistent/context.toml"}}
	feed := r.Changes(8)
	defer feed.Close()
	next := func() {
		n, err := feed.Next(ctx)
		require.NoError(t, err)
		require.NoError(t, w.notice(r, n))
	}
	next()
	require.Contains(t, out.String(), "-- watching: 0 records")
	const each = 20
	for n := range 3 {
		if n > 0 {
			require.NoError(t, syscall.Kill(u.coordinatorPID(), syscall.SIGKILL))
		}
		for i := range each {
			require.NoError(t, makeObjective(ctx, session, i))
		}
		v, err := r.WaitFor(ctx, func(v *client.View) bool { return v.Count(frames.KindObjective) == (n+1)*each })
		require.NoError(t, err, "%v", r.State())
		out.Reset()
		next()
		require.Contains(t, out.String(), "-- behind: ")
		require.Equal(t, each, strings.Count(out.String(), " is now at revision 1"), out.String())
		require.Equal(t, len(w.shown), v.Len())
	}

	conn, err := client.Dial(ctx, c, client.Options{Offered: quietCaps | followCaps})
	require.NoError(t, err)
	snap, err := conn.Snapshot(ctx)
	require.NoError(t, err)
	digest, err := r.View().DigestAt(snap.Guard, snap.Base)
	require.NoError(t, err)
	require.Equal(t, snap.Digest, digest)
	require.NoError(t, snap.Close())
	require.NoError(t, conn.Close())
}
