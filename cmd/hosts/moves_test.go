//go:build linux

package hosts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/internal/netlab"
)

// An owner and then the witness go on at other addresses, under their names. Nobody is told
// more than the name; no configuration changes.
func TestHostsThatMove(t *testing.T) {
	t.Parallel()
	s := newSystem(t, longLease, netlab.Options{})
	work := s.begin(s.user, s.context, doesLoad)
	works := func() {
		t.Helper()
		got := s.ctl("run", "--cwd", s.root, "--wait", "60s", "--timeout", "60s", "--", "echo", "at work")
		require.Zero(t, got.code, got.errs)
		require.Equal(t, "at work", strings.TrimSpace(got.out))
		work.goesOn()
	}
	works()
	s.daemons["ownerd"].stop()
	s.moves(s.worker)
	s.start("ownerd")
	works()
	d := s.daemons["coordinatord"]
	s.daemons["witnessd"].stop()
	s.moves(s.witness)
	s.start("witnessd")
	renewed := s.metric("coordinatord", `coordinator_lease_renewals_total{outcome="renewed"}`)
	eventually(t, "the lease is renewed", func() bool {
		return s.metric("coordinatord", `coordinator_lease_renewals_total{outcome="renewed"}`) != renewed
	})
	works()
	require.Equal(t, work.stopped(), s.objectives())
	select {
	case <-d.exited:
		t.Fatalf("the coordinator ended:\n%s", d.output())
	default:
	}
}

// moves puts a new host in the place of another.
func (s *system) moves(h *netlab.Host) {
	s.t.Helper()
	next := s.lab.Host(h.Name)
	s.lab.Remove(h)
	switch h {
	case s.worker:
		s.worker = next
	case s.witness:
		s.witness = next
	}
	s.names()
}
