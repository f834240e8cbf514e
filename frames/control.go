package frames

import "coordinator/codec"

// RequestID numbers a request on one connection, nonzero (protocol.md §7).
type RequestID uint32

// Ack ends a request that has no other reply (§7).
//
//	1 request_id:u32
type Ack struct{ RequestID RequestID }

func (*Ack) Type() Type              { return TypeAck }
func (m *Ack) Layout(b *codec.Body)  { codec.NonzeroU32(b, 1, &m.RequestID) }
func (*Ping) Type() Type             { return TypePing }
func (m *Ping) Layout(b *codec.Body) { codec.U64(b, 1, &m.Nonce) }
func (*Pong) Type() Type             { return TypePong }
func (m *Pong) Layout(b *codec.Body) { codec.U64(b, 1, &m.Nonce) }
func (*AuthorityRenewed) Type() Type { return TypeAuthorityRenewed }
func (*CoordError) Type() Type       { return TypeCoordError }

// Ping is COORD_PING (§7).
//
//	1 nonce:u64
type Ping struct{ Nonce uint64 }

// Pong is COORD_PONG, the answer to a ping with its nonce (§7).
//
//	1 nonce:u64
type Pong struct{ Nonce uint64 }

// AuthorityRenewed is COORD_AUTHORITY_RENEWED (§4, §7).
//
//	1 activation_certificate bytes209
type AuthorityRenewed struct{ Certificate Certificate }

func (m *AuthorityRenewed) Layout(b *codec.Body) { CertificateField(b, 1, &m.Certificate) }

// CoordError is COORD_ERROR (§7, §13). RequestID zero stands for none [D-23].
//
//	1 request_id:optional<u32>  2 code:u16  3 message:str<=1024
type CoordError struct {
	RequestID RequestID
	Code      Code
	Message   string
}

func (m *CoordError) Layout(b *codec.Body) {
	codec.OptNonzeroU32(b, 1, &m.RequestID)
	codec.U16(b, 2, &m.Code)
	b.Check(b.Failed() || m.Code.Known(), 2, codec.ErrTag)
	codec.Str(b, 3, &m.Message, MaxText)
}
