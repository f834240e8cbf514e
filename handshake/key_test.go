package handshake

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"coordinator/internal/durable"

	"github.com/stretchr/testify/require"
)

func TestKeyFiles(t *testing.T) {
	dir := stateDir(t)
	path := filepath.Join(dir, "k.ed25519")
	_, err := LoadKey(path)
	require.ErrorIs(t, err, fs.ErrNotExist)

	seed := bytes.Repeat([]byte{0x5a}, 32)
	made, err := CreateKey(path, bytes.NewReader(seed))
	require.NoError(t, err)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, seed, raw)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())

	loaded, err := LoadKey(path)
	require.NoError(t, err)
	require.Equal(t, made.Public(), loaded.Public())
	sig, err := loaded.Sign([]byte("m"))
	require.NoError(t, err)
	require.True(t, Verify(made.Public(), []byte("m"), sig[:]))

	_, err = CreateKey(path, bytes.NewReader(make([]byte, 32)))
	require.ErrorIs(t, err, fs.ErrExist)
	again, err := LoadKey(path)
	require.NoError(t, err)
	require.Equal(t, made.Public(), again.Public(), "the old key must stand")

	_, err = CreateKey(filepath.Join(dir, "short"), bytes.NewReader(seed[:31]))
	require.Error(t, err)
	require.NoFileExists(t, filepath.Join(dir, "short"))
}

func TestC04_UnsafeKeyFilesAreRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, path string)
	}{
		{"mode 0640", func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0o640)) }},
		{"mode 0400", func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0o400)) }},
		{"directory mode 0755", func(t *testing.T, p string) { require.NoError(t, os.Chmod(filepath.Dir(p), 0o755)) }},
		{"symlink", func(t *testing.T, p string) {
			require.NoError(t, os.Rename(p, p+"2"))
			require.NoError(t, os.Symlink(p+"2", p))
		}},
		{"31 bytes", func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, 31)) }},
		{"33 bytes", func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, 33)) }},
		{"empty", func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, 0)) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(stateDir(t), "k")
			secret := []byte("secret-seed-of-exactly-32-bytes!")
			_, err := CreateKey(path, bytes.NewReader(secret))
			require.NoError(t, err)
			tt.damage(t, path)
			_, err = LoadKey(path)
			var unsafe *durable.UnsafeFileError
			require.ErrorAs(t, err, &unsafe)
			require.Contains(t, err.Error(), filepath.Dir(path))
			require.NotEmpty(t, unsafe.Mend)
			require.NotContains(t, err.Error(), "secret-seed")
		})
	}
	open := t.TempDir() // 0755
	require.NoError(t, os.Chmod(open, 0o755))
	_, err := CreateKey(filepath.Join(open, "k"), bytes.NewReader(make([]byte, 32)))
	var unsafe *durable.UnsafeFileError
	require.ErrorAs(t, err, &unsafe)
}

func TestC04_SecretsDoNotLeak(t *testing.T) {
	seed := [32]byte{201, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212}
	key := NewKey(seed)
	type holder struct {
		Public  *Key
		private *Key
		value   Key
	}
	h := holder{key, key, *key}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", key, "value", *key, "holder", h)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", key, "value", *key, "holder", h)
	j, err := json.Marshal(map[string]any{"k": key, "v": *key, "h": h})
	require.NoError(t, err)
	out := log.String() + string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%t", "%p", "%c", "%U"} {
		for _, v := range []any{key, *key, h, &h, []*Key{key}, []Key{*key}, map[string]Key{"k": *key}} {
			out += fmt.Sprintf(verb, v) + "\n"
		}
	}
	out += fmt.Sprint(errors.Join(fmt.Errorf("wrapped %v", key)))
	require.Contains(t, out, key.String())
	for name, secret := range map[string]string{
		"hex":     hex.EncodeToString(seed[:8]),
		"HEX":     strings.ToUpper(hex.EncodeToString(seed[:8])),
		"decimal": strings.Trim(fmt.Sprint(seed[:8]), "[]"),
		"go":      "0xc9, 0xca, 0xcb",
		"octal":   strings.Trim(fmt.Sprintf("%o", seed[:8]), "[]"),
		"binary":  strings.Trim(fmt.Sprintf("%b", seed[:8]), "[]"),
		"base64":  base64.StdEncoding.EncodeToString(seed[:9]),
		"raw":     string(seed[:8]),
	} {
		require.NotContains(t, out, secret, name)
	}
}

func TestTextForms(t *testing.T) {
	pub := seededKey(1).Public()
	text := FormatPublicKey(pub)
	back, err := ParsePublicKey(text)
	require.NoError(t, err)
	require.Equal(t, pub, back)
	f := FingerprintOf(pub)
	gotF, err := ParseFingerprint(FormatFingerprint(f))
	require.NoError(t, err)
	require.Equal(t, f, gotF)
	gotID, err := ParseKeyID(FormatKeyID(KeyIDOf(pub)))
	require.NoError(t, err)
	require.Equal(t, KeyIDOf(pub), gotID)

	good := FormatFingerprint(f)
	for _, bad := range []string{"", "sha256:", good[:len(good)-1], good + "0", " " + good, good + " ",
		strings.ToUpper(good), "sha256:" + strings.ToUpper(good[7:]), strings.Replace(good, "sha256", "sha512", 1),
		good[7:], "sha256:" + strings.Repeat("g", 64), text} {
		_, err := ParseFingerprint(bad)
		require.ErrorIs(t, err, ErrTextForm, bad)
	}
	_, err = ParsePublicKey(good)
	require.ErrorIs(t, err, ErrTextForm)
}

// TestClientKeysNeedNoPrivateDirectory holds a client's key to its own mode and to a
// directory that nobody else can change, and a daemon's to a private directory.
func TestClientKeysNeedNoPrivateDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "client.ed25519")
	key, err := CreateClientKey(path, rand.Reader)
	require.NoError(t, err)
	_, err = CreateClientKey(path, rand.Reader)
	require.ErrorIs(t, err, fs.ErrExist)
	back, err := LoadClientKey(path)
	require.NoError(t, err)
	require.Equal(t, key.Public(), back.Public())

	var unsafe *durable.UnsafeFileError
	_, err = LoadKey(path)
	require.ErrorAs(t, err, &unsafe, "a daemon's key")
	_, err = CreateKey(path+"2", rand.Reader)
	require.ErrorAs(t, err, &unsafe, "a daemon's key")
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err = LoadClientKey(path)
	require.ErrorAs(t, err, &unsafe)
	_, err = CreateClientKey(path+"2", rand.Reader)
	require.ErrorAs(t, err, &unsafe)
	require.NoFileExists(t, path+"2")
}
