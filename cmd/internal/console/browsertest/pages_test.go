package browsertest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// An estate is a house with some of everything in it, and a page of its console.
type estate struct {
	*house
	release         frames.ObjectiveID
	good, bad, long frames.RunID
	b               *tab
}

// settled makes an estate whose runs have come as far as they will.
func settled(t *testing.T) *estate {
	e := &estate{house: newHouse(t)}
	e.release = e.objective("Ship release 1.0")
	e.good = e.start(e.release, "sh", "-c", "echo built; exit 0")
	e.bad = e.start(e.release, "sh", "-c", `printf '\033[31mbroken\033[0m <b>not bold</b>\n'; exit 3`)
	e.long = e.start(e.release, "sh", "-c", "echo at work; sleep 1000")
	e.b = e.opened()
	e.b.until("the runs are where they go", `document.querySelector(".objective-rows .tally")?.innerText.replace(/\s+/g, "").includes("1running1failed1completed")`)
	return e
}

// TestConsole opens pages and does what a person does there, one after the other, on one house.
func TestConsole(t *testing.T) {
	t.Parallel()
	e := settled(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T, *estate)
	}{
		{"overview", overviewPage}, {"run", runPage}, {"objective", objectivePage}, {"lists", listPages}, {"authority", authorityPage},
		{"live", liveChanges}, {"keys", byKeyboard}, {"hostile", hostileStrings}, {"axe", accessible}, {"acknowledge", acknowledge}, {"suppress", suppress},
		{"pause", pauseAndResume}, {"refused", refused}, {"lost answer", lostAnswer}, {"lost command", lostCommand}, {"objectives", endsOfObjectives},
	} {
		if !t.Run(part.name, func(t *testing.T) {
			e.t, e.b.t = t, t
			part.run(t, e)
			e.b.quiet()
		}) {
			break
		}
	}
	e.t, e.b.t = t, t
}

func overviewPage(t *testing.T, e *estate) {
	b := e.b
	b.page("#/overview")
	b.shows(".verdict:nth-child(1)", "Yes")
	b.shows(".verdict:nth-child(1)", "under the authority of epoch 1")
	b.shows(".verdict:nth-child(2)", "1 signal")
	b.shows(".verdict:nth-child(3)", "1 run")
	b.shows(".verdict:nth-child(3)", "In 1 objective. 2 runs ended.")
	b.shows(".signal-rows", "the process exited with status 3")
	b.shows(".strip", "Current")
	b.shows(".strip", "epoch 1 activation 1")
	b.until("the lease counts down", `/lease\s*\d+(\.\d)?\ss/.test(document.querySelector(".strip").innerText)`)
	require.Contains(t, eval[string](b, "document.title"), "(1) Overview")
}

func runPage(t *testing.T, e *estate) {
	b := e.b
	b.page("#/run/" + e.bad.String())
	b.shows("h1", "Ship release 1.0")
	b.shows(".glance", "Failed")
	b.shows(".glance", "exit status 3")
	b.until("colours are left out of the output, and nothing else", `document.querySelector("pre.terminal")?.textContent === "broken <b>not bold</b>\n"`)
	b.shows(".output-tools", "agrees with the admitted digests")
	for _, step := range []string{"run is Planned", "process is bound to owner", "run is Running", "bytes 1 to", "binding ended: Failed", "evidence is sealed", "signal EXECUTION_FAILED is Open"} {
		b.shows(".step-rows", step)
	}
	b.shows("section[aria-labelledby=evidence]", "Sealed")
	b.until("all findings of the evidence agree, but for the output, which nobody has read", `(() => {
		const f = [...document.querySelectorAll("section[aria-labelledby=evidence] .findings li")].map((li) => li.innerText);
		return f.length >= 5 && f.every((s) => s.includes("agrees") || s.includes("output"));
	})()`)
	b.click("[data-verify]")
	b.until("all of the output is verified", `document.querySelector("[data-verified=true]")`)
	b.shows("[data-verified]", "agree with 1 admitted digest")

	b.page("#/run/" + e.long.String())
	b.shows("pre.terminal", "at work")
	b.shows("main", "more appears as it is written")
	b.page("#/run/" + strings.Repeat("ab", 16))
	b.shows("[role=alert]", "NOT_FOUND")
	b.expect("status of 404") // which the browser tells of that request
}

func objectivePage(t *testing.T, e *estate) {
	b := e.b
	b.page("#/objective/" + e.release.String())
	b.shows("h1", "Ship release 1.0")
	b.shows(".run-rows", "Attempt 1")
	b.shows(".run-rows", "exit 3")
	b.shows("pre.terminal", `"why": "to be looked at"`)
}

func listPages(t *testing.T, e *estate) {
	b := e.b
	b.page("#/runs")
	b.shows(".rows", "Ship release 1.0")
	b.until("three runs are listed", `document.querySelectorAll(".run-rows [data-index]").length === 3`)
	b.page("#/signals")
	b.shows(".signal-rows", "Execution failed")
	b.click(".signal-rows a.title")
	b.shows("section[aria-labelledby=about]", "A process failed")
	b.page("#/operations")
	b.until("each command is listed", `document.querySelectorAll(".operation-rows [data-index]").length === 4`)
	b.shows(".operation-rows", "Succeeded")
	b.click(".operation-rows a.title")
	b.shows("main", "OperationId")
	b.shows("main", "Completed at event")
	b.page("#/activity")
	b.shows("h1", "Activity")
	b.page("#/nowhere")
	b.shows("main", "There is no such page")
}

func authorityPage(t *testing.T, e *estate) {
	b := e.b
	b.page("#/authority")
	b.shows("section[aria-labelledby=certificate]", "s left")
	b.shows("section[aria-labelledby=epochs]", "Epoch 1")
	b.shows("section[aria-labelledby=pins]", "Witness key")
	b.shows("section[aria-labelledby=key]", "work_command")
	b.until("the rate is drawn", `document.querySelector(".chart canvas")?.width > 100`)
	b.until("quotas are shown, or why they are not", `document.querySelector("section[aria-labelledby=quotas] tbody tr") || document.querySelector("section[aria-labelledby=daemon] .empty")?.innerText.length > 30`)
	b.photograph("authority")
}

// liveChanges makes work elsewhere while the page is looked at.
func liveChanges(t *testing.T, e *estate) {
	b := e.b
	b.page("#/overview")
	b.run(`window.stays = true`)
	o := e.objective("Made while somebody looked")
	b.shows(".objective-rows", "Made while somebody looked")
	e.start(o, "sh", "-c", "exit 0")
	b.page("#/activity")
	b.shows(".event-rows", "run is Completed")
	require.True(t, eval[bool](b, `window.stays === true`), "the page was loaded again")
}

// byKeyboard goes through the pages without a mouse.
func byKeyboard(t *testing.T, e *estate) {
	b := e.b
	b.page("#/overview")
	b.shows("h1", "Overview")
	b.keys("gr")
	b.shows("h1", "Runs")
	require.Equal(t, "main", eval[string](b, `document.activeElement.id`), "readers begin with the new page")
	b.keys("/")
	b.until("the search has the keys", `document.activeElement.matches("[data-search]")`)
	b.run(`document.activeElement.select()`) // this way of pressing keys types the slash too
	b.keys("exit 3")
	b.until("one run is left", `document.querySelectorAll(".run-rows [data-index]").length === 1`)
	b.keys("\u001b") // Escape
	b.keys("j")
	b.until("the row has the keys", `document.activeElement.matches(".run-rows a.title")`)
	b.keys("\r")
	b.shows(".glance", "exit status 3")
	b.keys("?")
	b.shows("dialog[open]", "next and previous row")
	b.keys("\u001b")
	b.until("the keys are hidden again", `!document.querySelector("dialog[open]")`)
}

// hostileStrings shows what nobody should be able to make a page do.
func hostileStrings(t *testing.T, e *estate) {
	b := e.b
	b.run(`window.fired = 0`)
	for _, title := range []string{
		`<img src=x onerror="window.fired++"><script>window.fired++</script>`,
		"abc \u202egnp.exe\u202c \u2066isolated",
		"\x1b[2J\x1b[31mred\x1b[0m \a bell",
		strings.Repeat("a very long title ", 1000),
		"\u0000\u0085\ufeff{{constructor.constructor('window.fired++')()}}",
	} {
		id := e.objective(title)
		b.page("#/objective/" + id.String())
		b.until("the title is there", `document.querySelector("h1 bdi")?.textContent.length > 3`)
		seen := eval[string](b, `document.querySelector("h1").textContent`)
		require.LessOrEqual(t, len(seen), 2000)
		require.NotRegexp(t, "[\\x00-\\x1f\\x7f-\\x{9f}\\x{202a}-\\x{202e}\\x{2066}-\\x{2069}\\x{feff}]", seen, "what moves or hides text is not left as it is")
		require.Zero(t, eval[int](b, `document.querySelectorAll("h1 img, h1 script, h1 b").length`))
		require.NotRegexp(t, "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}\\x{202a}-\\x{202e}\\x{2066}-\\x{2069}\\x{feff}]", eval[string](b, `document.querySelector("pre.terminal")?.textContent ?? ""`))
		require.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth - innerWidth`), 0, "nothing makes the page wider than it is")
	}
	b.page("#/overview")
	b.shows(".objective-rows", "<img src=x onerror")
	require.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth - innerWidth`), 0)
	require.Zero(t, eval[int](b, `window.fired`), "a title ran as a script")
}

// accessible holds every page to the rules of axe-core, on wide and narrow screens, by day and
// by night.
func accessible(t *testing.T, e *estate) {
	const file = "../web/node_modules/axe-core/axe.min.js"
	axe, err := os.ReadFile(filepath.FromSlash(file))
	if err != nil {
		t.Skipf("axe-core is not there (%v); npm ci in cmd/internal/console/web brings it", err)
	}
	b := e.b
	b.visit(eval[string](b, "location.origin") + "/")
	b.run(string(axe))
	b.run(`document.body.insertAdjacentElement("beforeend", document.createElement("button")).id = "unnamed"`)
	require.Contains(t, violations(t, b), "button-name", "axe does not see what it should")
	b.run(`document.getElementById("unnamed").remove()`)

	pages := []struct{ hash, ready string }{
		{"#/overview", ".objective-rows [data-index]"}, {"#/runs", ".run-rows [data-index]"}, {"#/signals", ".signal-rows [data-index]"},
		{"#/operations", ".operation-rows [data-index]"}, {"#/activity", ".event-rows [data-index]"}, {"#/authority", ".chart canvas"},
		{"#/run/" + e.bad.String(), ".step-rows [data-index]"}, {"#/objective/" + e.release.String(), "pre.terminal"},
	}
	for _, l := range []look{desktop, night, phone, bedside} {
		b.as(l)
		for _, p := range pages {
			b.page(p.hash)
			b.until(p.hash+" is there", fmt.Sprintf("document.querySelector(%q)", p.ready))
			require.Empty(t, violations(t, b), "%s, %s", l.name, p.hash)
			b.photograph(l.name + " " + strings.Split(p.hash, "/")[1])
			require.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth - innerWidth`), 0, "%s, %s: wider than the screen", l.name, p.hash)
		}
		b.page("#/signals")
		b.click("[data-action=acknowledge]")
		b.until("the question is asked", `document.querySelector("dialog[open] [data-confirm]")`)
		require.Empty(t, violations(t, b), "%s, a question", l.name)
		b.keys("\u001b")
		b.until("the question is gone", `!document.querySelector("dialog[open]")`)
	}
	b.as(desktop)
}

// violations are the rules that the page breaks, and where.
func violations(t *testing.T, b *tab) string {
	t.Helper()
	raw := eval[string](b, `axe.run(document, {resultTypes: ["violations"]}).then((r) => JSON.stringify(r.violations.map((v) =>
		v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + " " + [...n.any, ...n.all, ...n.none].map((c) => c.message).join("; ")).join(" | "))))`)
	var all []string
	require.NoError(t, json.Unmarshal([]byte(raw), &all))
	return strings.Join(all, "\n")
}
