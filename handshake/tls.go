package handshake

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"
)

// ALPN is the application label of the service's QUIC connections
// (protocol.md §1.1).
func (s Service) ALPN() string { return s.Name + "/1" }

// Validity of the certificates. The key of a leaf lives in one process's memory
// and dies with it, so its certificate needs no end: notAfter is RFC 5280's time
// for that, and a server that runs for years needs no second one.
//
// Who may be believed is decided by the pin and by the activation certificate,
// whose times count in seconds. The times in the X.509 certificates add nothing
// to that; they are set and held a day apart from both clocks so that a machine
// which started with a wrong clock, and set it later, can still be reached.
const clockLeeway = 24 * time.Hour

var notAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// ServerTLS makes a server's side of TLS for one start of its process
// (protocol.md §1.1 [D-1]): a fresh leaf key from rand, its certificate signed by
// the authority key, and the certificate of that key, which signs itself. Both
// are sent, since a client knows the authority key by its hash only. TLS 1.3
// alone is spoken, with the one application label, without session tickets.
func ServerTLS(authority Signer, alpn string, rand io.Reader, now time.Time) (*tls.Config, error) {
	ca, err := newAuthority(authority, now)
	if err != nil {
		return nil, fmt.Errorf("authority certificate: %w", err)
	}
	var seed [ed25519.SeedSize]byte
	defer clear(seed[:])
	if _, err := io.ReadFull(rand, seed[:]); err != nil {
		return nil, fmt.Errorf("leaf key: %w", err)
	}
	key := ed25519.NewKeyFromSeed(seed[:])
	leaf := certificateTemplate(key.Public().(ed25519.PublicKey), now)
	leaf.Subject = pkix.Name{CommonName: alpn}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(nil, leaf, ca, key.Public(), x509Signer{authority})
	if err != nil {
		return nil, fmt.Errorf("leaf certificate: %w", err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der, ca.Raw}, PrivateKey: key}},
		NextProtos:   []string{alpn},
		MinVersion:   tls.VersionTLS13, MaxVersion: tls.VersionTLS13,
		SessionTicketsDisabled: true,
	}, nil
}

// newAuthority makes the self-signed certificate of the authority key.
func newAuthority(authority Signer, now time.Time) (*x509.Certificate, error) {
	pub := authority.Public()
	ca := certificateTemplate(pub[:], now)
	ca.Subject = pkix.Name{CommonName: "workload authority"}
	ca.KeyUsage = x509.KeyUsageCertSign
	ca.IsCA, ca.BasicConstraintsValid, ca.MaxPathLenZero = true, true, true
	id := sha256.Sum256(pub[:])
	ca.SubjectKeyId = id[:20]
	der, err := x509.CreateCertificate(nil, ca, ca, ed25519.PublicKey(pub[:]), x509Signer{authority})
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// certificateTemplate is what both certificates share. The serial number is a
// hash of the key, so that it differs wherever the certificate does.
func certificateTemplate(pub ed25519.PublicKey, now time.Time) *x509.Certificate {
	serial := sha256.Sum256(pub)
	serial[0] &= 0x7f // a positive number of at most 20 bytes
	serial[0] |= 0x40
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial[:16]),
		NotBefore:    now.Add(-clockLeeway).UTC(), NotAfter: notAfter,
		SignatureAlgorithm: x509.PureEd25519,
	}
}

// x509Signer lets crypto/x509 sign with a Signer.
type x509Signer struct{ Signer }

func (s x509Signer) Public() crypto.PublicKey {
	pub := s.Signer.Public()
	return ed25519.PublicKey(pub[:])
}

func (s x509Signer) Sign(_ io.Reader, msg []byte, opts crypto.SignerOpts) ([]byte, error) {
	if opts.HashFunc() != 0 {
		return nil, errors.New("Ed25519 signs the message, not a hash of it")
	}
	sig, err := s.Signer.Sign(msg)
	return sig[:], err
}

// ResetKey derives from the authority key the key of QUIC's stateless resets.
// It is the same after every start, so that a server which was killed can tell
// the peers of its lost connections at once. The signature that it is the hash
// of never leaves this function.
func ResetKey(authority Signer) ([32]byte, error) {
	sig, err := authority.Sign([]byte("phux-workload/v1\x00quic-stateless-reset\x00"))
	if err != nil {
		return [32]byte{}, fmt.Errorf("reset key: %w", err)
	}
	defer clear(sig[:])
	return sha256.Sum256(sig[:]), nil
}
