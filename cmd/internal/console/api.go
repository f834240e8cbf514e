package console

import (
	"context"
	"errors"
	"net/http"
	"time"

	"coordinator/client"
	"coordinator/internal/text"
)

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// routes are the paths of the API.
func (s *Server) routes(m *http.ServeMux) {
	m.HandleFunc("GET /api/session", s.session)
	m.HandleFunc("GET /api/live", s.live.serve)
	m.Handle("GET /api/objective/{id}", lookup(s.objective))
	m.Handle("GET /api/run/{id}", lookup(s.run))
	m.Handle("GET /api/run/{id}/timeline", lookup(s.timeline))
	m.Handle("GET /api/run/{id}/output/{stream}", lookup(s.output))
	m.Handle("POST /api/run/{id}/output/{stream}/verify", lookup(s.verify))
	m.Handle("GET /api/authority", lookup(s.authority))
	m.Handle("GET /api/daemon", lookup(s.daemon))
	m.Handle("GET /api/signal/{id}", lookup(s.signal))
	m.Handle("GET /api/operation/{id}", lookup(s.operation))
	m.HandleFunc("POST /api/action", s.act)
	m.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		(&problem{http.StatusNotFound, codeNotFound, "there is no such path, or not with " + r.Method, "this page belongs to another version: load it again"}).write(w)
	})
}

// session tells whose console it is.
func (s *Server) session(w http.ResponseWriter, _ *http.Request) {
	c := s.opts.Context
	writeJSON(w, http.StatusOK, map[string]string{"name": c.Name, "address": s.address(), "coordinator_id": c.CoordinatorID.String(),
		"key_id": keyID(s.opts.Key), "version": s.opts.Version})
}

// within is the context of a request that may take d, beyond which its answer still has time
// to be taken.
func (s *Server) within(w http.ResponseWriter, r *http.Request, d time.Duration) (context.Context, context.CancelFunc) {
	c, end := http.NewResponseController(w), time.Now().Add(d+answerWait)
	c.SetReadDeadline(end)  //nolint:errcheck // a real connection has deadlines; that of the request would end its context
	c.SetWriteDeadline(end) //nolint:errcheck // as above
	return context.WithTimeoutCause(r.Context(), d, errSlow)
}

// errSlow is why a request was given up.
var errSlow = errors.New("it took too long")

// unavailable words a failure of somebody whom the console asked.
func unavailable(err error) *problem {
	p := &problem{http.StatusBadGateway, codeUnavailable, text.Inert(err.Error()), "try again; the state on top says whether the coordinator is there"}
	var refused *client.RefusedError
	if errors.As(err, &refused) {
		p.Code, p.Next = refused.Code.String(), advice(refused.Code)
	}
	return p
}
