package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNobodyElseIsLetIn tries what other browsers, and other pages in the same one, might.
func TestNobodyElseIsLetIn(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	objective := h.objective("Not theirs")
	s := h.console("")
	owner := newPerson(t)
	b := owner.open(s.url)
	b.shows(".objective-rows", "Not theirs")
	require.Equal(t, s.base()+"/#", eval[string](b, `location.href.replace(/#.*/, "") + "#"`), "the token does not stay in the address")
	require.Empty(t, eval[string](b, "document.cookie"), "no script reads the cookie")

	other := newPerson(t).open(s.url)            // the token is spent
	other.expect("status of 403", "favicon.ico") // that page names no icon
	other.shows("h1", "Not let in")
	other.expect("status of 401")
	other.visit(s.base() + "/")
	other.shows("[data-banner=lost]", "The console does not know this browser")
	require.NotContains(t, other.text("body"), "Not theirs")

	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `<!doctype html><title>elsewhere</title><iframe src="%s/"></iframe>`, s.base())
	}))
	t.Cleanup(evil.Close)
	e := owner.open(evil.URL) // in the browser that is let in
	e.expect("CORS policy", "ERR_FAILED", "ERR_BLOCKED_BY_RESPONSE", "X-Frame-Options", "frame-ancestors", "Refused to display", "chrome-error")
	require.Equal(t, "refused", eval[string](e, fmt.Sprintf(`fetch(%q, {credentials: "include"}).then((r) => r.text(), () => "refused")`, s.base()+"/api/session")))
	require.Equal(t, "refused", eval[string](e, fmt.Sprintf(`new Promise((done) => { const s = new EventSource(%q, {withCredentials: true}); s.onerror = () => { s.close(); done("refused"); }; s.onmessage = () => done("told"); })`, s.base()+"/api/live")))
	eval[string](e, fmt.Sprintf(`fetch(%q, {method: "POST", mode: "no-cors", credentials: "include", headers: {"Content-Type": "text/plain"}, body: JSON.stringify({action: "cancel-objective", id: %q, revision: "1"})}).then(() => "sent", () => "refused")`,
		s.base()+"/api/action", objective))
	require.Contains(t, h.ctl("get", "objective"), "Active", "a page of somebody else's commanded")
}
