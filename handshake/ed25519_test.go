package handshake

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"filippo.io/edwards25519"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type signatureVector struct {
	Name      string
	PublicKey hexBytes `json:"public_key"`
	Message   hexBytes
	Signature hexBytes
	Valid     bool
}

func TestC04_SignatureVectors(t *testing.T) {
	var vectors []signatureVector
	loadVectors(t, "ed25519.json", &vectors)
	require.NotEmpty(t, vectors)
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			require.Equal(t, v.Valid, Verify([32]byte(v.PublicKey), v.Message, v.Signature))
			require.False(t, Verify([32]byte(v.PublicKey), v.Message, v.Signature[:63]))
			require.False(t, Verify([32]byte(v.PublicKey), v.Message, append(v.Signature, 0)))
		})
	}
}

// Test 1 and 3 of RFC 8032 §7.1.
func TestRFC8032(t *testing.T) {
	for _, tt := range []struct{ seed, pub, msg, sig string }{
		{"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
			"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
			"e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
		{"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
			"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
			"6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
	} {
		raw := func(s string) []byte { b, err := hex.DecodeString(s); require.NoError(t, err); return b }
		key := NewKey([32]byte(raw(tt.seed)))
		require.Equal(t, raw(tt.pub), key.pub[:])
		sig, err := key.Sign(raw(tt.msg))
		require.NoError(t, err)
		require.Equal(t, raw(tt.sig), sig[:])
		require.True(t, Verify(key.pub, raw(tt.msg), sig[:]))
	}
}

func TestVerifyAcceptsItsOwnAndNothingNear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := NewKey([32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "seed")))
		msg := rapid.SliceOf(rapid.Byte()).Draw(t, "msg")
		sig, _ := key.Sign(msg)
		if !Verify(key.pub, msg, sig[:]) {
			t.Fatal("own signature refused")
		}
		bit := rapid.IntRange(0, 511).Draw(t, "bit")
		sig[bit/8] ^= 1 << (bit % 8)
		if Verify(key.pub, msg, sig[:]) {
			t.Fatalf("signature with bit %d flipped accepted", bit)
		}
	})
}

// decodedPoint judges an encoding by the point that it decodes to.
func decodedPoint(b []byte) error {
	p, err := new(edwards25519.Point).SetBytes(b)
	if err != nil || !bytes.Equal(p.Bytes(), b) {
		return ErrNotCanonical
	}
	if new(edwards25519.Point).MultByCofactor(p).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return ErrSmallOrder
	}
	return nil
}

// TestKeysAreJudgedAsTheirPoints holds what is read off the encoding against the arithmetic.
func TestKeysAreJudgedAsTheirPoints(t *testing.T) {
	order8, err := hex.DecodeString("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
	require.NoError(t, err)
	torsion, err := new(edwards25519.Point).SetBytes(order8)
	require.NoError(t, err)
	weak := map[string]bool{}
	for p, i := edwards25519.NewIdentityPoint(), 0; i < 8; i++ {
		weak[string(p.Bytes())] = true
		require.ErrorIs(t, CheckPublicKey(p.Bytes()), ErrSmallOrder)
		p.Add(p, torsion)
	}
	require.Len(t, weak, 8)
	for low := range 256 { // every encoding at both ends of the field and beyond it
		for _, rest := range []byte{0, 0xff} {
			for _, top := range []byte{0, 0x7f, 0x80, 0xff} {
				b := bytes.Repeat([]byte{rest}, 32)
				b[0], b[31] = byte(low), top
				require.Equal(t, decodedPoint(b), CheckPublicKey(b), "%x", b)
			}
		}
	}
	for enc := range weak {
		for bit := range 256 {
			b := []byte(enc)
			b[bit/8] ^= 1 << (bit % 8)
			require.Equal(t, decodedPoint(b), CheckPublicKey(b), "%x", b)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "key")
		require.Equal(t, decodedPoint(b), CheckPublicKey(b))
	})
}

func BenchmarkVerify(b *testing.B) {
	key := NewKey([32]byte{1})
	msg := make([]byte, 200)
	sig, err := key.Sign(msg)
	require.NoError(b, err)
	for b.Loop() {
		if !Verify(key.pub, msg, sig[:]) {
			b.Fatal("own signature refused")
		}
	}
}

// weakKeys are the public keys of the vectors that no registry may enrol.
func weakKeys(t *testing.T) map[string][]byte {
	var vectors []signatureVector
	loadVectors(t, "ed25519.json", &vectors)
	keys := map[string][]byte{"31 bytes": make([]byte, 31), "33 bytes": make([]byte, 33), "none": nil}
	for _, v := range vectors {
		for _, bad := range []string{"small-order A", "non-canonical A", "negative zero A", "A not on"} {
			if len(v.Name) >= len(bad) && v.Name[:len(bad)] == bad {
				keys[v.Name] = v.PublicKey
			}
		}
	}
	require.Greater(t, len(keys), 12)
	return keys
}

func TestC04_WeakKeysAreRefusedOnEveryRoute(t *testing.T) {
	for name, pub := range weakKeys(t) {
		t.Run(name, func(t *testing.T) {
			require.Error(t, CheckPublicKey(pub))
			text := "ed25519:" + hex.EncodeToString(pub)
			_, err := ParsePublicKey(text)
			require.Error(t, err)

			path := filepath.Join(stateDir(t), "workload-keys")
			line := text + " scope=work_read expires=2100-01-01T00:00:00Z label=weak\n"
			require.NoError(t, os.WriteFile(path, append(registryText(testRecord(1)), line...), 0o600))
			_, err = OpenRegistry(path, RegistryOptions{KnownScopes: testScopes})
			var bad *RegistryError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, 3, bad.Line)
			if len(pub) != 32 {
				return
			}
			rec := testRecord(1)
			rec.PublicKey = [32]byte(pub)
			writeRegistry(t, path)
			require.Error(t, AddRecord(path, rec, testRules))

			// Enrolled all the same, behind every check: the identity signature
			// that the standard library takes for some of these must not pass.
			forged := make([]byte, 64)
			forged[0] = 1
			require.False(t, Verify(rec.PublicKey, []byte("any message"), forged))
		})
	}
	identity := make([]byte, 32)
	identity[0] = 1
	forged := make([]byte, 64)
	forged[0] = 1
	require.True(t, ed25519.Verify(identity, []byte("any message"), forged), "the standard library has become strict; the wrapper may go")
}

func TestCheckPublicKeyTakesMixedOrder(t *testing.T) {
	pub, err := hex.DecodeString("545f08550f972435974b749fe72150319c7122dd9b186189edd990afdd95b9ff")
	require.NoError(t, err)
	require.NoError(t, CheckPublicKey(pub))
	require.ErrorIs(t, CheckPublicKey(make([]byte, 32)), ErrSmallOrder)
}
