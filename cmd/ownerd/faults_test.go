//go:build linux && failpoint

package main

import (
	"path/filepath"
	"testing"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

// TestC09_CrashAtEachStepOfAStart: field case 29. The owner dies at each step; afterwards at
// most one process was ever started for the attempt, none runs, and the outcome is the truth
// or that nobody knows.
func TestC09_CrashAtEachStepOfAStart(t *testing.T) {
	for _, tt := range []struct {
		point  string
		want   frames.EffectState
		starts int // at most
		facts  bool
	}{
		{"owner-dispatch", 255, 0, false},
		{"owner-intent", frames.EffectIndeterminate, 0, false},
		{"owner-forked", frames.EffectIndeterminate, 0, false},
		{"owner-held", frames.EffectIndeterminate, 0, false},
		{"owner-released", frames.EffectIndeterminate, 1, false},
		{"owner-outcome", frames.EffectSucceeded, 1, true},
	} {
		t.Run(tt.point, func(t *testing.T) {
			dir, id := made(t)
			starts := filepath.Join(t.TempDir(), "starts")
			p := serveIn(t, dir, tt.point+"=kill")
			c := dial(t, id, 1, nil)
			a := c.spawn(stubborn(starts))
			_, err := c.Dispatch(t.Context(), c.cert.Guard(), a)
			require.Error(t, err, "the owner died")
			require.Equal(t, -1, p.wait())

			serveIn(t, dir, "")
			c = dial(t, id, 1, nil)
			require.Equal(t, tt.facts, len(c.list) == 1)
			require.Equal(t, tt.want, c.lookUp(a).State)
			again := tt.want
			if again == 255 {
				again = frames.EffectRejected
			}
			for range 3 {
				require.Equal(t, again, c.dispatch(a).State)
			}
			list := pids(t, starts)
			require.LessOrEqual(t, len(list), tt.starts)
			for _, pid := range list {
				require.True(t, gone(pid))
			}
			if tt.facts {
				c.open(a)
				c.eventually("FACTS_END", func() bool { return c.ends[binding(a)] != 0 })
				require.Equal(t, frames.FactOpened, c.facts[0].Kind)
			}
		})
	}
}

// TestC15_CrashAfterTheExit: the process has ended and its end was not recorded. Nobody makes
// one up.
func TestC15_CrashAfterTheExit(t *testing.T) {
	dir, id := made(t)
	p := serveIn(t, dir, "owner-exited=kill")
	c := dial(t, id, 1, nil)
	starts := filepath.Join(t.TempDir(), "starts")
	doc := stubborn(starts)
	doc.Argv = []string{"/bin/sh", "-c", `echo $$ >> "$STARTS"; echo out; exit 0`}
	a := c.spawn(doc)
	c.Dispatch(t.Context(), c.cert.Guard(), a) //nolint:errcheck // the owner may die before it answers
	require.Equal(t, -1, p.wait())

	serveIn(t, dir, "")
	c = dial(t, id, 1, nil)
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	c.open(a)
	c.eventually("FACTS_END", func() bool { return c.ends[binding(a)] != 0 })
	require.EqualValues(t, 2, c.ends[binding(a)])
	require.Equal(t, []frames.SourceFactKind{frames.FactOpened, frames.FactOutputRange},
		[]frames.SourceFactKind{c.facts[0].Kind, c.facts[1].Kind}, "all output before the end")
	require.Equal(t, "out\r\n", c.read(a))
	require.Len(t, pids(t, starts), 1)
}
