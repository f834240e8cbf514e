package owner

import (
	"testing"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
)

func TestMetersAndCensus(t *testing.T) {
	s := newStation(t, nil)
	c := s.coordinator(1)
	a := c.newSpawn(&Document{Argv: []string{"/bin/sh", "-c", "echo hello"}})
	r := c.started(a, c.dispatch(a))
	r.requireExit(0)
	require.Equal(t, frames.EffectRejected, c.dispatch(c.newSpawn(&Document{Argv: []string{"/nowhere/at/all"}})).State)
	m := s.o.Meters()
	require.EqualValues(t, 1, m.Started.Load())
	require.EqualValues(t, 1, m.Rejected.Load())
	c.eventually("its end is counted", func() bool { return m.Ended.Load() == 1 })
	require.EqualValues(t, len("hello\r\n"), m.Output.Load())
	require.Zero(t, m.Unstored.Load())
	require.Positive(t, m.Journal.Snapshot().Count)
	require.Equal(t, DefaultMaxProcesses, s.o.MaxProcesses())
	census, err := s.o.Census()
	require.NoError(t, err)
	require.Equal(t, 1, census.Live+census.Waiting+census.Closed)
	require.EqualValues(t, len("hello\r\n"), census.Output)
	require.Equal(t, 1, census.Effects[frames.EffectSucceeded])
	require.Equal(t, 1, census.Effects[frames.EffectRejected])
}

// TestCensusOfABinding goes through the states of one row.
func TestCensusOfABinding(t *testing.T) {
	for _, tt := range []struct {
		name string
		row  bindingRow
		want Census
	}{
		{"held", bindingRow{State: bindingHeld}, Census{Live: 1}},
		{"live with facts unread", bindingRow{State: bindingLive, Last: 5, Acked: 2, Output: 7}, Census{Live: 1, Unread: 3, Output: 7}},
		{"closed with facts unread", bindingRow{State: bindingClosed, Last: 5, Acked: 4}, Census{Waiting: 1, Unread: 1}},
		{"closed", bindingRow{State: bindingClosed, Last: 5, Acked: 5}, Census{Closed: 1}},
		{"lost with facts unread", bindingRow{State: bindingLost, Last: 1}, Census{Waiting: 1, Unread: 1}},
		{"lost", bindingRow{State: bindingLost}, Census{Lost: 1}},
		{"given up", bindingRow{State: bindingClosed, Last: 5, Acked: AckAll}, Census{Closed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got Census
			got.binding(&tt.row)
			require.Equal(t, tt.want, got)
		})
	}
}
