package frames

import (
	"encoding/binary"

	"coordinator/codec"
)

// Protocol version (protocol.md header, §5.6). Patch may differ between peers.
const (
	VersionMajor = 0
	VersionMinor = 1
	VersionPatch = 0
)

// Names of the endpoint and of the workload profile (§1.1, §5).
const (
	ALPN    = "phux-coordinator/1"
	Service = "phux-coordinator"
	Profile = "phux-workload/v1"
)

// A Version is fields 1-3 of every hello.
type Version struct{ Major, Minor, Patch uint16 }

// CurrentVersion is the version that this package speaks.
func CurrentVersion() Version { return Version{VersionMajor, VersionMinor, VersionPatch} }

// Layout walks the version as fields 1-3.
func (v *Version) Layout(b *codec.Body) {
	codec.U16(b, 1, &v.Major)
	codec.U16(b, 2, &v.Minor)
	codec.U16(b, 3, &v.Patch)
}

// Compatible reports whether both speak the same major and minor version.
func (v Version) Compatible(o Version) bool { return v.Major == o.Major && v.Minor == o.Minor }

// HelloVersion finds fields 1-3 at the head of a hello's body and looks at nothing
// behind them, so that a version difference is told before anything else is parsed
// (§5.5). The scan stops at the first fault; ok is false when major and minor were not
// both found, two bytes wide, by then. The patch may differ, so its form is left to the
// decoder.
func HelloVersion(body []byte) (v Version, ok bool) {
	fields := codec.ScanFields(body, func(id uint32) bool { return id <= 3 })
	var major, minor bool
	for _, f := range fields {
		if len(f.Value) != 2 {
			continue
		}
		n := binary.BigEndian.Uint16(f.Value)
		switch f.ID {
		case 1:
			v.Major, major = n, true
		case 2:
			v.Minor, minor = n, true
		case 3:
			v.Patch = n
		}
	}
	return v, major && minor
}

// CoordHello opens a connection, client to server (§5.6).
//
//	1 protocol_major u16      8 max_page_bytes u32
//	2 protocol_minor u16      9 max_page_records u16
//	3 protocol_patch u16     10 max_typed_payload_bytes u32
//	4 client_name str<=128   11 max_event_credit_count u32
//	5 offered_caps u64       12 max_event_credit_bytes u32
//	6 required_caps u64      13 workload_offer WorkloadOffer
//	7 max_frame_bytes u32
//
// An absent field 13 decodes (HasOffer false), because its code is that of a failed
// authentication and not of a bad form [D-38]; [Negotiate] refuses it.
type CoordHello struct {
	Version  Version
	Name     string
	Offered  Capability
	Required Capability
	Limits   Limits
	HasOffer bool
	Offer    WorkloadOffer
}

func (*CoordHello) Type() Type { return TypeCoordHello }

func (m *CoordHello) Layout(b *codec.Body) {
	m.Version.Layout(b)
	codec.Str(b, 4, &m.Name, MaxName)
	codec.U64(b, 5, &m.Offered)
	codec.U64(b, 6, &m.Required)
	m.Limits.layout(b, 7)
	codec.OptNested(b, 13, &m.HasOffer, &m.Offer, MaxHandshakeBytes)
}

// CoordHelloOK ends the handshake, server to client (§5.6).
//
//	1 protocol_major u16         9 max_page_bytes u32
//	2 protocol_minor u16        10 max_page_records u16
//	3 protocol_patch u16        11 max_typed_payload_bytes u32
//	4 negotiated_caps u64       12 max_event_credit_count u32
//	5 coordinator_id bytes16    13 max_event_credit_bytes u32
//	6 authority_epoch u64       14 workload_grant WorkloadGrant
//	7 incarnation_id bytes16    15 operation_result_retention_secs u64 >= 2,592,000
//	8 max_frame_bytes u32       16 activation_certificate bytes209
type CoordHelloOK struct {
	Version       Version
	Capabilities  Capability
	CoordinatorID CoordinatorID
	Epoch         AuthorityEpoch
	IncarnationID IncarnationID
	Limits        Limits
	Grant         WorkloadGrant
	RetentionSecs uint64
	Certificate   Certificate
}

func (*CoordHelloOK) Type() Type { return TypeCoordHelloOK }

func (m *CoordHelloOK) Layout(b *codec.Body) {
	m.Version.Layout(b)
	codec.U64(b, 4, &m.Capabilities)
	codec.ID16(b, 5, &m.CoordinatorID)
	codec.NonzeroU64(b, 6, &m.Epoch)
	codec.ID16(b, 7, &m.IncarnationID)
	m.Limits.layout(b, 8)
	codec.Nested(b, 14, &m.Grant, MaxHandshakeBytes)
	codec.U64(b, 15, &m.RetentionSecs)
	b.Check(m.RetentionSecs >= MinOperationRetained, 15, codec.ErrUnderMin)
	CertificateField(b, 16, &m.Certificate)
}

// Negotiate applies the hello rules that need the server's offer, in the order of §5.5
// [D-38] after version and form: limits, profile, required capabilities.
func Negotiate(m *CoordHello, offer Limits, caps Capability) (Limits, Capability, error) {
	limits, err := m.Limits.Select(offer)
	if err != nil {
		return Limits{}, 0, err
	}
	if !m.HasOffer || m.Offer.Profile != Profile {
		return Limits{}, 0, Refuse(CodeAuthenticationFailed, "no workload offer of profile %s", Profile)
	}
	both := m.Offered & caps
	if !m.Offered.Has(m.Required) || !both.Has(m.Required) {
		return Limits{}, 0, Refuse(CodeCapabilityRequired, "a required capability is not offered by both sides")
	}
	return limits, both, nil
}
