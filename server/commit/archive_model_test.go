package commit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
)

// A lived is what one objective of the model has been through.
type lived struct {
	state   frames.ObjectiveState
	runs    int
	signals int
	gone    bool
}

// A result is what one operation of the model has been through, in Unix seconds.
type result struct {
	completed, entombed uint64
	created             *lived // the objective that it created, or created beneath; nil: nothing
}

// endings is objectives that run, end and are archived, and their results that end with them,
// while months pass, the machine crashes and memory is written out.
type endings struct {
	*bed
	objectives []*lived
	results    map[int]*result
	next       int
}

func (m *endings) did(created *lived) int {
	m.next++
	m.results[m.next] = &result{completed: m.clk.Now().Unix(), created: created}
	return m.next
}

// any picks an objective that is there in one of the states.
func (m *endings) any(rt *rapid.T, states ...frames.ObjectiveState) (id int, o *lived) {
	var ids []int
	for i, o := range m.objectives {
		for _, s := range states {
			if !o.gone && o.state == s {
				ids = append(ids, i)
			}
		}
	}
	if len(ids) == 0 {
		rt.Skip()
	}
	i := rapid.SampledFrom(ids).Draw(rt, "objective")
	return i + 1, m.objectives[i]
}

func (m *endings) must(cmd *frames.CoordCommand) {
	m.t.Helper()
	require.NoError(m.t, m.do(cmd, alice).err)
}

// retireAll is what every due operation must have become.
func (m *endings) retireAll() {
	now := m.clk.Now().Unix()
	_, err := m.retire(now)
	require.NoError(m.t, err)
	for op, r := range m.results {
		switch {
		case r.entombed == 0 && r.completed+month <= now:
			r.entombed = now
		case r.entombed != 0 && r.entombed+month <= now && (r.created == nil || r.created.gone):
			delete(m.results, op)
		}
	}
}

// check compares everything that is visible, and everything that must be small.
func (m *endings) check(rt *rapid.T) {
	want := map[frames.ObjectKind]int{frames.KindAdmin: 1}
	add := func(n int, kinds ...frames.ObjectKind) {
		for _, k := range kinds {
			if n > 0 {
				want[k] += n
			}
		}
	}
	for _, o := range m.objectives {
		if o.gone {
			continue
		}
		add(1, frames.KindObjective)
		add(o.runs, frames.KindRun, frames.KindWorkSession, frames.KindBinding, frames.KindArtifact, frames.KindArtifactManifest, frames.KindEvidence)
		add(o.signals, frames.KindSignal)
	}
	add(len(m.results), frames.KindOperation)
	require.Equal(rt, want, m.rows())
	live := 0
	for _, kind := range []frames.ObjectKind{frames.KindRun, frames.KindWorkSession, frames.KindBinding, frames.KindOperation} {
		m.store.LiveRows(kind, func(store.Row) bool { live++; return true })
	}
	require.Zero(rt, live, "everything has ended")
	require.Equal(rt, m.stones(), m.stonesWanted())
}

func (m *endings) stonesWanted() (n int) {
	for _, r := range m.results {
		if r.entombed != 0 {
			n++
		}
	}
	return n
}

func (m *endings) stones() (n int) {
	cut := m.store.Cut()
	defer cut.Close()
	rows, done, err := cut.Page(store.Key{}, func(k frames.ObjectKind, _ frames.KeyID) bool { return k == frames.KindOperation }, 1<<20)
	require.NoError(m.t, err)
	require.True(m.t, done)
	for i := range rows {
		var op frames.Operation
		require.NoError(m.t, codec.Decode(&op, rows[i].Record.Payload))
		if op.Result.State == frames.OperationTombstoned {
			n++
		}
	}
	return n
}

func TestEndingsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBed(t)
		b.options.Owners = up{}
		b.restart(func() {})
		m := &endings{bed: b, results: map[int]*result{}}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(*rapid.T) {
				o := &lived{}
				m.objectives = append(m.objectives, o)
				m.must(create(t, m.did(o), len(m.objectives), "{}"))
			},
			"run": func(rt *rapid.T) {
				id, o := m.any(rt, frames.ObjectiveActive)
				status := int32(rapid.IntRange(0, 1).Draw(rt, "status"))
				m.ranBeneath(id, m.did(o), status)
				o.runs++
				o.signals += int(status)
			},
			"finish": func(rt *rapid.T) {
				id, o := m.any(rt, frames.ObjectiveActive)
				m.must(finish(t, m.did(nil), id))
				o.state = frames.ObjectiveCompleted
			},
			"archive": func(rt *rapid.T) {
				id, o := m.any(rt, frames.ObjectiveCompleted)
				m.must(archive(t, m.did(nil), id))
				o.gone = true
			},
			"use again": func(rt *rapid.T) {
				for i, o := range m.objectives {
					if o.gone {
						err := m.do(create(t, 1<<20, i+1, "{}"), alice).err
						require.Equal(rt, frames.CodeRevisionConflict, code(t, err))
					}
				}
			},
			"too early": func(rt *rapid.T) {
				id, _ := m.any(rt, frames.ObjectiveActive)
				require.Equal(rt, frames.CodeRevisionConflict, code(t, m.do(archive(t, 1<<20, id), alice).err))
			},
			"weeks": func(rt *rapid.T) {
				b.clk.Advance(time.Duration(rapid.IntRange(1, 50).Draw(rt, "days")) * 24 * time.Hour)
				b.restart(b.disk.Kill)
			},
			"crash": func(rt *rapid.T) {
				seed := rapid.Uint64().Draw(rt, "seed")
				b.restart(func() { b.disk.Crash(seed) })
			},
			"checkpoint": func(*rapid.T) { b.checkpoint() },
			"retire":     func(*rapid.T) { m.retireAll() },
			"":           m.check,
		})
		require.NoError(rt, b.store.Abandon())
	})
}
