package backup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func someManifest() *Manifest {
	m := &Manifest{Format: Format, Version: "v1", Source: "/var/lib/c", Host: "h", LinkKey: "ed25519:00", Cut: Cut{
		Schema: 1, CoordinatorID: strings.Repeat("a1", 16), Epoch: 3, Activation: 4, EventCut: 100, Commit: 50,
		Time: time.Unix(1_800_000_000, 0).UTC(), LeaseExpiresAt: 1_800_000_015,
	}}
	for _, name := range append(configFiles, "state.db", "log/0000000000000001.seg") {
		m.Files = append(m.Files, File{Name: name, Bytes: 7, SHA256: strings.Repeat("0", 64)})
	}
	return m
}

// TestAManifestWithAFlippedBitIsNone: whatever bit it is, either the manifest is refused or
// nothing of what it says has changed.
func TestAManifestWithAFlippedBitIsNone(t *testing.T) {
	m := someManifest()
	data, err := m.encode()
	require.NoError(t, err)
	have, problem := parse(data)
	require.Empty(t, problem)
	require.Equal(t, m, have)
	refused := 0
	for i := range data {
		for bit := range 8 {
			data[i] ^= 1 << bit
			if have, problem := parse(data); problem == "" {
				require.Equal(t, m, have)
			} else {
				refused++
			}
			data[i] ^= 1 << bit
		}
	}
	require.Greater(t, refused, 7*len(data))
	for n := range data[:len(data)-1] {
		_, problem := parse(data[:n])
		require.NotEmpty(t, problem, n)
	}
}

func TestWhatAManifestMayList(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Manifest)
		says   string
	}{
		{"nothing wrong", func(*Manifest) {}, ""},
		{"no coordinator", func(m *Manifest) { m.CoordinatorID = "" }, "names no coordinator"},
		{"a way out", func(m *Manifest) { m.Files[0].Name = "../state.db" }, "which no backup has"},
		{"an absolute name", func(m *Manifest) { m.Files[0].Name = "/etc/passwd" }, "which no backup has"},
		{"the link key", func(m *Manifest) { m.Files[0].Name = LinkFile }, "which no backup has"},
		{"a segment of another form", func(m *Manifest) { m.Files[4].Name = "log/1.seg" }, "which no backup has"},
		{"a file twice", func(m *Manifest) { m.Files[0] = m.Files[1] }, "has a bad entry"},
		{"a negative size", func(m *Manifest) { m.Files[0].Bytes = -1 }, "has a bad entry"},
		{"no digest", func(m *Manifest) { m.Files[0].SHA256 = "" }, "has a bad entry"},
		{"no configuration", func(m *Manifest) { m.Files = m.Files[1:] }, "does not list coordinator.toml"},
		{"no state.db", func(m *Manifest) { m.Files = append(m.Files[:3], m.Files[4]) }, "does not list state.db"},
		{"no log", func(m *Manifest) { m.Files = m.Files[:4] }, "lists no segment"},
	} {
		m := someManifest()
		tt.change(m)
		have := m.check()
		require.True(t, tt.says == "" && have == "" || tt.says != "" && strings.Contains(have, tt.says), "%s: %q", tt.name, have)
	}
}

// FuzzManifest: no file makes reading it fail otherwise than with words.
func FuzzManifest(f *testing.F) {
	data, err := someManifest().encode()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"backup":null,"sha256":""}`))
	f.Add([]byte(`{}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ManifestFile), data, 0o600))
		m, err := ReadManifest(dir)
		require.True(t, (m == nil) != (err == nil))
	})
}
