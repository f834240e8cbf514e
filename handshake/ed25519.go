package handshake

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"slices"

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
	// The standard library checks S, that A is a point and, by comparing encodings,
	// that R is the canonical one of a point; it takes A in any encoding, and points of
	// small order, which their y gives away.
	if len(sig) != ed25519.SignatureSize || strictY(pub[:]) != nil || strictY(sig[:32]) != nil {
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
	if err := strictY(pub); err != nil {
		return err
	}
	if _, err := new(edwards25519.Point).SetBytes(pub); err != nil {
		return ErrNotCanonical // off the curve
	}
	return nil
}

// strictY holds an encoded point, which may be off the curve, to what its y says: that it
// is below p, and none of a point of small order. The latter are 0, 1, -1 and, for order 8,
// two that are each other's negatives, with either sign of x. Where x is zero, y is 1 or -1,
// so that no encoding of the negative zero passes either.
func strictY(b []byte) error {
	y := [32]byte(b)
	sign := y[31] & 0x80
	y[31] &= 0x7f
	slices.Reverse(y[:]) // now big-endian
	switch {
	case bytes.Compare(y[:], fieldPrime[:]) >= 0, sign != 0 && (y == yOne || y == yMinusOne):
		return ErrNotCanonical
	case y == [32]byte{} || y == yOne || y == yMinusOne || y == yOrder8 || y == yMinusOrder8:
		return ErrSmallOrder
	}
	return nil
}

// Big-endian: p, and the y that are not zero of points of small order.
var (
	fieldPrime = [32]byte{
		0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xed,
	}
	yOne      = [32]byte{31: 1}
	yMinusOne = primeMinus(yOne)
	yOrder8   = [32]byte{
		0x7a, 0x03, 0xac, 0x92, 0x77, 0xfd, 0xc7, 0x4e, 0xc6, 0xcc, 0x39, 0x2c, 0xfa, 0x53, 0x20, 0x2a,
		0x0f, 0x67, 0x10, 0x0d, 0x76, 0x0b, 0x3c, 0xba, 0x4f, 0xd8, 0x4d, 0x3d, 0x70, 0x6a, 0x17, 0xc7,
	}
	yMinusOrder8 = primeMinus(yOrder8)
)

// primeMinus is p - y.
func primeMinus(y [32]byte) (out [32]byte) {
	borrow := 0
	for i := 31; i >= 0; i-- {
		d := int(fieldPrime[i]) - int(y[i]) - borrow
		borrow = 0
		if d < 0 {
			d, borrow = d+256, 1
		}
		out[i] = byte(d)
	}
	return out
}
