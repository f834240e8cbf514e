package handshake

import (
	"encoding/binary"

	"coordinator/frames"
)

// Domains of the two transcripts (protocol.md §5.3). Each ends in a NUL.
const (
	serverDomain = frames.Profile + "\x00server-proof\x00"
	clientDomain = frames.Profile + "\x00client-proof\x00"
)

// terms is what both sides of one exchange agree on. A server keeps its own
// copy from challenge to response and rebuilds both transcripts from it, never
// from bytes that came back.
type terms struct {
	service      string
	major, minor uint16
	clientNonce  [32]byte
	serverNonce  [32]byte
	incarnation  frames.IncarnationID
	bindingKind  frames.BindingKind
	binding      [32]byte
	authority    [32]byte // raw public key
}

// append writes the part that the transcripts share.
func (t *terms) append(dst []byte) []byte {
	dst = appendV16(dst, t.service)
	dst = binary.BigEndian.AppendUint16(dst, t.major)
	dst = binary.BigEndian.AppendUint16(dst, t.minor)
	dst = append(dst, t.clientNonce[:]...)
	dst = append(dst, t.serverNonce[:]...)
	dst = append(dst, t.incarnation[:]...)
	dst = append(dst, byte(t.bindingKind))
	dst = append(dst, t.binding[:]...)
	return append(dst, t.authority[:]...)
}

// server is the transcript that the authority key signs.
func (t *terms) server() []byte { return t.append([]byte(serverDomain)) }

// client is the transcript that the workload key signs.
func (t *terms) client(authorityProof [64]byte, key frames.KeyID, expiry uint64, scope []byte) []byte {
	dst := t.append([]byte(clientDomain))
	dst = append(dst, authorityProof[:]...)
	dst = append(dst, key[:]...)
	dst = binary.BigEndian.AppendUint64(dst, expiry)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(scope)))
	return append(dst, scope...)
}

// appendV16 writes a u16 length and the bytes. Service names are constants of
// this program, far below the limit.
func appendV16(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}
