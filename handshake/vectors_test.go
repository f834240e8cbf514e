package handshake

import (
	"errors"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

type handshakeVector struct {
	AuthoritySeed      hexBytes `json:"authority_seed"`
	AuthorityPublicKey hexBytes `json:"authority_public_key"`
	WorkloadSeed       hexBytes `json:"workload_seed"`
	WorkloadPublicKey  hexBytes `json:"workload_public_key"`
	KeyID              hexBytes `json:"key_id"`
	Service            string
	ClientNonce        hexBytes `json:"client_nonce"`
	ServerNonce        hexBytes `json:"server_nonce"`
	Incarnation        hexBytes
	Peer               struct{ UID, GID, PID uint64 }
	UDSBinding         hexBytes `json:"uds_binding"`
	TLSContext         hexBytes `json:"tls_context"`
	TLSContextWitness  hexBytes `json:"tls_context_witness"`
	ServerTranscript   hexBytes `json:"server_transcript"`
	AuthorityProof     hexBytes `json:"authority_proof"`
	RequestedExpiry    uint64   `json:"requested_expiry"`
	ScopeBytes         hexBytes `json:"scope_bytes"`
	ClientTranscript   hexBytes `json:"client_transcript"`
	WorkloadProof      hexBytes `json:"workload_proof"`
	FingerprintText    string   `json:"fingerprint_text"`
}

func TestC04_HandshakeVector(t *testing.T) {
	var v handshakeVector
	loadVectors(t, "handshake.json", &v)
	authority, workload := NewKey([32]byte(v.AuthoritySeed)), NewKey([32]byte(v.WorkloadSeed))
	require.Equal(t, []byte(v.AuthorityPublicKey), authority.pub[:])
	require.Equal(t, []byte(v.WorkloadPublicKey), workload.pub[:])
	id := KeyIDOf(workload.pub)
	require.Equal(t, []byte(v.KeyID), id[:])
	require.Equal(t, v.FingerprintText, FormatFingerprint(FingerprintOf(authority.pub)))

	uds := UDSPeer{sock.Cred{UID: v.Peer.UID, GID: v.Peer.GID, PID: v.Peer.PID}}
	binding, err := uds.Binding([32]byte(v.ServerNonce), v.Service, 0, 1)
	require.NoError(t, err)
	require.Equal(t, []byte(v.UDSBinding), binding[:])
	for service, want := range map[string]hexBytes{v.Service: v.TLSContext, "phux-witness": v.TLSContextWitness} {
		_, err := TLSExporter{func(label string, context []byte, n int) ([]byte, error) {
			require.Equal(t, "phux-workload/v1", label)
			require.Equal(t, []byte(want), context)
			require.Equal(t, 32, n)
			return make([]byte, 32), nil
		}}.Binding([32]byte{}, service, 0, 1)
		require.NoError(t, err)
	}

	x := terms{
		service: v.Service, minor: 1, clientNonce: [32]byte(v.ClientNonce), serverNonce: [32]byte(v.ServerNonce),
		incarnation: frames.IncarnationID(v.Incarnation), bindingKind: uds.Kind(), binding: binding, authority: authority.pub,
	}
	require.Equal(t, []byte(v.ServerTranscript), x.server())
	proof, err := authority.Sign(x.server())
	require.NoError(t, err)
	require.Equal(t, []byte(v.AuthorityProof), proof[:])
	transcript := x.client(proof, id, v.RequestedExpiry, v.ScopeBytes)
	require.Equal(t, []byte(v.ClientTranscript), transcript)
	sig, err := workload.Sign(transcript)
	require.NoError(t, err)
	require.Equal(t, []byte(v.WorkloadProof), sig[:])
}

func TestTLSExporterFailures(t *testing.T) {
	broken := errors.New("no keys yet")
	for name, export := range map[string]func(string, []byte, int) ([]byte, error){
		"error": func(string, []byte, int) ([]byte, error) { return nil, broken },
		"short": func(string, []byte, int) ([]byte, error) { return make([]byte, 31), nil },
	} {
		_, err := TLSExporter{export}.Binding([32]byte{}, "s", 0, 1)
		require.Error(t, err, name)
	}
	_, err := UDSPeer{}.Binding([32]byte{1}, "s", 0, 1)
	require.Error(t, err, "a peer without a process id binds nothing")
}

func TestCertificateVectors(t *testing.T) {
	var v struct {
		Pins struct {
			WitnessID     hexBytes `json:"witness_id"`
			WitnessKey    hexBytes `json:"witness_public_key"`
			CoordinatorID hexBytes `json:"coordinator_id"`
		}
		Cases []struct {
			Name        string
			Certificate hexBytes
			Now         uint64
			Valid       bool
		}
	}
	loadVectors(t, "certificates.json", &v)
	require.NotEmpty(t, v.Cases)
	pins := Pins{frames.WitnessID(v.Pins.WitnessID), [32]byte(v.Pins.WitnessKey), frames.CoordinatorID(v.Pins.CoordinatorID)}
	for _, c := range v.Cases {
		t.Run(c.Name, func(t *testing.T) {
			var cert frames.Certificate
			err := codec.DecodeImage(&cert, c.Certificate)
			if err == nil {
				err = VerifyCertificate(&cert, pins, c.Now)
			}
			require.Equal(t, c.Valid, err == nil, "%v", err)
		})
	}
}

func TestCertificateRefusalsAreTold(t *testing.T) {
	key := seededKey(4)
	pins := Pins{frames.WitnessID{1}, key.pub, frames.CoordinatorID{2}}
	forge := func(change func(c *frames.Certificate)) *frames.Certificate {
		c := &frames.Certificate{WitnessID: pins.WitnessID, CoordinatorID: pins.CoordinatorID, Activation: 1, Epoch: 1,
			IncarnationID: testIncarnation, Token: [32]byte{9}, IssuedAt: testNow, ExpiresAt: testNow + 15, WitnessKeyID: KeyIDOf(key.pub)}
		if change != nil {
			change(c)
		}
		if pre, err := c.Preimage(); err == nil {
			c.Signature, _ = key.Sign(pre)
		}
		return c
	}
	for _, tt := range []struct {
		name  string
		cert  *frames.Certificate
		now   uint64
		cause error
	}{
		{"two seconds ahead", forge(nil), testNow - 2, nil},
		{"three seconds ahead", forge(nil), testNow - 3, ErrCertificateEarly},
		{"last second", forge(nil), testNow + 14, nil},
		{"at its end", forge(nil), testNow + 15, ErrCertificateExpired},
		{"other witness", forge(func(c *frames.Certificate) { c.WitnessID[3]++ }), testNow, ErrCertificatePin},
		{"other coordinator", forge(func(c *frames.Certificate) { c.CoordinatorID[3]++ }), testNow, ErrCertificatePin},
		{"other key id", forge(func(c *frames.Certificate) { c.WitnessKeyID[3]++ }), testNow, ErrCertificatePin},
		{"zero epoch", forge(func(c *frames.Certificate) { c.Epoch = 0 }), testNow, ErrCertificateForm},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := VerifyCertificate(tt.cert, pins, tt.now)
			if tt.cause == nil {
				require.NoError(t, err)
				return
			}
			var ce *CertificateError
			require.ErrorAs(t, err, &ce)
			require.ErrorIs(t, err, tt.cause)
		})
	}
	altered := forge(nil)
	altered.Token[0]++
	require.ErrorIs(t, VerifyCertificate(altered, pins, testNow), ErrCertificateSignature)
}
