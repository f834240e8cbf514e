package console

import (
	"encoding/json"
	"net/http"
)

// Codes of this package's own, beside those of the protocol.
const (
	codeUnauthenticated = "UNAUTHENTICATED"
	codeForbidden       = "FORBIDDEN"
	codeNotFound        = "NOT_FOUND"
	codeBadRequest      = "BAD_REQUEST"
	codeMethod          = "METHOD_NOT_ALLOWED"
	codeTooLarge        = "TOO_LARGE"
	codeMediaType       = "UNSUPPORTED_MEDIA_TYPE"
	codeBusy            = "BUSY"
	codeUnavailable     = "UNAVAILABLE"
)

// A problem is an answer that says what is wrong and what to do.
type problem struct {
	status  int
	Code    string
	Message string
	Next    string
}

func (p *problem) Error() string { return p.Code + ": " + p.Message }

// write answers with the problem.
func (p *problem) write(w http.ResponseWriter) {
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	writeJSON(w, p.status, map[string]any{"error": map[string]string{"code": p.Code, "message": p.Message, "next": p.Next}})
}

func badRequest(message, next string) *problem {
	return &problem{http.StatusBadRequest, codeBadRequest, message, next}
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("console: an answer that is no JSON: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	w.Write(raw) //nolint:errcheck // the asker has gone
}
