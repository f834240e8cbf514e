package browsertest

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// asked opens the question of an action and gives the OperationId that it shows.
func (e *estate) asked(action string) string {
	e.t.Helper()
	e.b.click("[data-action=" + action + "]")
	e.b.until("the question is asked", `document.querySelector("dialog[open] [data-confirm]")`)
	op := eval[string](e.b, `document.querySelector("dialog [data-operation]").dataset.operation`)
	require.Regexp(e.t, "^[0-9a-f]{32}$", op)
	e.b.shows("dialog", op)
	return op
}

// confirm says yes and waits for an outcome.
func (e *estate) confirm(outcome string) {
	e.t.Helper()
	e.b.click("dialog[open] [data-confirm]")
	e.b.until("the outcome is "+outcome, `document.querySelector("dialog [data-outcome=`+outcome+`]")`)
}

func (e *estate) closed() {
	e.t.Helper()
	e.b.click("dialog[open] [data-close]")
	e.b.until("the dialog is gone", `!document.querySelector("dialog[open]")`)
}

// result is what the coordinator has on record for an operation.
func (e *estate) result(op string) string {
	e.t.Helper()
	var r struct{ State string }
	require.NoError(e.t, json.Unmarshal([]byte(e.ctl("op", "get", op, "-o", "json")), &r))
	return r.State
}

func acknowledge(t *testing.T, e *estate) {
	b := e.b
	b.page("#/signals")
	op := e.asked("acknowledge")
	require.Contains(t, b.text("dialog"), "It leaves the open list, for everybody")
	b.click("dialog input")
	b.keys("seen")
	e.confirm("COMMITTED")
	e.closed()
	require.Equal(t, "SUCCEEDED", e.result(op))
	b.shows("main", "No open signal")
	b.page("#/overview")
	b.shows("main", "No open signal")
	b.page("#/operations")
	b.shows("section[aria-labelledby=sent]", op[:8])
	b.shows("section[aria-labelledby=sent]", "Done")
}

func suppress(t *testing.T, e *estate) {
	b := e.b
	b.page("#/run/" + e.bad.String())
	op := e.asked("suppress")
	e.confirm("COMMITTED")
	e.closed()
	require.Equal(t, "SUCCEEDED", e.result(op))
	b.shows("section[aria-labelledby=run-signals]", "Suppressed")
}

func pauseAndResume(t *testing.T, e *estate) {
	b := e.b
	b.page("#/run/" + e.long.String())
	e.asked("pause")
	require.Contains(t, b.text("dialog"), "Nothing is sent to its process")
	e.confirm("COMMITTED")
	e.closed()
	b.shows(".glance", "Paused")
	b.shows(".callout", "paused until somebody resumes it")
	b.page("#/overview")
	b.shows(".verdict:nth-child(2)", "1 run")
	b.page("#/run/" + e.long.String())
	e.asked("resume")
	e.confirm("COMMITTED")
	e.closed()
	b.shows(".glance", "Running")
}

// refused asks for something that somebody else has made impossible meanwhile.
func refused(t *testing.T, e *estate) {
	b := e.b
	b.page("#/run/" + e.long.String())
	e.asked("pause")
	e.ctl("pause", e.long.String())
	b.shows(".glance", "Paused")
	b.click("dialog[open] [data-confirm]")
	b.until("it is refused", `document.querySelector("dialog [data-outcome=REFUSED]")`)
	b.shows("dialog", "REVISION_CONFLICT")
	e.closed()
	e.ctl("resume", e.long.String())
	b.shows(".glance", "Running")
}

// lose fails what is on its way to or from the console's actions, until the end is called.
func (e *estate) lose(stage fetch.RequestStage) (end func()) {
	e.t.Helper()
	ctx, stop := context.WithCancel(e.b.ctx)
	paused := chromedp.Events(ctx, fetch.RequestPaused)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p, err := range paused {
			if err != nil {
				return
			}
			if _, err := chromedp.Call(ctx, fetch.FailRequest, fetch.FailRequestParams{RequestID: p.RequestID, ErrorReason: network.ErrorReasonConnectionReset}); err != nil {
				return
			}
		}
	}()
	_, err := chromedp.Call(e.b.ctx, fetch.Enable, fetch.EnableParams{Patterns: []*fetch.RequestPattern{{URLPattern: "*/api/action", RequestStage: stage}}})
	require.NoError(e.t, err)
	e.b.expect("ERR_CONNECTION_RESET")
	return func() {
		e.t.Helper()
		_, err := chromedp.Call(e.b.ctx, fetch.Disable, struct{}{})
		require.NoError(e.t, err)
		stop()
		<-done
	}
}

// lostAnswer loses the answer to a command on its way to the page, which learns of its end
// from the records all the same.
func lostAnswer(t *testing.T, e *estate) {
	b := e.b
	b.page("#/run/" + e.long.String())
	b.run(`window.outcomes = []; new MutationObserver(() => { const o = document.querySelector("dialog [data-outcome]"); if (o) outcomes.push(o.dataset.outcome); }).observe(document.body, {subtree: true, childList: true, attributes: true})`)
	end := e.lose(fetch.RequestStageResponse)
	op := e.asked("pause")
	e.confirm("COMMITTED")
	require.NotContains(t, eval[string](b, `outcomes.join(" ")`), "REFUSED")
	end()
	e.closed()
	require.Equal(t, "SUCCEEDED", e.result(op))
	b.shows(".glance", "Paused")
}

// lostCommand loses a command before the console has it. The page cannot know that, says so,
// and asks again under the same id.
func lostCommand(t *testing.T, e *estate) {
	b := e.b
	b.page("#/run/" + e.long.String())
	end := e.lose(fetch.RequestStageRequest)
	op := e.asked("cancel")
	e.confirm("INDETERMINATE")
	require.Contains(t, b.text("dialog"), "may or may not have been carried out")
	end()
	b.click("dialog [data-again]")
	b.until("the outcome is known", `document.querySelector("dialog [data-outcome=COMMITTED]")`)
	require.Equal(t, op, eval[string](b, `document.querySelector("dialog [data-operation]").dataset.operation`))
	e.closed()
	require.Equal(t, "SUCCEEDED", e.result(op))
	b.shows(".glance", "Cancelled")
}

func endsOfObjectives(t *testing.T, e *estate) {
	b := e.b
	b.page("#/objective/" + e.release.String())
	e.asked("complete")
	e.confirm("COMMITTED")
	e.closed()
	b.shows(".glance", "Completed")
	other := e.objective("Not worth it")
	b.page("#/objective/" + other.String())
	e.asked("cancel")
	e.confirm("COMMITTED")
	e.closed()
	b.shows(".glance", "Cancelled")
	e.asked("archive")
	e.confirm("COMMITTED")
	e.closed()
	b.page("#/overview")
	b.until("it is gone", `!document.body.innerText.includes("Not worth it")`)
}
