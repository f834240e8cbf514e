package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatGoesOnThroughSIGKILL lets wait, status and events go on while a coordinator is killed and a
// run ends under the next one.
func TestWhatGoesOnThroughSIGKILL(t *testing.T) {
	t.Parallel()
	u := startUp(t, filepath.Join(t.TempDir(), "s")).ready()
	gate := filepath.Join(t.TempDir(), "gate")
	ids := u.detached("sh", "-c", `while [ ! -e "$1" ]; do sleep 0.02; done; exit 7`, "sh", gate)
	require.Equal(t, 0, u.ctl("wait", "run", ids.Run, "--for", "state=Running").code)

	ended := u.begin("wait", "run", ids.Run, "--for", "ended", "--timeout", "1m", "-o", "json")
	never := u.begin("wait", "run", ids.Run, "--for", "state=Completed", "--timeout", "1m")
	status, counts := u.begin("status", "--watch"), u.begin("status", "--counts", "--watch", "-o", "json")
	events := u.begin("events", "run", "-f", "-o", "json")
	eventually(t, "they go on", func() bool {
		return strings.Contains(status.out.String(), "unresolved_operations") && strings.Contains(counts.out.String(), `"objective":1,`) &&
			strings.Count(events.out.String(), "COORD_EVENT") == 2
	})
	require.NoError(t, syscall.Kill(u.coordinatorPID(), syscall.SIGKILL))
	require.Equal(t, 0, u.ctl("wait", "coordinator", "--timeout", "1m").code)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))

	require.Equal(t, 0, ended.code(t), ended.err.String())
	var o struct{ Payload struct{ State string } }
	require.NoError(t, json.Unmarshal([]byte(ended.out.String()), &o))
	require.Equal(t, "Failed", o.Payload.State)
	require.Equal(t, exitOther, never.code(t))
	require.True(t, strings.HasPrefix(never.err.String(), "coordctl: run "+ids.Run+" is Failed: state=Completed cannot"), never.err)

	require.Equal(t, 0, u.ctl("create", "objective", "--title", "x").code)
	eventually(t, "they show what follows", func() bool {
		return strings.Contains(status.out.String(), "+ authority_epoch") && strings.Contains(counts.out.String(), `"objective":2,`) &&
			strings.Count(events.out.String(), "COORD_EVENT") == 3
	})
	require.Contains(t, status.out.String(), "-- gap: ")
	require.Regexp(t, `- authority_epoch +1\n`, status.out.String())
	require.NotContains(t, status.out.String(), "certificate_expires_at")

	var followed []string
	for _, l := range lines(t, events.out.String()) {
		if l != "GAP" && l != "HEALED" {
			followed = append(followed, l)
		}
	}
	require.Len(t, followed, 3)
	again := u.ctl("events", "run", "-o", "json")
	require.Equal(t, 0, again.code, again.errout)
	read := lines(t, again.out)
	require.Equal(t, followed, read[:3])
	require.Len(t, read, 4)
	require.Equal(t, "END", strings.Fields(read[3])[0])
	from := u.ctl("events", "run", "-o", "json", "--since", "1/"+followed[1])
	require.Equal(t, followed[2:], lines(t, from.out)[:1], "a cut of the epoch before lies in the history of this one")
	lost := u.ctl("events", "--since", "1/"+followed[2])
	require.Equal(t, exitOther, lost.code)
	require.Contains(t, lost.errout, "history lost")
}
