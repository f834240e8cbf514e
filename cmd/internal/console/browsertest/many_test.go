package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"coordinator/client"
	"coordinator/frames"
)

// many is how many runs a page is to bear.
const many = 5000

// scrolling is how long the page took to draw, frame by frame.
const scrolling = `(async () => {
	const took = [];
	const next = () => new Promise((r) => requestAnimationFrame(r));
	await next();
	for (let i = 0, last = performance.now(); i < 60; i++) {
		scrollBy(0, i < 40 ? 300 : 3000);
		await next();
		const now = performance.now();
		took.push(now - last);
		last = now;
	}
	return JSON.stringify(took);
})()`

// filtering types a word, letter by letter, and waits for each to be drawn.
const filtering = `(async () => {
	const took = [];
	const field = document.querySelector("[data-search]");
	const word = "failed";
	for (let i = 1; i <= word.length; i++) {
		const began = performance.now();
		field.value = word.slice(0, i);
		field.dispatchEvent(new Event("input", {bubbles: true}));
		await new Promise((r) => requestAnimationFrame(() => setTimeout(r)));
		took.push(performance.now() - began);
	}
	return JSON.stringify(took);
})()`

// TestThousandsOfRuns shows a list that is far longer than what can be drawn at once.
func TestThousandsOfRuns(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.populate(many)
	b := h.opened()
	b.page("#/runs")
	b.shows("section[aria-labelledby=runs]", "5 000 of 5 000")
	b.until("all of them have failed", `[...document.querySelectorAll(".choice button")].some((c) => c.innerText.replace(/\s+/g, "") === "Failed5000")`)
	require.Less(t, eval[int](b, `document.querySelectorAll(".run-rows [data-index]").length`), 100, "only what is seen is drawn")

	t.Logf("scrolling: %s", spread(t, eval[string](b, scrolling)))
	b.until("what is seen is drawn", `[...document.querySelectorAll(".run-rows [data-index]")].some((r) => { const y = r.getBoundingClientRect().top; return y > 200 && y < 500; })`)
	b.run(`scrollTo(0, document.documentElement.scrollHeight)`)
	b.until("the last row is there", `document.querySelector('.run-rows [data-index="4999"]')`)
	b.run(`scrollTo(0, 0)`)
	t.Logf("filtering: %s", spread(t, eval[string](b, filtering)))
	b.shows("section[aria-labelledby=runs]", "5 000 of 5 000")
	b.run(`document.querySelector("[data-search]").value = "running"; document.querySelector("[data-search]").dispatchEvent(new Event("input", {bubbles: true}))`)
	b.shows("section[aria-labelledby=runs]", "0 of 5 000")
	h.start(h.objective("One more"), "sleep", "1000")
	b.shows(".run-rows", "One more")
	b.shows("section[aria-labelledby=runs]", "1 of 5 001")
}

// populate makes n runs that fail at once, since there is no such program: what a screen has
// to show of them is the same, and no process is needed.
func (h *house) populate(n int) {
	h.t.Helper()
	objectives := make([]frames.ObjectiveID, 20)
	for i := range objectives {
		objectives[i] = h.objective("Batch " + string(rune('A'+i)))
	}
	at := h.newRun(objectives[0], "/no/such/program")
	h.place(at)
	s := h.worker()
	g, ctx := errgroup.WithContext(context.Background())
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var next atomic.Int64
	for range 64 {
		g.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				r := h.newRun(objectives[i%20], "/no/such/program")
				r.Owner, r.OwnerIncarnation, r.Group = at.Owner, at.OwnerIncarnation, at.Group
				cmd, err := client.NewCommand(newID[frames.OperationID](h.t), frames.CommandStartRun, r)
				if err != nil {
					return err
				}
				if _, err := s.Do(ctx, cmd); err != nil {
					return err
				}
			}
			return nil
		})
	}
	began := time.Now()
	require.NoError(h.t, g.Wait())
	h.t.Logf("%d runs were admitted in %v", n, time.Since(began).Round(time.Millisecond))
}

// spread words how times are spread.
func spread(t *testing.T, raw string) string {
	t.Helper()
	var ms []float64
	require.NoError(t, json.Unmarshal([]byte(raw), &ms))
	require.NotEmpty(t, ms)
	slices.Sort(ms)
	at := func(q float64) time.Duration {
		return time.Duration(ms[int(q*float64(len(ms)-1))] * float64(time.Millisecond)).Round(100 * time.Microsecond)
	}
	late := 0
	for _, m := range ms {
		if m > 50 {
			late++
		}
	}
	return fmt.Sprintf("%d frames: %v median, %v p99, %v at most, %d above 50 ms", len(ms), at(0.5), at(0.99), at(1), late)
}
