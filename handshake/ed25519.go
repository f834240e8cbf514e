package handshake

import (
	"bytes"
	"crypto/ed25519"
	"errors"

	"filippo.io/edwards25519"
)

// Reasons why 32 bytes are no usable Ed25519 public key.
var (
	ErrKeyLength    = errors.New("public key is not 32 bytes")
	ErrNotCanonical = errors.New("public key is not the canonical encoding of a curve point")
	ErrSmallOrder   = errors.New("public key is a point of small order, which anybody can sign for")
)

// Verify reports whether sig is the Ed25519 signature of msg under pub by the
// strict reading of RFC 8032 (protocol.md §5.1): A and R canonical and not of
// small order, S below the group order, and the equation without the cofactor.
// Everything signed in the protocol is verified here, certificates included.
func Verify(pub [32]byte, msg, sig []byte) bool {
	// The standard library checks S and, by comparing encodings, that R is
	// canonical; it takes any A that decodes, and points of small order.
	if len(sig) != ed25519.SignatureSize {
		return false
	}
	if checkPoint(pub[:]) != nil || checkPoint(sig[:32]) != nil {
		return false
	}
	return ed25519.Verify(pub[:], msg, sig)
}

// CheckPublicKey refuses bytes that are not the canonical encoding of a point
// outside the small-order subgroup. A mixed-order point passes; the equation
// of Verify judges it.
func CheckPublicKey(pub []byte) error {
	if len(pub) != ed25519.PublicKeySize {
		return ErrKeyLength
	}
	return checkPoint(pub)
}

func checkPoint(b []byte) error {
	p, err := new(edwards25519.Point).SetBytes(b)
	if err != nil || !bytes.Equal(p.Bytes(), b) {
		return ErrNotCanonical // y >= p, the negative zero, or off the curve
	}
	if new(edwards25519.Point).MultByCofactor(p).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return ErrSmallOrder
	}
	return nil
}
