package browsertest

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAGapIsShownUntilItIsHealed kills the coordinator under a page, and then the console.
func TestAGapIsShownUntilItIsHealed(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.objective("Outlives its coordinator")
	s := h.console("")
	b := newPerson(t).open(s.url)
	b.shows(".objective-rows", "Outlives its coordinator")
	b.shows(".strip", "epoch 1")

	h.signal("coordinatord", syscall.SIGKILL)
	b.until("the page is not to be believed", `document.querySelector("[data-banner=no]") && document.querySelector("[data-belief=no]")`)
	b.shows(".verdict:nth-child(1)", "No")
	b.shows(".verdict:nth-child(2)", "What was stuck then?")
	b.shows(".objective-rows", "Outlives its coordinator") // as it was
	b.until("the title says so", `document.title.startsWith("STALE")`)
	b.photograph("stale")
	b.until("it is current again", `document.querySelector("[data-belief=yes]") && document.querySelector("[data-banner=healed]")`)
	b.shows("[data-banner=healed]", "Current again.")
	b.shows(".strip", "epoch 2")
	b.page("#/activity")
	b.shows(".event-rows", "Gap")
	b.page("#/authority")
	b.shows("section[aria-labelledby=epochs]", "Epoch 2")
	b.quiet()

	b.expect("ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "status of 401")
	listen := strings.TrimPrefix(s.base(), "http://")
	require.NoError(t, s.cmd.Process.Signal(os.Kill))
	b.shows("[data-banner]", "The console does not answer")
	again := h.console(listen)
	b.shows("[data-banner=lost]", "The console does not know this browser")
	b.visit(again.url)
	b.until("the new address lets it in", `document.querySelector("[data-belief=yes]")`)
}
