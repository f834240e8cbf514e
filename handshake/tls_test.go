package handshake

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

var tlsNow = time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)

// shakeTLS runs both configurations against each other.
func shakeTLS(t *testing.T, server, client *tls.Config) (ss, cs tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	sc, cc := tls.Server(a, server), tls.Client(b, client)
	done := make(chan error, 1)
	go func() {
		err := sc.Handshake()
		if err != nil {
			a.Close()
		} else {
			_, err = sc.Write([]byte("x"))
		}
		done <- err
	}()
	clientErr = cc.Handshake()
	if clientErr == nil {
		_, clientErr = io.ReadFull(cc, make([]byte, 1))
	}
	b.Close()
	serverErr = <-done
	a.Close()
	return sc.ConnectionState(), cc.ConnectionState(), serverErr, clientErr
}

func testServerTLS(t *testing.T, key *Key) *tls.Config {
	t.Helper()
	conf, err := ServerTLS(key, "phux-coordinator/1", rand.Reader, tlsNow)
	require.NoError(t, err)
	return conf
}

func TestTLSHandshake(t *testing.T) {
	key, other := NewKey([32]byte{1}), NewKey([32]byte{2})
	pin := FingerprintOf(key.Public())
	now := func() time.Time { return tlsNow }

	t.Run("pinned", func(t *testing.T) {
		ss, cs, serr, cerr := shakeTLS(t, testServerTLS(t, key), ClientTLS(pin, "phux-coordinator/1", now))
		require.NoError(t, serr)
		require.NoError(t, cerr)
		require.EqualValues(t, tls.VersionTLS13, cs.Version)
		require.Equal(t, "phux-coordinator/1", ss.NegotiatedProtocol)
		require.Len(t, cs.PeerCertificates, 2)
		channel := func(s tls.ConnectionState) [32]byte {
			b, err := TLSExporter{Export: s.ExportKeyingMaterial}.Binding([32]byte{}, frames.Service, 0, 1)
			require.NoError(t, err)
			return b
		}
		require.Equal(t, channel(ss), channel(cs))
	})
	t.Run("another authority", func(t *testing.T) {
		_, _, serr, cerr := shakeTLS(t, testServerTLS(t, other), ClientTLS(pin, "phux-coordinator/1", now))
		var bad *PinError
		require.ErrorAs(t, cerr, &bad)
		require.Equal(t, PinError{Got: FingerprintOf(other.Public()), Want: pin}, *bad)
		require.Error(t, serr)
	})
	t.Run("another label", func(t *testing.T) {
		_, _, serr, cerr := shakeTLS(t, testServerTLS(t, key), ClientTLS(pin, "phux-witness/1", now))
		require.Error(t, serr)
		require.Error(t, cerr)
	})
	t.Run("no label", func(t *testing.T) {
		server := testServerTLS(t, key)
		server.NextProtos = nil
		_, _, _, cerr := shakeTLS(t, server, ClientTLS(pin, "phux-coordinator/1", now))
		require.ErrorIs(t, cerr, ErrServerCertificate)
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		server := testServerTLS(t, key)
		server.MinVersion, server.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		_, _, _, cerr := shakeTLS(t, server, ClientTLS(pin, "phux-coordinator/1", now))
		require.Error(t, cerr)
		client := ClientTLS(pin, "phux-coordinator/1", now)
		client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		_, _, serr, _ := shakeTLS(t, testServerTLS(t, key), client)
		require.Error(t, serr)
	})
	t.Run("no session comes back", func(t *testing.T) {
		server := testServerTLS(t, key)
		client := ClientTLS(pin, "phux-coordinator/1", now)
		client.ClientSessionCache = tls.NewLRUClientSessionCache(2)
		client.ServerName = "x"
		for range 2 {
			_, cs, serr, cerr := shakeTLS(t, server, client)
			require.NoError(t, errors.Join(serr, cerr))
			require.False(t, cs.DidResume)
		}
	})
	t.Run("a leaf without its key", func(t *testing.T) {
		// The certificates are public; whoever replays them cannot use them.
		server := testServerTLS(t, key)
		_, wrong, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		server.Certificates[0].PrivateKey = wrong
		_, _, _, cerr := shakeTLS(t, server, ClientTLS(pin, "phux-coordinator/1", now))
		require.Error(t, cerr)
	})
}

func TestServerTLSUsesItsRandomness(t *testing.T) {
	key := NewKey([32]byte{1})
	make1 := func(seed byte) []byte {
		conf, err := ServerTLS(key, "a/1", bytes.NewReader(bytes.Repeat([]byte{seed}, 32)), tlsNow)
		require.NoError(t, err)
		return conf.Certificates[0].Certificate[0]
	}
	require.Equal(t, make1(1), make1(1))
	require.NotEqual(t, make1(1), make1(2))
	_, err := ServerTLS(key, "a/1", iotest.ErrReader(errors.New("no entropy")), tlsNow)
	require.ErrorContains(t, err, "no entropy")
	_, err = ServerTLS(lostAgent{key}, "a/1", rand.Reader, tlsNow)
	require.ErrorContains(t, err, "agent is gone")
	_, err = ResetKey(lostAgent{key})
	require.ErrorContains(t, err, "agent is gone")
}

type lostAgent struct{ *Key }

func (lostAgent) Sign([]byte) ([64]byte, error) { return [64]byte{}, errors.New("agent is gone") }

func TestResetKey(t *testing.T) {
	a, err := ResetKey(NewKey([32]byte{1}))
	require.NoError(t, err)
	again, err := ResetKey(NewKey([32]byte{1}))
	require.NoError(t, err)
	other, err := ResetKey(NewKey([32]byte{2}))
	require.NoError(t, err)
	require.Equal(t, a, again)
	require.NotEqual(t, a, other)
}

// chainMaker builds a chain with one thing about it changed.
type chainMaker struct {
	authority ed25519.PrivateKey // the key whose fingerprint is pinned
	signer    crypto.Signer      // signs the leaf
	caSigner  crypto.Signer      // signs the authority
	caPub     any
	leafPub   any
	ca, leaf  x509.Certificate
	order     func([]*x509.Certificate) []*x509.Certificate
}

func (m *chainMaker) chain(t *testing.T) []*x509.Certificate {
	t.Helper()
	parse := func(template, parent *x509.Certificate, pub, signer any) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, signer)
		require.NoError(t, err)
		c, err := x509.ParseCertificate(der)
		require.NoError(t, err)
		return c
	}
	caParent := m.ca
	ca := parse(&m.ca, &caParent, m.caPub, m.caSigner)
	parent := *ca
	parent.PublicKey = m.signer.Public()
	leaf := parse(&m.leaf, &parent, m.leafPub, m.signer)
	chain := []*x509.Certificate{leaf, ca}
	if m.order != nil {
		chain = m.order(chain)
	}
	return chain
}

func newChainMaker(t *testing.T) *chainMaker {
	pub, authority, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	leafPub, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	m := &chainMaker{authority: authority, signer: authority, caSigner: authority, caPub: pub, leafPub: leafPub}
	m.ca = *certificateTemplate(pub, tlsNow)
	m.ca.Subject = pkix.Name{CommonName: "workload authority"}
	m.ca.IsCA, m.ca.BasicConstraintsValid, m.ca.KeyUsage = true, true, x509.KeyUsageCertSign
	m.leaf = *certificateTemplate(leafPub, tlsNow)
	m.leaf.KeyUsage, m.leaf.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return m
}

// TestC03_ServerChain: the pinned authority key and the leaf that it signed, in
// the one form that is expected, and nothing else.
func TestC03_ServerChain(t *testing.T) {
	_, otherKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	critical := []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3, 4}, Critical: true, Value: []byte{5, 0}}}

	for _, tt := range []struct {
		name string
		edit func(*chainMaker)
		now  time.Time
		want string // empty: accepted
	}{
		{name: "as it should be"},
		{name: "ECDSA leaf", edit: func(m *chainMaker) { m.leafPub = &ecdsaKey.PublicKey }},
		{name: "RSA leaf", edit: func(m *chainMaker) { m.leafPub = &rsaKey.PublicKey }, want: "unexpected kind"},
		{name: "weak leaf key", edit: func(m *chainMaker) { m.leafPub = ed25519.PublicKey(append([]byte{1}, make([]byte, 31)...)) }, want: "small order"},
		{name: "leaf alone", edit: func(m *chainMaker) { m.order = func(c []*x509.Certificate) []*x509.Certificate { return c[:1] } }, want: "1 certificates"},
		{name: "no certificate", edit: func(m *chainMaker) { m.order = func(c []*x509.Certificate) []*x509.Certificate { return nil } }, want: "0 certificates"},
		{name: "a third certificate", edit: func(m *chainMaker) {
			m.order = func(c []*x509.Certificate) []*x509.Certificate { return append(c, c[1]) }
		}, want: "3 certificates"},
		{name: "the wrong way round", edit: func(m *chainMaker) {
			m.order = func(c []*x509.Certificate) []*x509.Certificate { return []*x509.Certificate{c[1], c[0]} }
		}, want: "trusts"},
		{name: "the authority as the leaf", edit: func(m *chainMaker) {
			m.order = func(c []*x509.Certificate) []*x509.Certificate { return []*x509.Certificate{c[1], c[1]} }
		}, want: "an authority itself"},
		{name: "ECDSA authority", edit: func(m *chainMaker) {
			m.caPub, m.caSigner, m.ca.SignatureAlgorithm = &ecdsaKey.PublicKey, ecdsaKey, 0
		}, want: "no Ed25519 key"},
		{name: "another key signed the leaf", edit: func(m *chainMaker) { m.signer = otherKey }, want: "leaf: the authority's signature"},
		{name: "authority signed by another", edit: func(m *chainMaker) {
			m.order = func(c []*x509.Certificate) []*x509.Certificate {
				forged := *c[1]
				forged.Signature = ed25519.Sign(otherKey, forged.RawTBSCertificate)
				return []*x509.Certificate{c[0], &forged}
			}
		}, want: "authority: the authority's signature"},
		{name: "authority altered", edit: func(m *chainMaker) {
			m.order = func(c []*x509.Certificate) []*x509.Certificate {
				forged := *c[1]
				forged.RawTBSCertificate = append(bytes.Clone(forged.RawTBSCertificate), 0)
				return []*x509.Certificate{c[0], &forged}
			}
		}, want: "authority: the authority's signature"},
		{name: "not an authority", edit: func(m *chainMaker) { m.ca.IsCA = false }, want: "may not sign"},
		{name: "authority without the right to sign", edit: func(m *chainMaker) { m.ca.KeyUsage = x509.KeyUsageDigitalSignature }, want: "may not sign"},
		{name: "leaf is an authority", edit: func(m *chainMaker) { m.leaf.IsCA, m.leaf.BasicConstraintsValid = true, true }, want: "an authority itself"},
		{name: "leaf for clients", edit: func(m *chainMaker) { m.leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, want: "not for a TLS server"},
		{name: "leaf that signs nothing", edit: func(m *chainMaker) { m.leaf.KeyUsage = x509.KeyUsageKeyAgreement }, want: "not for a TLS server"},
		{name: "critical extension in the leaf", edit: func(m *chainMaker) { m.leaf.ExtraExtensions = critical }, want: "leaf: has a critical"},
		{name: "critical extension in the authority", edit: func(m *chainMaker) { m.ca.ExtraExtensions = critical }, want: "authority: has a critical"},
		{name: "clock a day and a half behind", now: tlsNow.Add(-36 * time.Hour)},
		{name: "clock three days behind", now: tlsNow.Add(-72 * time.Hour), want: "compare the clocks"},
		{name: "fifty years of uptime", now: tlsNow.AddDate(50, 0, 0)},
		{name: "ended within the leeway", edit: func(m *chainMaker) { m.leaf.NotAfter = tlsNow.Add(-time.Hour) }},
		{name: "ended long ago", edit: func(m *chainMaker) { m.leaf.NotAfter = tlsNow.Add(-25 * time.Hour) }, want: "compare the clocks"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newChainMaker(t)
			if tt.edit != nil {
				tt.edit(m)
			}
			now := tt.now
			if now.IsZero() {
				now = tlsNow
			}
			pin := frames.Fingerprint(sha256.Sum256(m.authority.Public().(ed25519.PublicKey)))
			err := VerifyServerChain(m.chain(t), pin, now)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
			var bad *PinError
			require.True(t, errors.Is(err, ErrServerCertificate) || errors.As(err, &bad), "%v", err)
		})
	}
}
