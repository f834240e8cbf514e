package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// happened makes n events of one objective, 6 and those that follow.
func (f *fake) happened(n int) {
	for i := range n {
		f.happen(frames.EventObjectiveChanged, objectiveAt(f.t, byte(i+1), frames.ObjectiveActive, fmt.Sprint("title ", i+1)))
	}
}

// lines are the sequences of the events and the words of all else, of a JSON stream.
func lines(t *testing.T, out string) (told []string) {
	for line := range strings.Lines(out) {
		var o struct {
			Type   string
			Event  uint64 `json:"event_sequence"`
			First  uint64 `json:"first_removed_event"`
			Last   uint64 `json:"last_removed_event"`
			Reason string
		}
		require.NoError(t, json.Unmarshal([]byte(line), &o), line)
		switch {
		case o.Type == "COORD_EVENT":
			told = append(told, fmt.Sprint(o.Event))
		case o.First != 0:
			told = append(told, fmt.Sprintf("%s %d-%d", o.Reason, o.First, o.Last))
		case o.Type == "END":
			told = append(told, fmt.Sprint("END ", o.Event))
		default:
			told = append(told, o.Type)
		}
	}
	return told
}

func TestEventsOfTheLog(t *testing.T) {
	f := newFake(t)
	f.listen()
	f.happened(5)
	run := runOf(t, 1)
	f.happen(frames.EventRunChanged, run)
	for _, tt := range []struct {
		removed frames.EventCut
		args    []string
		want    []string
	}{
		{args: nil, want: []string{"6", "7", "8", "9", "10", "11", "END 11"}},
		{args: []string{"--since", "8"}, want: []string{"9", "10", "11", "END 11"}},
		{args: []string{"--since", "7/8", "--until", "10"}, want: []string{"9", "10", "END 10"}},
		{args: []string{"--until", "400"}, want: []string{"6", "7", "8", "9", "10", "11", "END 11"}},
		{args: []string{"--until", "7/8"}, want: []string{"6", "7", "8", "END 8"}},
		{args: []string{"--since", "now", "-f", "--until", "8"}, want: []string{"END 11"}},
		{args: []string{"--since", "11"}, want: []string{"END 11"}},
		{args: []string{"--kind", "run-changed"}, want: []string{"11", "END 11"}},
		{args: []string{"--kind", "EVIDENCE_SEALED"}, want: []string{"END 11"}},
		{args: []string{"objective", "--since", "9"}, want: []string{"10", "END 11"}},
		{args: []string{"run", run.ID.String()}, want: []string{"11", "END 11"}},
		{args: []string{"--limit", "2"}, want: []string{"6", "7", "END 7"}},
		{removed: 8, args: nil, want: []string{"RETENTION 1-8", "9", "10", "11", "END 11"}},
		{removed: 8, args: []string{"--since", "7"}, want: []string{"RETENTION 8-8", "9", "10", "11", "END 11"}},
		{removed: 8, args: []string{"--since", "8"}, want: []string{"9", "10", "11", "END 11"}},
		{removed: 8, args: []string{"--until", "7"}, want: []string{"RETENTION 1-7", "END 7"}},
		{removed: 11, args: nil, want: []string{"RETENTION 1-11", "END 11"}},
	} {
		f.mu.Lock()
		f.removed = tt.removed
		f.mu.Unlock()
		r := f.cli(append([]string{"events", "-o", "json"}, tt.args...)...)
		require.Equal(t, 0, r.code, "%v: %s", tt.args, r.errout)
		require.Equal(t, tt.want, lines(t, r.out), "removed %d, %v", tt.removed, tt.args)
	}
	f.removed = 8
	text := f.cli("events")
	require.Contains(t, text.out, "-- gap: retention has removed the events 1 to 8\n9 ")
	require.True(t, strings.HasSuffix(text.out, "\n-- to event 7/11\n"), text.out)
	require.Contains(t, text.out, "title 5")
	picked := f.cli("events", "-o", "jsonpath={.event_sequence}")
	require.Equal(t, "9\n10\n11\n", picked.out)
	require.Contains(t, picked.errout, "retention has removed the events 1 to 8")
}

func TestEventsRefusals(t *testing.T) {
	f := newFake(t)
	f.listen()
	f.happened(2)
	for _, tt := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"--since", "10m"}, exitUsage, "events bear no time of day"},
		{[]string{"--since", "2026-11-30T08:00:00Z"}, exitUsage, "events bear no time of day"},
		{[]string{"--until", "12:30"}, exitUsage, "--until is \"12:30\", and events bear no time"},
		{[]string{"--since", "last"}, exitUsage, "it is the number of an event, or EPOCH/NUMBER"},
		{[]string{"--since", "0/3"}, exitUsage, "EPOCH/NUMBER"},
		{[]string{"--since", "-1"}, exitUsage, "EPOCH/NUMBER"},
		{[]string{"--since", "now"}, exitUsage, "with -f"},
		{[]string{"--since", "3", "--until", "3"}, exitUsage, "nothing is between them"},
		{[]string{"--since", "8"}, exitUsage, "event 8 has not happened: the last one is 7"},
		{[]string{"--since", "8", "-f"}, exitUsage, "event 8 has not happened: the last one is 7"},
		{[]string{"--since", "9/1"}, exitUsage, "there has been no epoch 9: the present one is 7"},
		{[]string{"--since", "6/3"}, exitOther, "history lost: event 3 of epoch 6"},
		{[]string{"--until", "9/400"}, exitUsage, "--until 9/400: there has been no epoch 9: the present one is 7"},
		{[]string{"--until", "6/3"}, exitOther, "history lost: event 3 of epoch 6"},
		{[]string{"--until", "6/3", "-f"}, exitOther, "history lost: event 3 of epoch 6"},
		{[]string{"--until", "6/400", "-f"}, exitUsage, "event 400 has not happened, and those to come are of epoch 7"},
		{[]string{"--kind", "RUN_CHANGE"}, exitUsage, "did you mean RUN_CHANGED?"},
		{[]string{"admin"}, exitUsage, "no events of ADMIN records"},
		{[]string{"run", "zz"}, exitUsage, "characters long"},
		{[]string{"run", "02abcd", "x"}, exitUsage, "at most a kind and an id"},
		{[]string{"--limit", "-1"}, exitUsage, "must not be negative"},
	} {
		r := f.cli(append([]string{"events"}, tt.args...)...)
		require.Equal(t, tt.code, r.code, "%v: %s", tt.args, r.errout)
		require.Contains(t, r.errout, tt.text)
		require.Empty(t, r.out)
	}
	require.Contains(t, cli("__complete", "events", "--kind", "").out, "OBJECT_REMOVED")
	require.Contains(t, cli("__complete", "events", "").out, "binding")
	gone := newFake(t)
	require.Equal(t, exitUnavailable, gone.cli("events").code)
	require.Equal(t, exitUnavailable, gone.cli("events", "-f").code)
}

// TestEventsGoOn with what happens, where the log of before ends.
func TestEventsGoOn(t *testing.T) {
	f := newFake(t)
	f.listen()
	f.happened(2)
	all, now := f.on("json", "events", "-f", "--until", "12"), f.on("json", "events", "--since", "now", "-f", "--limit", "4")
	f.whileFollowed(2)
	all.shows(`"event_sequence":7`)
	f.happen(frames.EventObjectiveChanged, objectiveAt(t, 3, frames.ObjectiveActive, "three"))
	all.shows(`"event_sequence":8`)
	now.shows(`"event_sequence":8`)
	f.cut()
	f.whileFollowed(2)
	for n := range 5 {
		f.happen(frames.EventObjectiveChanged, objectiveAt(t, byte(4+n), frames.ObjectiveActive, "more"))
	}
	for _, l := range []*live{all, now} {
		require.NoError(t, <-l.done, l.err.String())
		l.done <- nil
	}
	told := lines(t, all.out.String())
	require.Equal(t, []string{"6", "7", "8", "GAP"}, told[:4])
	require.Equal(t, []string{"HEALED", "9", "10", "11", "12", "END 12"}, told[len(told)-6:])
	told = lines(t, now.out.String())
	require.Equal(t, []string{"8", "GAP"}, told[:2])
	require.Equal(t, []string{"HEALED", "9", "10", "11", "END 11"}, told[len(told)-5:])
}
