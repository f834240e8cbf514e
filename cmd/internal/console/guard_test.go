package console

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheTokenIsGoodOnce opens the printed address twice, and wrong ones.
func TestTheTokenIsGoodOnce(t *testing.T) {
	x := newWorld(t)
	p := x.console(x.reader, nil)
	require.Equal(t, "UNAUTHENTICATED", p.get("/api/session", nil).code(t))
	require.Equal(t, http.StatusUnauthorized, p.get("/api/live", nil).status)

	for _, wrong := range []string{"", "x", query(t, p.first, "token") + "x", strings.ToUpper(query(t, p.first, "token"))} {
		r := p.do(p.request("GET", "/?token="+wrong, ""))
		require.Equal(t, http.StatusForbidden, r.status)
		require.Empty(t, r.cookies)
		require.Contains(t, r.body, "coordctl console")
	}
	require.Equal(t, http.StatusForbidden, p.do(p.request("HEAD", p.first, "")).status, "a HEAD does not use it up")
	p.enter()
	require.True(t, p.cookie.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, p.cookie.SameSite)
	require.Equal(t, "/", p.cookie.Path)
	require.Equal(t, http.StatusOK, p.get("/api/session", nil).status)

	mine := p.cookie
	p.cookie = nil
	require.Equal(t, http.StatusForbidden, p.do(p.request("GET", p.first, "")).status, "it was used")
	p.cookie = mine
	require.Equal(t, http.StatusForbidden, p.do(p.request("GET", p.first, "")).status, "by whomever")
	p.cookie = &http.Cookie{Name: mine.Name, Value: mine.Value + "x"}
	require.Equal(t, "UNAUTHENTICATED", p.get("/api/session", nil).code(t))
	p.cookie = &http.Cookie{Name: mine.Name + "x", Value: mine.Value}
	require.Equal(t, "UNAUTHENTICATED", p.get("/api/session", nil).code(t))

	page := p.get("/", nil)
	require.Equal(t, http.StatusOK, page.status, "the page itself is no secret")
	require.Equal(t, "text/html; charset=utf-8", page.header.Get("Content-Type"))
	p.end()
	require.Empty(t, p.noise.String(), "nothing of it is told")
}

// TestTwoConsolesKeepTheirCookiesApart since cookies do not know ports.
func TestTwoConsolesKeepTheirCookiesApart(t *testing.T) {
	x := newWorld(t)
	a, b := x.opened(x.reader, nil), x.opened(x.reader, nil)
	require.NotEqual(t, a.cookie.Name, b.cookie.Name)
	both := a.request("GET", "/api/session", "")
	both.AddCookie(b.cookie)
	require.Equal(t, http.StatusOK, a.do(both).status)
	a.cookie = b.cookie
	require.Equal(t, "UNAUTHENTICATED", a.get("/api/session", nil).code(t))
}

// TestOthersInTheBrowserAreRefused asks as other pages would, with the cookie.
func TestOthersInTheBrowserAreRefused(t *testing.T) {
	x := newWorld(t)
	p := x.opened(x.reader, nil)
	port := p.base[strings.LastIndex(p.base, ":"):]
	for _, tt := range []struct {
		name, method, path string
		change             func(*http.Request)
		status             int
	}{
		{"its own page", "GET", "/api/session", func(*http.Request) {}, http.StatusOK},
		{"typed", "GET", "/api/session", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, http.StatusOK},
		{"an old browser's read", "GET", "/api/session", func(r *http.Request) { r.Header.Del("Sec-Fetch-Site") }, http.StatusOK},
		{"over a forwarded port", "GET", "/api/session", func(r *http.Request) { r.Host = "localhost:8080" }, http.StatusOK},
		{"over IPv6", "GET", "/api/session", func(r *http.Request) { r.Host = "[::1]:8080" }, http.StatusOK},
		{"a rebound name", "GET", "/api/session", func(r *http.Request) { r.Host = "evil.example" + port }, http.StatusForbidden},
		{"a rebound name, for the page", "GET", "/", func(r *http.Request) { r.Host = "127.0.0.1.evil.example" }, http.StatusForbidden},
		{"a name below localhost", "GET", "/", func(r *http.Request) { r.Host = "x.localhost" + port }, http.StatusForbidden},
		{"another machine's address", "GET", "/", func(r *http.Request) { r.Host = "192.0.2.1" + port }, http.StatusForbidden},
		{"any address", "GET", "/", func(r *http.Request) { r.Host = "0.0.0.0" + port }, http.StatusForbidden},
		{"a read by another site", "GET", "/api/session", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		{"a read by another port", "GET", "/api/live", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusForbidden},
		{"a read with another origin", "GET", "/api/live", func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }, http.StatusForbidden},
		{"a write by another site", "POST", "/api/action", func(r *http.Request) {
			r.Header.Set("Origin", "https://evil.example")
			r.Header.Set("Sec-Fetch-Site", "cross-site")
		}, http.StatusForbidden},
		{"a write with another origin", "POST", "/api/action", func(r *http.Request) { r.Header.Set("Origin", "http://localhost"+port) }, http.StatusForbidden},
		{"a write with no origin's origin", "POST", "/api/action", func(r *http.Request) { r.Header.Set("Origin", "null") }, http.StatusForbidden},
		{"a write that says nothing of its origin", "POST", "/api/action", func(r *http.Request) {
			r.Header.Del("Origin")
			r.Header.Del("Sec-Fetch-Site")
		}, http.StatusForbidden},
		{"a write that is typed", "POST", "/api/action", func(r *http.Request) {
			r.Header.Del("Origin")
			r.Header.Set("Sec-Fetch-Site", "none")
		}, http.StatusForbidden},
		{"a form", "POST", "/api/action", func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, http.StatusUnsupportedMediaType},
		{"a form to the page", "POST", "/", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, http.StatusForbidden},
		{"a write without the cookie", "POST", "/api/action", func(r *http.Request) { r.Header.Del("Cookie") }, http.StatusUnauthorized},
		{"a path that is none", "GET", "/api/none", func(*http.Request) {}, http.StatusNotFound},
		{"a file that is none", "GET", "/assets/../doc.go", func(*http.Request) {}, http.StatusNotFound},
		{"a write to the page", "POST", "/", func(*http.Request) {}, http.StatusMethodNotAllowed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := p.request(tt.method, tt.path, "")
			tt.change(r)
			a := p.do(r)
			require.Equal(t, tt.status, a.status, a.body)
			require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
			if a.status != http.StatusOK {
				a.code(t)
			}
		})
	}
}

func TestAssetsAreKeptByTheBrowser(t *testing.T) {
	x := newWorld(t)
	p := x.console(x.reader, nil)
	for path, a := range p.server.assets {
		r := p.get(path, nil)
		require.Equal(t, http.StatusOK, r.status, path)
		require.Equal(t, a.kind, r.header.Get("Content-Type"))
		again := p.request("GET", path, "")
		again.Header.Set("If-None-Match", r.header.Get("ETag"))
		require.Equal(t, http.StatusNotModified, p.do(again).status)
	}
}

func TestOnlyThisMachineIsListenedOn(t *testing.T) {
	for _, ok := range []string{"127.0.0.1:0", "localhost:8080", "[::1]:0", "127.1.2.3:1", "[::ffff:127.0.0.1]:0"} {
		require.NoError(t, CheckListen(ok), ok)
	}
	for _, remote := range []string{"0.0.0.0:80", ":80", "[::]:80", "192.0.2.1:80", "example.org:80"} {
		require.ErrorAs(t, CheckListen(remote), new(*RemoteListenError), remote)
	}
	for _, bad := range []string{"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:nope!"} {
		err := CheckListen(bad)
		require.Error(t, err, bad)
		require.NotErrorIs(t, err, &RemoteListenError{})
	}
}
