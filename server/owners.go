package server

import (
	"context"
	"slices"

	"coordinator/frames"
	"coordinator/handshake"
)

// send keeps the owner links. Clients are served without waiting for them (protocol.md
// [D-31]).
func (s *Server) send(ctx context.Context) error {
	s.outbox.Run(ctx)
	return nil
}

// ownersOf is the outbox as the domain asks it. The writer is made first and asks later.
type ownersOf struct{ s *Server }

func (o ownersOf) Connected(fp frames.Fingerprint, inc frames.IncarnationID) bool {
	return o.s.outbox.Connected(fp, inc)
}

func (o ownersOf) Serves(fp frames.Fingerprint, inc frames.IncarnationID, group frames.GroupID) bool {
	return o.s.outbox.Serves(fp, inc, group)
}

// authorised reports whether a principal may still have an effect dispatched [D-46]. An
// emptied registry authorises nobody.
func (s *Server) authorised(key frames.KeyID, scope frames.Scope) bool {
	now := s.clock.Now().Unix()
	records := s.registry.Snapshot().Records
	i := slices.IndexFunc(records, func(r handshake.Record) bool { return r.KeyID == key })
	return i >= 0 && !records[i].Revoked() && now < records[i].ExpiresAt && frames.Scope(records[i].Scope).Has(scope)
}
