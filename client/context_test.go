package client

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const goodContext = `name = "local"
socket = "coordinator.sock"
coordinator_id = "00112233445566778899aabbccddeeff"
authority = "sha256:` + sixtyFour + `"
witness_id = "ffeeddccbbaa99887766554433221100"
witness_public_key = "ed25519:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
key_file = "client.ed25519"

[[owner]]
name = "local"
socket = "/abs/owner.sock"
authority = "sha256:` + sixtyFour + `"
`

const sixtyFour = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func writeContext(t *testing.T, text string) string {
	dir := filepath.Join(t.TempDir(), "client")
	require.NoError(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "context.toml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestContextPathsCountFromItsDirectory(t *testing.T) {
	path := writeContext(t, goodContext)
	c, err := LoadContext(path)
	require.NoError(t, err)
	dir := filepath.Dir(path)
	require.Equal(t, filepath.Join(dir, "coordinator.sock"), c.Socket)
	require.Equal(t, filepath.Join(dir, "client.ed25519"), c.KeyFile)
	require.Equal(t, "/abs/owner.sock", c.Owners[0].Socket)

	require.NoError(t, c.Save(path))
	again, err := LoadContext(path)
	require.NoError(t, err)
	require.Equal(t, c, again)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), `key_file = "client.ed25519"`)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
}

func TestContextThatIsRefused(t *testing.T) {
	swap := func(from, to string) string {
		if !strings.Contains(goodContext, from) {
			panic("the case changes nothing")
		}
		return strings.Replace(goodContext, from, to, 1)
	}
	for _, tt := range []struct{ name, text, says string }{
		{"unknown key", swap("name = ", "colour = \"red\"\nname = "), `unknown key "colour"`},
		{"unknown key of an owner", goodContext + "speed = 3\n", `unknown key "owner.speed"`},
		{"not TOML", swap("[[owner]]", "[[owner"), "not valid TOML"},
		{"a number for a text", swap(`"local"`, "7"), "name"},
		{"no socket", swap("socket = \"coordinator.sock\"\n", ""), "socket and quic"},
		{"socket and quic", swap("socket = \"co", "quic = \"h:1\"\nsocket = \"co"), "socket and quic"},
		{"no key", swap("key_file = \"client.ed25519\"\n", ""), "key_file and agent"},
		{"no coordinator_id", swap("coordinator_id = \"00112233445566778899aabbccddeeff\"\n", ""), "coordinator_id"},
		{"short coordinator_id", swap("00112233445566778899aabbccddeeff", "0011"), "coordinator_id"},
		{"uppercase coordinator_id", swap("00112233445566778899aabbccddeeff", "00112233445566778899AABBCCDDEEFF"), "coordinator_id"},
		{"zero witness_id", swap("ffeeddccbbaa99887766554433221100", strings.Repeat("0", 32)), "witness_id"},
		{"authority without its name", swap("sha256:", ""), "authority"},
		{"short authority", swap(sixtyFour, sixtyFour[2:]), "authority"},
		{"weak witness key", swap("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "01"+strings.Repeat("0", 62)), "witness_public_key"},
		{"an owner without a name", swap("name = \"local\"\nsocket = \"/abs", "socket = \"/abs"), "owner 1"},
		{"two owners of one name", goodContext + "[[owner]]\nname = \"local\"\nquic = \"h:1\"\nauthority = \"sha256:" + sixtyFour + "\"\n", "owner 2"},
		{"larger than any context", goodContext + strings.Repeat("#", maxContextBytes), "larger"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeContext(t, tt.text)
			_, err := LoadContext(path)
			var ce *ContextError
			require.ErrorAs(t, err, &ce)
			require.Contains(t, err.Error(), tt.says)
			require.Contains(t, err.Error(), path)
		})
	}
	t.Run("writable by others", func(t *testing.T) {
		path := writeContext(t, goodContext)
		require.NoError(t, os.Chmod(path, 0o622))
		_, err := LoadContext(path)
		require.ErrorContains(t, err, "chmod 600")
	})
	t.Run("a directory", func(t *testing.T) {
		_, err := LoadContext(t.TempDir())
		require.ErrorContains(t, err, "not a regular file")
	})
	t.Run("missing", func(t *testing.T) {
		_, err := LoadContext(filepath.Join(t.TempDir(), "none"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

func TestContextThatCannotBeSaved(t *testing.T) {
	c := &Context{Socket: "/x"}
	require.ErrorAs(t, c.Save(filepath.Join(t.TempDir(), "context.toml")), new(*ContextError))
}

func TestStateThatIsNotWhatItShouldBeIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.dial(func(p *peer) { p.recv() })
	path := StatePath(w.pins.Path, w.pins.CoordinatorID)
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, text := range map[string]string{
		"empty":                "",
		"cut short":            string(good[:len(good)/2]),
		"a newer version":      strings.Replace(string(good), `"version": 1`, `"version": 2`, 1),
		"unknown member":       strings.Replace(string(good), `"version": 1`, `"version": 1, "more": 1`, 1),
		"another coordinator":  strings.Replace(string(good), w.pins.CoordinatorID.String(), sixtyFour[:32], 1),
		"epoch zero":           strings.Replace(string(good), `"authority_epoch": 3`, `"authority_epoch": 0`, 1),
		"token that is no hex": strings.Replace(string(good), `"fencing_token_sha256": "`, `"fencing_token_sha256": "zz`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			require.NotEqual(t, string(good), text)
			require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			_, err := Dial(t.Context(), w.pins, w.options(nil))
			var se *StateError
			require.ErrorAs(t, err, &se)
			left, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, text, string(left))
		})
	}
	require.NoError(t, os.WriteFile(path, good, 0o600))
	require.NoError(t, os.Chmod(path, 0o644))
	_, err = Dial(t.Context(), w.pins, w.options(nil))
	require.ErrorContains(t, err, "mode")
}

func TestJournalIsBounded(t *testing.T) {
	w := newWorld(t)
	s, err := OpenState(w.pins)
	require.NoError(t, err)
	for i := range maxJournal - 1 {
		s.mem.Operations = append(s.mem.Operations, journalEntry{OperationID: fmt.Sprintf("%032x", i+1), CommandDigest: sixtyFour})
	}
	full := s.mem
	require.NoError(t, s.updateLocked(func(m *memory) error { *m = full; return nil }))
	added, err := s.begin(operation(1), [32]byte{}, true)
	require.NoError(t, err)
	require.True(t, added)
	_, err = s.begin(operation(2), [32]byte{}, true)
	require.ErrorIs(t, err, ErrJournalFull)
	require.NoError(t, s.Forget(operation(1)))
	_, err = s.begin(operation(2), [32]byte{}, true)
	require.NoError(t, err)
}

// TestStateIsSharedByProcesses changes it through two handles, each of which must see and
// keep what the other wrote.
func TestStateIsSharedByProcesses(t *testing.T) {
	w := newWorld(t)
	a, err := OpenState(w.pins)
	require.NoError(t, err)
	b, err := OpenState(w.pins)
	require.NoError(t, err)
	_, err = a.begin(operation(1), [32]byte{1}, true)
	require.NoError(t, err)
	_, err = b.begin(operation(2), [32]byte{2}, true)
	require.NoError(t, err)
	require.Len(t, b.Unresolved(), 2)
	require.NoError(t, a.Forget(operation(1)))
	require.Len(t, a.Unresolved(), 1)
	require.NoError(t, b.Forget(operation(2)))
	require.Empty(t, b.Unresolved())
}

// TestMemoryThatCannotBeWritten takes the directory away under an open memory.
func TestMemoryThatCannotBeWritten(t *testing.T) {
	w := newWorld(t)
	opts := w.options(nil)
	state, err := OpenState(w.pins)
	require.NoError(t, err)
	opts.State = state
	require.NoError(t, os.RemoveAll(filepath.Dir(w.pins.Path)))
	_, err = Dial(t.Context(), w.pins, opts)
	var se *StateError
	require.ErrorAs(t, err, &se)
	require.Equal(t, state.Path(), se.Path)
	require.Contains(t, se.Problem, "cannot be written")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, err, ErrNotSent)
}
