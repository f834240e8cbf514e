package commit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
)

// TestC08_WriterAgainstAModelWithCrashes sends, repeats, steps, renews, kills and crashes in
// any order. What was acknowledged stays, with the same result; what was refused is not
// there; every operation has at most one effect.
func TestC08_WriterAgainstAModelWithCrashes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBed(t)
		type sent struct {
			op  int
			got chan answer
		}
		var waiting []sent
		acknowledged := map[int]frames.OperationResult{}
		settle := func() {
			rest := waiting[:0]
			for _, s := range waiting {
				if none(s.got) {
					rest = append(rest, s)
					continue
				}
				a := <-s.got
				require.True(rt, none(s.got), "answered once")
				if a.err != nil {
					continue
				}
				if before, ok := acknowledged[s.op]; ok {
					require.Equal(rt, before, a.result)
				}
				acknowledged[s.op] = a.result
			}
			waiting = rest
		}
		restart := func(damage func()) {
			settle()
			waiting = nil // whoever waited knows nothing now
			b.restart(damage)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"send": func(rt *rapid.T) {
				op := rapid.IntRange(1, 30).Draw(rt, "op")
				p, got := b.proposal(create(t, op, op, "a"), alice)
				if err := b.writer.Propose(p); err == nil {
					waiting = append(waiting, sent{op, got})
				}
			},
			"step":       func(*rapid.T) { b.writer.Step() },          //nolint:errcheck // it may be fenced or held
			"step ahead": func(*rapid.T) { b.writer.StepAhead() },     //nolint:errcheck // it may be fenced or held
			"checkpoint": func(*rapid.T) { b.store.CheckpointStep() }, //nolint:errcheck // a stopped disk shows elsewhere
			"renew": func(*rapid.T) {
				if b.fence.Err() == nil && b.clk.Now().Boot > time.Hour {
					b.clk.StepWall(5 * time.Second) // makes a renewal due
					b.fence.Check()                 //nolint:errcheck // diverged
					if b.fence.Err() == nil {
						b.renew()
					}
				}
			},
			"time": func(rt *rapid.T) {
				b.clk.Advance(time.Duration(rapid.IntRange(0, 6000).Draw(rt, "ms")) * time.Millisecond)
			},
			"stop disk": func(rt *rapid.T) { b.disk.StopAfter(rapid.IntRange(0, 4).Draw(rt, "ops")) },
			"kill":      func(*rapid.T) { restart(b.disk.Kill) },
			"crash": func(rt *rapid.T) {
				seed := rapid.Uint64().Draw(rt, "seed")
				restart(func() { b.disk.Crash(seed) })
			},
			"": func(*rapid.T) { settle() },
		})
		restart(b.disk.Kill)
		require.Equal(rt, b.count(frames.KindOperation), b.count(frames.KindObjective), "one effect for each operation")
		for op, want := range acknowledged {
			require.Equal(rt, want, b.do(create(t, op, op, "a"), alice).result)
		}
		require.NoError(rt, b.store.Abandon())
	})
}
