package console

import "net/http"

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// routes are the paths of the API.
func (s *Server) routes(m *http.ServeMux) {
	m.HandleFunc("GET /api/session", s.session)
	m.HandleFunc("GET /api/live", s.live.serve)
	m.HandleFunc("POST /api/action", s.act)
	m.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		(&problem{http.StatusNotFound, codeNotFound, "there is no such path, or not with " + r.Method, "this page belongs to another version: load it again"}).write(w)
	})
}

// session tells whose console it is.
func (s *Server) session(w http.ResponseWriter, _ *http.Request) {
	c := s.opts.Context
	address := c.Socket
	if address == "" {
		address = c.QUIC
	}
	writeJSON(w, http.StatusOK, map[string]string{"name": c.Name, "address": address, "coordinator_id": c.CoordinatorID.String(),
		"key_id": keyID(s.opts.Key), "version": s.opts.Version})
}
