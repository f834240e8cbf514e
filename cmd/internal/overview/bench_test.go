package overview

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/frames"
)

// BenchmarkRefresh is what one changed run costs among many, and what a first look costs.
func BenchmarkRefresh(b *testing.B) {
	for _, runs := range []int{1_000, 100_000} {
		g, states := crowd(b, runs)
		b.Run(fmt.Sprintf("change/of=%d", runs), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				old, now := states[i%2], states[1-i%2]
				ref := frames.ObjectRef{Kind: frames.KindRun, ID: crowdID(frames.KindRun, 0)}
				g.m.mark(ref, mark{stamp{g.now, false}, 0})
				d := g.m.Refresh(now, g.state, g.now)
				if len(d.Runs) != 1 || len(d.Objectives) != 1 || old == now {
					b.Fatal("nothing changed")
				}
			}
		})
		b.Run(fmt.Sprintf("first/of=%d", runs), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m := New(Options{})
				m.Refresh(states[0], g.state, g.now)
			}
		})
	}
}

func crowdID(kind frames.ObjectKind, n int) [16]byte {
	return [16]byte{byte(kind), byte(n >> 16), byte(n >> 8), byte(n), 15: 1}
}

// crowd is many runs with their sessions and bindings, and two views that differ in the
// state of the first.
func crowd(b *testing.B, runs int) (*rig, [2]*client.View) {
	g := newRig(b, Options{})
	add := func(kind frames.ObjectKind, n int, r frames.SnapshotRecord, err error) {
		require.NoError(b, err)
		g.records[frames.ObjectRef{Kind: kind, ID: crowdID(kind, n)}] = r
	}
	state := func(n int, s frames.RunState) {
		ref := frames.ObjectRef{Kind: frames.KindRun, ID: crowdID(frames.KindRun, n)}
		r, err := frames.NewRecord(ref, 1, &frames.Run{ObjectiveID: crowdID(frames.KindObjective, n/100), Attempt: 1, State: s})
		add(ref.Kind, n, r, err)
	}
	for n := range runs {
		if n%100 == 0 {
			ref := frames.ObjectRef{Kind: frames.KindObjective, ID: crowdID(frames.KindObjective, n/100)}
			r, err := frames.NewRecord(ref, 1, &frames.Objective{DocumentSchema: 1, Document: fmt.Appendf(nil, `{"title":"objective %d"}`, n)})
			add(ref.Kind, n/100, r, err)
		}
		state(n, frames.RunRunning)
		ref := frames.ObjectRef{Kind: frames.KindWorkSession, ID: crowdID(frames.KindWorkSession, n)}
		r, err := frames.NewRecord(ref, 1, &frames.WorkSession{RunID: crowdID(frames.KindRun, n)})
		add(ref.Kind, n, r, err)
	}
	var out [2]*client.View
	out[0] = g.at()
	state(0, frames.RunCompleted)
	out[1] = g.at()
	g.m.Refresh(out[0], g.state, g.now)
	return g, out
}
