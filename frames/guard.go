package frames

import (
	"crypto/sha256"
	"encoding/binary"

	"coordinator/codec"
)

// AuthorityGuard names the authority that a request is meant for (protocol.md §3).
//
//	coordinator_id:bytes16 || authority_epoch:u64 || activation_sequence:u64 ||
//	fencing_token_sha256:bytes32
//
// Any 64 bytes decode: a zero inside is a mismatch, not malformed.
type AuthorityGuard struct {
	CoordinatorID CoordinatorID
	Epoch         AuthorityEpoch
	Activation    ActivationSequence
	TokenSHA256   [32]byte
}

// guardSize is the width of an AuthorityGuard.
const guardSize = 64

func (g *AuthorityGuard) Image(i *codec.Image) {
	if raw := i.Block(guardSize); raw != nil {
		g.walk(raw, i.Decoding())
	}
}

// guardField walks a required guard. Nearly every request has one, so it is one block instead
// of parts that are walked one by one.
func guardField(b *codec.Body, id int, g *AuthorityGuard) {
	if raw := codec.Block(b, id, guardSize); raw != nil {
		g.walk(raw, b.Decoding())
	}
}

// walk reads the guard from raw, or writes it there.
func (g *AuthorityGuard) walk(raw []byte, decode bool) {
	raw = raw[:guardSize]
	if decode {
		g.CoordinatorID = CoordinatorID(raw[:16])
		g.Epoch = AuthorityEpoch(binary.BigEndian.Uint64(raw[16:]))
		g.Activation = ActivationSequence(binary.BigEndian.Uint64(raw[24:]))
		g.TokenSHA256 = [32]byte(raw[32:])
		return
	}
	copy(raw, g.CoordinatorID[:])
	binary.BigEndian.PutUint64(raw[16:], uint64(g.Epoch))
	binary.BigEndian.PutUint64(raw[24:], uint64(g.Activation))
	copy(raw[32:], g.TokenSHA256[:])
}

// Certificate is an ActivationCertificate (§4).
//
//	off  size  field
//	  0     1  version(1)
//	  1    16  witness_id
//	 17    16  coordinator_id
//	 33     8  activation_sequence
//	 41     8  authority_epoch
//	 49    16  incarnation_id
//	 65    32  fencing_token
//	 97     8  issued_at    Unix seconds
//	105     8  expires_at   Unix seconds
//	113    32  witness_key_id
//	145    64  signature
//
// Form only is checked here: no id and no counter is zero, and
// issued_at < expires_at <= issued_at+60. Package handshake verifies the signature.
type Certificate struct {
	WitnessID     WitnessID
	CoordinatorID CoordinatorID
	Activation    ActivationSequence
	Epoch         AuthorityEpoch
	IncarnationID IncarnationID
	Token         [32]byte
	IssuedAt      uint64
	ExpiresAt     uint64
	WitnessKeyID  [32]byte
	Signature     [64]byte
}

const (
	// CertificateSize is the width of a certificate.
	CertificateSize = 209
	// MaxLeaseSeconds is the longest lease that a certificate may state.
	MaxLeaseSeconds      = 60
	certificateVersion   = 1
	certificateDomain    = "phux-coordinator-activation/v1\x00"
	certificateSignature = 145 // offset of the signature
)

func (c *Certificate) Image(i *codec.Image) {
	version := uint8(certificateVersion)
	codec.ImgEnum8(i, &version, certificateVersion, certificateVersion)
	codec.ImgID16(i, &c.WitnessID)
	codec.ImgID16(i, &c.CoordinatorID)
	codec.ImgNonzeroU64(i, &c.Activation)
	codec.ImgNonzeroU64(i, &c.Epoch)
	codec.ImgID16(i, &c.IncarnationID)
	codec.ImgHash32(i, &c.Token)
	codec.ImgU64(i, &c.IssuedAt)
	codec.ImgU64(i, &c.ExpiresAt)
	i.Check(c.IssuedAt < c.ExpiresAt && c.ExpiresAt-c.IssuedAt <= MaxLeaseSeconds, codec.ErrInvalid)
	codec.ImgHash32(i, &c.WitnessKeyID)
	codec.ImgSig64(i, &c.Signature)
}

// Preimage is what the witness signs: the domain and the 145 bytes before the signature.
// It fails on a certificate of bad form.
func (c *Certificate) Preimage() ([]byte, error) {
	out, err := codec.EncodeImage([]byte(certificateDomain), c)
	if err != nil {
		return nil, err
	}
	return out[:len(certificateDomain)+certificateSignature], nil
}

// Guard is the guard that requests under this certificate carry.
func (c *Certificate) Guard() AuthorityGuard {
	return AuthorityGuard{
		CoordinatorID: c.CoordinatorID, Epoch: c.Epoch, Activation: c.Activation,
		TokenSHA256: sha256.Sum256(c.Token[:]),
	}
}

// CertificateField walks a required certificate as field id of a body.
func CertificateField(b *codec.Body, id int, c *Certificate) {
	codec.Nested(b, id, c, CertificateSize)
}
