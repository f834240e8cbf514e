package handshake

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"coordinator/frames"
	"coordinator/internal/sock"
)

// A Channel is what a transport contributes to the proof: bytes that both of
// its ends can compute and nobody outside can steer (protocol.md §5.4).
type Channel interface {
	Kind() frames.BindingKind
	Binding(serverNonce [32]byte, service string, major, minor uint16) ([32]byte, error)
}

// UDSPeer binds to the process that connected to a Unix socket. The server
// fills it from the kernel (sock.PeerCred), the client from itself
// (sock.SelfCred), so equal bindings mean that the kernel named this client.
type UDSPeer struct{ sock.Cred }

// Kind is UDS_PEER.
func (UDSPeer) Kind() frames.BindingKind { return frames.BindingUDSPeer }

// Binding hashes the server nonce and the peer's uid, gid and pid.
func (p UDSPeer) Binding(serverNonce [32]byte, _ string, _, _ uint16) ([32]byte, error) {
	if p.PID == 0 {
		return [32]byte{}, errors.New("uds channel: the peer's process id is not known")
	}
	b := append([]byte(frames.Profile+"\x00uds-peer\x00"), serverNonce[:]...)
	b = binary.BigEndian.AppendUint64(b, p.UID)
	b = binary.BigEndian.AppendUint64(b, p.GID)
	b = binary.BigEndian.AppendUint64(b, p.PID)
	return sha256.Sum256(b), nil
}

// TLSExporter binds to one completed TLS 1.3 session. Export is that session's
// ExportKeyingMaterial; it must not be callable before the handshake is done.
type TLSExporter struct {
	Export func(label string, context []byte, length int) ([]byte, error)
}

// Kind is TLS_EXPORTER.
func (TLSExporter) Kind() frames.BindingKind { return frames.BindingTLSExporter }

// Binding exports 32 bytes under the profile's label and a context that names
// service and version.
func (e TLSExporter) Binding(_ [32]byte, service string, major, minor uint16) ([32]byte, error) {
	context := tlsContext(service, major, minor)
	out, err := e.Export(frames.Profile, context[:], 32)
	if err != nil {
		return [32]byte{}, fmt.Errorf("tls channel: %w", err)
	}
	if len(out) != 32 {
		return [32]byte{}, fmt.Errorf("tls channel: exporter gave %d bytes, want 32", len(out))
	}
	return [32]byte(out), nil
}

func tlsContext(service string, major, minor uint16) [32]byte {
	b := appendV16([]byte(frames.Profile+"\x00tls-context\x00"), service)
	b = binary.BigEndian.AppendUint16(b, major)
	b = binary.BigEndian.AppendUint16(b, minor)
	return sha256.Sum256(b)
}
