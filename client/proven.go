package client

import (
	"coordinator/frames"
	"coordinator/handshake"
)

// A proven certificate is one whose signature and pins have been found right. The same bytes
// come to each connection of a process, and again with each renewal; to verify them once is
// enough. Its times are judged every time.
type proven struct {
	cert frames.Certificate
	pins handshake.Pins
}

// verify is [handshake.VerifyCertificate], which it asks for the signature where this very
// certificate was not the last one proven under the same pins.
func (s *State) verify(cert *frames.Certificate, pins handshake.Pins, now uint64) error {
	if p := s.proven.Load(); p == nil || p.cert != *cert || p.pins != pins {
		if err := handshake.VerifySigned(cert, pins); err != nil {
			return err
		}
		s.proven.Store(&proven{*cert, pins})
	}
	return handshake.VerifyTimes(cert, now)
}
