package handshake

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"coordinator/frames"
)

// ErrServerCertificate says that a server's TLS certificates are not the leaf
// and the authority that they must be (protocol.md §1.1 [D-1]). A chain whose
// authority is another key than the pinned one is a *PinError instead.
var ErrServerCertificate = errors.New("server certificates are not of the required form")

// ClientTLS makes a client's side of TLS: it accepts a server whose authority
// key has the pinned fingerprint, and nobody else. No root of the operating
// system, no name and no earlier session counts. now is the wall clock.
func ClientTLS(pin frames.Fingerprint, alpn string, now func() time.Time) *tls.Config {
	return &tls.Config{
		NextProtos: []string{alpn},
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		SessionTicketsDisabled: true,
		InsecureSkipVerify:     true, // replaced, not left out: VerifyConnection runs on every handshake
		VerifyConnection: func(cs tls.ConnectionState) error {
			switch {
			case cs.Version != tls.VersionTLS13 || cs.DidResume:
				return fmt.Errorf("%w: not a full TLS 1.3 handshake", ErrServerCertificate)
			case cs.NegotiatedProtocol != alpn:
				return fmt.Errorf("%w: application label", ErrServerCertificate)
			}
			return VerifyServerChain(cs.PeerCertificates, pin, now())
		},
	}
}

// VerifyServerChain holds what a server sent against the pin: exactly a leaf
// and the authority that issued it. The authority is an Ed25519 key with the
// pinned fingerprint that signs itself and may sign leaves, and nothing else may
// be asked for by either certificate that is not understood here. Signatures are
// judged by [Verify]. Times may be a day off, see ServerTLS.
func VerifyServerChain(chain []*x509.Certificate, pin frames.Fingerprint, now time.Time) error {
	if len(chain) != 2 {
		return fmt.Errorf("%w: %d certificates, want leaf and authority", ErrServerCertificate, len(chain))
	}
	leaf, ca := chain[0], chain[1]
	key, ok := ca.PublicKey.(ed25519.PublicKey)
	if !ok || CheckPublicKey(key) != nil {
		return fmt.Errorf("%w: the authority is no Ed25519 key", ErrServerCertificate)
	}
	authority := [32]byte(key)
	if got := FingerprintOf(authority); !equal(got[:], pin[:]) {
		return &PinError{Got: got, Want: pin}
	}
	for _, c := range []struct {
		name string
		cert *x509.Certificate
	}{{"authority", ca}, {"leaf", leaf}} {
		if err := checkIssued(c.cert, ca, authority, now); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrServerCertificate, c.name, err)
		}
	}
	switch {
	case !ca.BasicConstraintsValid || !ca.IsCA || ca.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("%w: the authority may not sign certificates", ErrServerCertificate)
	case leaf.IsCA:
		return fmt.Errorf("%w: the leaf is an authority itself", ErrServerCertificate)
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 || !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth):
		return fmt.Errorf("%w: the leaf is not for a TLS server", ErrServerCertificate)
	}
	switch k := leaf.PublicKey.(type) {
	case ed25519.PublicKey:
		if err := CheckPublicKey(k); err != nil {
			return fmt.Errorf("%w: leaf: %w", ErrServerCertificate, err)
		}
	case *ecdsa.PublicKey: // crypto/tls and crypto/x509 check the point
	default:
		return fmt.Errorf("%w: the leaf has a key of an unexpected kind", ErrServerCertificate)
	}
	return nil
}

// checkIssued checks what both certificates have in common: issued by the
// authority, whose key is pub, and good at about now.
func checkIssued(c, ca *x509.Certificate, pub [32]byte, now time.Time) error {
	switch {
	case c.Version != 3:
		return errors.New("not an X.509 v3 certificate")
	case c.SignatureAlgorithm != x509.PureEd25519:
		return errors.New("not signed with Ed25519")
	case !bytes.Equal(c.RawIssuer, ca.RawSubject):
		return errors.New("issued by another name than the authority's")
	case len(c.UnhandledCriticalExtensions) != 0:
		return errors.New("has a critical extension that is not understood")
	case !Verify(pub, c.RawTBSCertificate, c.Signature):
		return errors.New("the authority's signature does not verify")
	case now.Before(c.NotBefore.Add(-clockLeeway)) || now.After(c.NotAfter) && now.Sub(c.NotAfter) > clockLeeway:
		return errors.New("not valid at this machine's time; compare the clocks")
	}
	return nil
}
