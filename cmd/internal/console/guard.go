package console

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
)

// policy is the Content-Security-Policy of every answer: the page's own files and nothing else,
// nothing inline, no frame around it, no markup from strings.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"

// protect writes the headers that every answer has.
func protect(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// secretBytes is the size of the token and of the cookie's value, which nobody guesses.
const secretBytes = 32

// A guard knows who is let in. Secrets are compared by their digests, so that the time it
// takes tells nothing.
type guard struct {
	cookieName string
	cookie     string
	session    [sha256.Size]byte // of the cookie's value

	mu    sync.Mutex
	token [sha256.Size]byte // guarded by mu
	spent bool              // guarded by mu; the token has been traded in
}

// newGuard makes the secrets of one console. It gives the token, which is kept nowhere.
func newGuard(r io.Reader) (g *guard, token string, err error) {
	var raw [2*secretBytes + 6]byte
	if r == nil {
		r = rand.Reader
	}
	if _, err := io.ReadFull(r, raw[:]); err != nil {
		return nil, "", err
	}
	encode := base64.RawURLEncoding.EncodeToString
	token = encode(raw[:secretBytes])
	// Cookies do not know ports: two consoles on one machine keep theirs by another name.
	g = &guard{cookieName: "coordinator-console-" + encode(raw[2*secretBytes:]), cookie: encode(raw[secretBytes : 2*secretBytes])}
	g.token, g.session = sha256.Sum256([]byte(token)), sha256.Sum256([]byte(g.cookie))
	return g, token, nil
}

// trade reports whether token is the one that was printed and nobody has used before. It is
// used then.
func (g *guard) trade(token string) bool {
	sum := sha256.Sum256([]byte(token))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.spent || subtle.ConstantTimeCompare(sum[:], g.token[:]) != 1 {
		return false
	}
	g.spent = true
	return true
}

// admit sets the cookie.
func (g *guard) admit(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: g.cookieName, Value: g.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

// known reports whether the request bears the cookie.
func (g *guard) known(r *http.Request) bool {
	for _, c := range r.CookiesNamed(g.cookieName) {
		sum := sha256.Sum256([]byte(c.Value))
		if subtle.ConstantTimeCompare(sum[:], g.session[:]) == 1 {
			return true
		}
	}
	return false
}

// refuses says why a request is not let in, nil when it is. Which of this machine's names and
// ports the Host has does not matter: over a forwarded port it is the other end's.
func (g *guard) refuses(r *http.Request) *problem {
	if !localHost(r.Host) {
		return &problem{http.StatusForbidden, codeForbidden, "the Host of the request names another machine",
			"open the console at 127.0.0.1 or localhost; from another machine forward a port with ssh -L"}
	}
	api := strings.HasPrefix(r.URL.Path, "/api/")
	if r.Method != http.MethodGet && r.Method != http.MethodHead || api {
		if !ownOrigin(r) {
			return &problem{http.StatusForbidden, codeForbidden, "the request comes from another page", "use the console's own page"}
		}
	}
	if !api {
		return nil
	}
	if !g.known(r) {
		return &problem{http.StatusUnauthorized, codeUnauthenticated, "this browser is not known to the console",
			"open the address that coordctl console printed; it is good once, start it again for a new one"}
	}
	if r.Method == http.MethodPost {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return &problem{http.StatusUnsupportedMediaType, codeMediaType, "the body of a POST is JSON", "send Content-Type: application/json"}
		}
	}
	return nil
}

// localHost reports whether a Host names this machine, so that no page of another name which
// was made to resolve to it (DNS rebinding) is answered.
func localHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// ownOrigin reports whether the page behind a request is the console's own. A browser says so
// itself in every POST; a GET without either header is typed, or of no browser.
func ownOrigin(r *http.Request) bool {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	if origin != "" && !strings.EqualFold(origin, "http://"+r.Host) {
		return false
	}
	switch site {
	case "same-origin":
		return true
	case "":
		return origin != "" || r.Method == http.MethodGet || r.Method == http.MethodHead
	case "none":
		return r.Method == http.MethodGet || r.Method == http.MethodHead
	}
	return false
}
