package handshake

import (
	"crypto/subtle"
	"errors"
	"fmt"

	"coordinator/frames"
)

// Pins name the one witness and coordinator whose certificates count. They are
// kept outside the store that they protect (protocol.md §4).
type Pins struct {
	WitnessID        frames.WitnessID
	WitnessPublicKey [32]byte
	CoordinatorID    frames.CoordinatorID
}

// Causes of a *CertificateError.
var (
	ErrCertificateForm      = errors.New("bad form")
	ErrCertificatePin       = errors.New("does not match the pins")
	ErrCertificateSignature = errors.New("bad signature")
	ErrCertificateEarly     = errors.New("issued in the future")
	ErrCertificateExpired   = errors.New("expired")
)

// A CertificateError refuses an activation certificate. Field is the
// protocol's name of what is wrong.
type CertificateError struct {
	Field string
	Cause error
}

func (e *CertificateError) Error() string {
	return fmt.Sprintf("activation certificate: %s: %v", e.Field, e.Cause)
}

func (e *CertificateError) Unwrap() error { return e.Cause }

// maxIssuedAhead is how far, in seconds, a certificate may be issued ahead of
// the verifier's clock (protocol.md §4).
const maxIssuedAhead = 2

// VerifyCertificate checks form, pins, signature and times of a certificate
// against now in Unix seconds. What a client compares besides (incarnation,
// token hash, the highest authority seen) it compares itself.
func VerifyCertificate(cert *frames.Certificate, pins Pins, now uint64) error {
	if err := VerifySigned(cert, pins); err != nil {
		return err
	}
	return VerifyTimes(cert, now)
}

// VerifyTimes is VerifyCertificate for a certificate that [VerifySigned] has accepted.
func VerifyTimes(cert *frames.Certificate, now uint64) error {
	if cert.IssuedAt > now && cert.IssuedAt-now > maxIssuedAhead {
		return &CertificateError{"issued_at", ErrCertificateEarly}
	}
	if now >= cert.ExpiresAt {
		return &CertificateError{"expires_at", ErrCertificateExpired}
	}
	return nil
}

// VerifySigned is VerifyCertificate without the clock: for the coordinator,
// which counts a lease on BOOTTIME from its own request [D-9].
func VerifySigned(cert *frames.Certificate, pins Pins) error {
	preimage, err := cert.Preimage()
	if err != nil {
		return &CertificateError{"body", ErrCertificateForm}
	}
	keyID := KeyIDOf(pins.WitnessPublicKey)
	switch {
	case !equal(cert.WitnessID[:], pins.WitnessID[:]):
		return &CertificateError{"witness_id", ErrCertificatePin}
	case !equal(cert.CoordinatorID[:], pins.CoordinatorID[:]):
		return &CertificateError{"coordinator_id", ErrCertificatePin}
	case !equal(cert.WitnessKeyID[:], keyID[:]):
		return &CertificateError{"witness_key_id", ErrCertificatePin}
	case !Verify(pins.WitnessPublicKey, preimage, cert.Signature[:]):
		return &CertificateError{"signature", ErrCertificateSignature}
	}
	return nil
}

// equal compares two strings of equal length in constant time.
func equal(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }
