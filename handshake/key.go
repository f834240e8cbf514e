package handshake

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"coordinator/frames"
	"coordinator/internal/durable"
)

// A Signer makes Ed25519 signatures under one public key. The key may live
// elsewhere, in an agent, so a signature can fail.
type Signer interface {
	Public() [32]byte
	Sign(msg []byte) ([64]byte, error)
}

// A Key is a Signer over a 32-byte seed. However it is formatted, logged or
// marshalled it shows its public half alone.
type Key struct {
	pub [32]byte
	// The private half sits in a closure: printers that walk unexported fields
	// by reflection find an address there and no bytes.
	sign func(msg []byte) []byte
}

// NewKey makes the key of a seed. The caller keeps the seed and should clear it.
func NewKey(seed [32]byte) *Key {
	priv := ed25519.NewKeyFromSeed(seed[:])
	k := &Key{sign: func(msg []byte) []byte { return ed25519.Sign(priv, msg) }}
	copy(k.pub[:], priv[32:])
	return k
}

// Public returns the raw public key.
func (k Key) Public() [32]byte { return k.pub }

// Sign signs msg; it never fails.
func (k Key) Sign(msg []byte) ([64]byte, error) { return [64]byte(k.sign(msg)), nil }

// String is the text form of the public key.
func (k Key) String() string { return FormatPublicKey(k.pub) }

// GoString is String; %#v must not print the struct.
func (k Key) GoString() string { return k.String() }

// Format writes String for every verb, since some verbs walk the fields.
func (k Key) Format(s fmt.State, _ rune) { io.WriteString(s, k.String()) }

// MarshalText is String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LogValue is String.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

const seedSize = ed25519.SeedSize

// LoadKey reads a 32-byte seed from a private file (protocol.md §5.1). It
// never makes one. Unsafe files are a *durable.UnsafeFileError.
func LoadKey(path string) (*Key, error) { return loadKey(path, durable.ReadPrivate) }

// LoadClientKey is LoadKey for the key of a client, whose file may lie in any
// directory that nobody else can change; the 0700 directory of §5.1 is a rule
// for the state directories of daemons.
func LoadClientKey(path string) (*Key, error) { return loadKey(path, durable.ReadOwned) }

func loadKey(path string, read func(path string, max int64) ([]byte, error)) (*Key, error) {
	raw, err := read(path, seedSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key file: %w; only an explicit init or keygen makes one", err)
	}
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer clear(raw)
	if len(raw) != seedSize {
		return nil, fmt.Errorf("key file: %w", &durable.UnsafeFileError{Path: path,
			Problem: fmt.Sprintf("holds %d bytes, a key file holds exactly %d", len(raw), seedSize),
			Mend:    "restore it from its backup, or make a new key"})
	}
	return NewKey([32]byte(raw)), nil
}

// CreateKey draws a seed from rand and writes it to a new private file, whose
// directory must exist and be private. A file that is there already stays
// untouched and the error matches fs.ErrExist.
func CreateKey(path string, rand io.Reader) (*Key, error) {
	if err := durable.CheckPrivateDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	return createKey(path, rand, func(path string, seed []byte) error {
		return durable.Create(path, seed, durable.PrivateFile)
	})
}

// CreateClientKey is CreateKey for a file that [LoadClientKey] is to read.
func CreateClientKey(path string, rand io.Reader) (*Key, error) {
	return createKey(path, rand, durable.CreateOwned)
}

func createKey(path string, rand io.Reader, create func(path string, seed []byte) error) (*Key, error) {
	var seed [seedSize]byte
	defer clear(seed[:])
	if _, err := io.ReadFull(rand, seed[:]); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	if err := create(path, seed[:]); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	return NewKey(seed), nil
}

// Prefixes of the two text forms; after each come 64 lowercase hex digits and
// nothing else (protocol.md §5.1).
const (
	fingerprintPrefix = "sha256:"
	publicKeyPrefix   = "ed25519:"
)

// ErrTextForm says that a string is not the text form of a key or fingerprint.
var ErrTextForm = errors.New("not a prefix and 64 lowercase hex digits")

// KeyIDOf is the principal of a raw workload public key.
func KeyIDOf(pub [32]byte) frames.KeyID { return sha256.Sum256(pub[:]) }

// FingerprintOf is what a client pins of a raw authority public key.
func FingerprintOf(pub [32]byte) frames.Fingerprint { return sha256.Sum256(pub[:]) }

// FormatFingerprint is the text form of a fingerprint.
func FormatFingerprint(f frames.Fingerprint) string { return formatHex(fingerprintPrefix, f) }

// ParseFingerprint reads the text form of a fingerprint.
func ParseFingerprint(s string) (frames.Fingerprint, error) { return parseHex(fingerprintPrefix, s) }

// FormatKeyID is the text form of a key id, that of fingerprints.
func FormatKeyID(id frames.KeyID) string { return formatHex(fingerprintPrefix, id) }

// ParseKeyID reads the text form of a key id.
func ParseKeyID(s string) (frames.KeyID, error) { return parseHex(fingerprintPrefix, s) }

// FormatPublicKey is the text form of a raw public key.
func FormatPublicKey(pub [32]byte) string { return formatHex(publicKeyPrefix, pub) }

// ParsePublicKey reads the text form of a public key and refuses what
// CheckPublicKey refuses.
func ParsePublicKey(s string) ([32]byte, error) {
	pub, err := parseHex(publicKeyPrefix, s)
	if err != nil {
		return [32]byte{}, err
	}
	if err := CheckPublicKey(pub[:]); err != nil {
		return [32]byte{}, err
	}
	return pub, nil
}

func formatHex(prefix string, v [32]byte) string { return prefix + hex.EncodeToString(v[:]) }

func parseHex(prefix, s string) (v [32]byte, err error) {
	digits, ok := strings.CutPrefix(s, prefix)
	if !ok || len(digits) != 64 || strings.ToLower(digits) != digits {
		return v, fmt.Errorf("%s…: %w", prefix, ErrTextForm)
	}
	if _, err := hex.Decode(v[:], []byte(digits)); err != nil {
		return [32]byte{}, fmt.Errorf("%s…: %w", prefix, ErrTextForm)
	}
	return v, nil
}
