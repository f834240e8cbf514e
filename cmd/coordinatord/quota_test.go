package main

import (
	"crypto/rand"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/server"
)

// status asks the running coordinator.
func (r *rig) status() (st server.Status) {
	r.t.Helper()
	require.NoError(r.t, json.Unmarshal([]byte(ok(r.t, coordinatord, "status", "--state", r.dir, "-o", "json")), &st))
	return st
}

// pending is what a status says of the only principal and of the server.
func pending(st server.Status) (own, all uint64) {
	for _, p := range st.Principals {
		for _, u := range p.Uses {
			if u.Resource == "pending" {
				own += u.Held
			}
		}
	}
	for _, u := range st.Server {
		if u.Resource == "pending" {
			all = u.Held
		}
	}
	return own, all
}

// TestC02_PendingWorkIsChargedUntilItsEnd has a run wait for its owner: operation and effect
// attempt are charged with the admission, whoever is connected, refuse what would exceed the
// quota, are counted again after a crash, and are free with the operation's end.
func TestC02_PendingWorkIsChargedUntilItsEnd(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"principal", "server"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			r := withOwner(t)
			rewrite(t, filepath.Join(r.dir, configFile), func(s string) string {
				if level == "principal" {
					return strings.Replace(s, "[quota.principal]", "[quota.principal]\npending = 2", 1)
				}
				s = strings.Replace(s, "[quota.principal]", "[quota.principal]\npending = 3", 1)
				return strings.Replace(s, "[quota.server]", "[quota.server]\npending = 3", 1)
			})
			another := r // the principal that comes to the limit
			if level == "server" {
				another = r.another()
			}
			p := r.serve()
			p.ready()
			c := r.dial()
			first := r.start(c, "/bin/true")
			r.send(c, first.cmd) // the link is up now
			require.Equal(t, frames.OperationSucceeded, r.result(c, first.op).State)
			second, third := r.start(c, "/bin/true"), r.start(c, "/bin/true")
			r.process.signal(syscall.SIGSTOP)
			got, err := c.Command(t.Context(), second.cmd)
			require.NoError(t, err)
			require.Equal(t, frames.OperationPending, got.State)
			held := func() [2]uint64 { own, all := pending(r.status()); return [2]uint64{own, all} }
			require.Equal(t, [2]uint64{2, 2}, held(), "the operation and its SPAWN")

			theirs := another.dial()
			_, err = theirs.Command(t.Context(), third.cmd)
			require.True(t, refusedWith(err, frames.CodeResourceExhausted), "%v", err)
			require.ErrorContains(t, err, "the "+level+" has 2 pending operations and effect attempts")
			require.Equal(t, [2]uint64{2, 2}, held(), "a refused command changes nothing")
			got, err = c.Command(t.Context(), second.cmd) // nor does the same one again
			require.NoError(t, err)
			require.Equal(t, frames.OperationPending, got.State)
			got, err = theirs.Lookup(t.Context(), third.op)
			require.NoError(t, err)
			require.Equal(t, frames.OperationUnknown, got.State)
			theirs.Close()
			c.Close()
			require.Equal(t, [2]uint64{2, 2}, held(), "it outlives the connection")

			p.kill()
			p = r.serve()
			p.ready()
			require.Equal(t, [2]uint64{2, 2}, held(), "counted from the store")
			c = r.dial()
			defer c.Close()
			theirs = another.dial()
			defer theirs.Close()
			_, err = theirs.Command(t.Context(), third.cmd)
			require.True(t, refusedWith(err, frames.CodeResourceExhausted), "%v", err)

			r.process.signal(syscall.SIGCONT)
			require.True(t, r.result(c, second.op).State.Final())
			require.Equal(t, [2]uint64{0, 0}, held())
			another.send(theirs, third.cmd)
			require.Equal(t, frames.OperationSucceeded, another.result(theirs, third.op).State)
			require.Equal(t, [2]uint64{0, 0}, held())
		})
	}
}

// another is the same rig for another principal.
func (r *ownerRig) another() *ownerRig {
	r.t.Helper()
	file := filepath.Join(r.root, "k", "another.ed25519")
	key, err := handshake.CreateKey(file, rand.Reader)
	require.NoError(r.t, err)
	ok(r.t, coordinatord, "keys", "--state", r.dir, "add", "--label", "another", handshake.FormatPublicKey(key.Public()))
	theirs, base := *r.ctx, *r.rig
	theirs.KeyFile = file
	path := filepath.Join(r.root, "k", "another.toml")
	require.NoError(r.t, theirs.Save(path))
	base.ctx, err = client.LoadContext(path)
	require.NoError(r.t, err)
	out := *r
	out.rig = &base
	return &out
}

// TestStatusIsForTheOperator shows what a running coordinator tells, as a table and as JSON,
// and what status says where none runs.
func TestStatusIsForTheOperator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	code, _, errs := run(t, coordinatord, "status", "--state", r.dir)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "no coordinator runs on "+r.dir)
	rewriteQuota := filepath.Join(r.dir, configFile)
	text, err := os.ReadFile(rewriteQuota)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rewriteQuota, []byte(strings.Replace(string(text), "[quota.server]", "[quota.server]\nconnections = 99", 1)), 0o600))
	p := r.serve()
	epoch, activation := p.authority()
	c := r.connect()
	cmd, _ := create(t)
	_, err = c.Command(t.Context(), cmd)
	require.NoError(t, err)

	st := r.status()
	require.Equal(t, r.report.CoordinatorID, st.CoordinatorID)
	require.EqualValues(t, epoch, st.Epoch)
	require.EqualValues(t, activation, st.Activation)
	require.NotZero(t, st.LeaseExpiresAt)
	require.NotZero(t, st.Head)
	require.Equal(t, 1, st.Connections)
	require.Zero(t, st.Unauthenticated)
	require.Contains(t, st.Server, server.QuotaUse{Resource: "connections", Held: 1, Limit: 99})
	require.Contains(t, st.Server, server.QuotaUse{Resource: "pinned_bytes", Held: 0, Limit: 512 << 20})
	require.Len(t, st.Server, 8)
	require.Len(t, st.Principals, 1)
	require.Equal(t, "tester", st.Principals[0].Label)
	require.Equal(t, []server.QuotaUse{{Resource: "connections", Held: 1, Limit: 16}}, st.Principals[0].Uses)

	table := ok(t, coordinatord, "status", "--state", r.dir)
	require.Regexp(t, `(?m)^server +connections +1 +99$`, table)
	require.Regexp(t, `(?m)^tester +connections +1 +16$`, table)
	code, _, _ = run(t, coordinatord, "status", "--state", r.dir, "-o", "yaml")
	require.Equal(t, 2, code)
	require.Equal(t, 0, p.stop())
	require.NoFileExists(t, filepath.Join(r.dir, server.StatusFile))
	code, _, _ = run(t, coordinatord, "status", "--state", r.dir)
	require.Equal(t, 1, code)
}
