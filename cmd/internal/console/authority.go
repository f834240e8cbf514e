package console

import (
	"net/http"
	"time"

	"coordinator/cmd/internal/overview"
	"coordinator/handshake"
)

type certificate struct {
	Epoch      string         `json:"epoch"`
	Activation string         `json:"activation"`
	Expires    *overview.Time `json:"expires_at"`
	Remaining  int64          `json:"remaining_ms"`
}

type grant struct {
	Expires *overview.Time `json:"expires_at"`
	Scope   []string       `json:"scope"`
}

type pins struct {
	CoordinatorID string `json:"coordinator_id"`
	Authority     string `json:"authority"`
	WitnessID     string `json:"witness_id"`
	WitnessKey    string `json:"witness_public_key"`
	Address       string `json:"address"`
}

type authorityAnswer struct {
	Authority   *overview.Authority `json:"authority,omitempty"`
	Certificate *certificate        `json:"certificate,omitempty"`
	Grant       *grant              `json:"grant,omitempty"`
	Pins        pins                `json:"pins"`
	KeyID       string              `json:"key_id"`
	Epochs      []epoch             `json:"epochs"`
	Rate        []second            `json:"event_rate"`
}

// address is where the context finds the coordinator.
func (s *Server) address() string {
	if s.opts.Context.Socket != "" {
		return s.opts.Context.Socket
	}
	return s.opts.Context.QUIC
}

// authority answers GET /api/authority.
func (s *Server) authority(http.ResponseWriter, *http.Request) (any, *problem) {
	c := s.opts.Context
	out := authorityAnswer{KeyID: keyID(s.opts.Key), Pins: pins{c.CoordinatorID.String(), c.Authority.String(), c.WitnessID.String(),
		handshake.FormatPublicKey(c.WitnessPublicKey), s.address()}}
	if i, ok := s.replica.Info(); ok {
		left := time.Unix(int64(i.LeaseExpires), 0).Sub(s.opts.Clock.Now().Wall)
		out.Certificate = &certificate{decimal(i.Epoch), decimal(i.Activation), stamp(i.LeaseExpires), max(0, left.Milliseconds())}
		out.Grant = &grant{stamp(i.GrantExpires), scopeNames(i.Scope)}
	}
	s.live.mu.Lock()
	defer s.live.mu.Unlock()
	out.Authority = s.live.state.Authority
	out.Epochs = append([]epoch{}, s.live.epochs...)
	out.Rate = append([]second{}, s.live.rate...)
	return out, nil
}
