//go:build linux

package hosts

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/netlab"
)

// Exit codes that the tests expect; docs/systemd.md and the README name all.
const (
	exitWitness     = 14 // of coordinatord
	exitFenced      = 16
	exitUnavailable = 5 // of coordctl
)

// The witness is cut off, once for less than a lease and once for longer. The first is nobody's
// business; the second ends the coordinator at its own deadline, whoever still reaches it is
// told, no start gets further, and after it everything goes on where it was.
func TestPartitionFromTheWitness(t *testing.T) {
	t.Parallel()
	s := newSystem(t, shortLease, netlab.Options{})
	work := s.begin(s.user, s.context, doesLoad)
	work.goesOn()
	epoch := s.metric("coordinatord", "coordinator_authority_epoch")

	s.lab.Cut(s.coordinator, s.witness)
	eventually(t, "renewals are unanswered", func() bool {
		return s.metric("coordinatord", `coordinator_lease_renewals_total{outcome="unanswered"}`) == "1"
	})
	code, _ := s.probe("coordinatord", "/readyz")
	require.Equal(t, 200, code, "the lease runs on")
	s.lab.Heal(s.coordinator, s.witness)
	renewed := s.metric("coordinatord", `coordinator_lease_renewals_total{outcome="renewed"}`)
	eventually(t, "the lease is renewed", func() bool {
		return s.metric("coordinatord", `coordinator_lease_renewals_total{outcome="renewed"}`) != renewed
	})
	require.Equal(t, epoch, s.metric("coordinatord", "coordinator_authority_epoch"))
	work.goesOn()

	replica := s.begin(s.user, s.context, doesReplica)
	seen := replica.saysFrom(0, "a replica is current", func(l line) bool { return l.Phase == "Current" })
	s.lab.Cut(s.coordinator, s.witness)
	cut := time.Now()
	d := s.daemons["coordinatord"]
	require.Equal(t, exitFenced, d.ends(), d.output())
	require.Less(t, time.Since(cut), time.Duration(s.lease+10)*time.Second, "the lease is over")
	require.Contains(t, d.output(), "no answer from "+at(s.witness, 7741))
	replica.saysFrom(seen, "the replica is not current any more", func(l line) bool { return l.Phase == "Stale" })
	require.Equal(t, exitUnavailable, s.ctl("status").code)
	again := s.launch("coordinatord")
	require.Equal(t, exitWitness, again.ends(), again.output())
	require.Contains(t, again.output(), at(s.witness, 7741))

	s.lab.Heal(s.coordinator, s.witness)
	seen = len(replica.said())
	s.start("coordinatord")
	work.goesOn()
	replica.saysFrom(seen, "the replica is current again", func(l line) bool { return l.Phase == "Current" })
	acked := work.stopped()
	require.Equal(t, acked, s.objectives(), "each once")
}

// An owner is cut off from its coordinator while the two of them have work in hand.
func TestPartitionFromTheOwner(t *testing.T) {
	t.Parallel()
	s := newSystem(t, shortLease, netlab.Options{})
	dir := t.TempDir()
	script := func(name string) string {
		return fmt.Sprintf(`echo started >>%[1]s.starts; until test -e %[1]s.end; do echo tick >>%[1]s.ticks; sleep 0.1; done`, filepath.Join(dir, name))
	}
	lines := func(name string) int {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return strings.Count(string(raw), "\n")
	}
	start := func(name string) string {
		got := s.ctl("run", "--cwd", dir, "--detach", "-o", "json", "--", "sh", "-c", script(name))
		require.Zero(t, got.code, got.errs)
		var ids struct {
			Run string `json:"run_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(got.out), &ids))
		return ids.Run
	}
	ends, cancelled := start("ends"), start("cancelled")
	eventually(t, "both run", func() bool {
		return lines("ends.ticks") > 0 && lines("cancelled.ticks") > 0 && s.state(ends) == "Running" && s.state(cancelled) == "Running"
	})

	s.lab.Cut(s.coordinator, s.worker)
	cut := time.Now()
	late := start("late") // the link is not known to be down yet
	var cancel struct {
		Operation string `json:"operation_id"`
	}
	got := s.ctl("cancel", cancelled, "-o", "json")
	require.Zero(t, got.code, got.errs)
	require.NoError(t, json.Unmarshal([]byte(got.out), &cancel), got.out)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ends.end"), nil, 0o600))
	eventually(t, "the link is down", func() bool {
		return s.metric("coordinatord", `coordinator_owner_links{state="down"}`) == "1"
	})
	require.Less(t, time.Since(cut), 40*time.Second)
	require.Regexp(t, `(?m)^owner        far is down: .*(nothing has come from the owner|no answer)`, s.run("coordinatord", "status", "--state", s.dir("c")))
	before := lines("cancelled.ticks")
	eventually(t, "the process lives on", func() bool { return lines("cancelled.ticks") > before+5 })
	require.Equal(t, "Running", s.state(ends), "nobody has said that it ended")
	require.Equal(t, "Running", s.state(cancelled), "nor that it was killed")
	require.Zero(t, lines("late.starts"))
	code, text := s.probe("coordinatord", "/readyz")
	require.Equal(t, 200, code, text)
	got = s.ctl("run", "--cwd", dir, "--detach", "--", "true")
	require.NotZero(t, got.code, "a coordinator without a link takes no run on")

	s.lab.Heal(s.coordinator, s.worker)
	eventually(t, "the end is told", func() bool { return s.state(ends) == "Completed" })
	// What was sent into the cut is asked for, and never sent again: the owner has not seen it.
	eventually(t, "the cancel has its truth", func() bool {
		return strings.Contains(s.ctl("op", "get", cancel.Operation).out, "REJECTED")
	})
	eventually(t, "the late run has its truth", func() bool { return s.state(late) == "Failed" })
	require.Zero(t, lines("late.starts"))
	require.Equal(t, "Running", s.state(cancelled))
	require.Zero(t, s.ctl("cancel", cancelled).code)
	eventually(t, "the second cancel is carried out", func() bool { return s.state(cancelled) == "Cancelled" })
	require.Equal(t, 1, lines("ends.starts"))
	require.Equal(t, 1, lines("cancelled.starts"))
	require.Zero(t, s.ctl("evidence", "verify", ends).code)
}

// state is that of a run.
func (s *system) state(run string) string {
	s.t.Helper()
	got := s.ctl("get", "run", run, "-o", "json", "--wait", "60s", "--timeout", "60s")
	require.Zero(s.t, got.code, got.errs)
	var record struct {
		Payload struct{ State string }
	}
	require.NoError(s.t, json.Unmarshal([]byte(got.out), &record), got.out)
	return record.Payload.State
}

// A client is cut off while others work: what it has is stale once its certificate has run
// out and never before it knows, and every view that is current is whole.
func TestPartitionFromTheClient(t *testing.T) {
	t.Parallel()
	s := newSystem(t, shortLease, netlab.Options{})
	work := s.begin(s.worker, s.client("other"), doesCount)
	replica := s.begin(s.user, s.context, doesReplica)
	replica.saysFrom(0, "the replica is current", func(l line) bool { return l.Phase == "Current" })
	for n := range 2 {
		work.goesOn()
		if n == 0 {
			s.lab.Cut(s.coordinator, s.user)
		} else {
			s.lab.CutOneWay(s.coordinator, s.user)
		}
		replica.saysFrom(len(replica.said()), "the replica is stale", func(l line) bool { return l.Phase == "Stale" })
		work.goesOn()
		got := s.ctl("status", "--timeout", "2s")
		require.Equal(t, exitUnavailable, got.code, got.errs)
		require.Contains(t, got.errs, at(s.coordinator, 7740))
		seen := len(replica.said())
		s.lab.Heal(s.coordinator, s.user)
		replica.saysFrom(seen, "the replica is current", func(l line) bool { return l.Phase == "Current" })
	}
	acked := work.stopped()
	replica.saysFrom(0, "the replica has everything", func(l line) bool { return l.Count == len(acked) })
	replica.stop()
	require.Equal(t, acked, s.objectives())
}

// A wire that is slow and loses packets, with routers that drop what is larger than 1,280
// bytes without a word: everything works, and no lease is missed for it.
func TestASlowAndLossyWire(t *testing.T) {
	t.Parallel()
	s := newSystem(t, longLease, netlab.Options{MTU: 1500, Passes: 1280})
	s.lab.Fault(netlab.Faults{Delay: 40 * time.Millisecond, Jitter: 10 * time.Millisecond, Loss: 0.03})
	work := s.begin(s.user, s.context, doesLoad)
	for n := range 3 {
		got := s.ctl("run", "--cwd", s.root, "--wait", "30s", "--timeout", "60s", "--", "sh", "-c", fmt.Sprintf("seq 20000; exit %d", n))
		require.Equal(t, n, got.code, got.errs)
		require.Equal(t, 20000, strings.Count(got.out, "\n"))
	}
	work.goesOn()
	require.Equal(t, work.stopped(), s.objectives())
	require.Equal(t, "1", s.metric("coordinatord", "coordinator_authority_epoch"))
	require.Positive(t, s.lab.Lost(), "the wire lost nothing")
}
