package docs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
)

const implementing = "implementing.md"

// TestImplementingDocument runs the commands of the guide, beside the client and the vectors.
func TestImplementingDocument(t *testing.T) {
	t.Parallel()
	needPython(t)
	docsh.Run(t, implementing, docsh.Options{Timeout: 5 * time.Minute, Env: []string{"PYTHONDONTWRITEBYTECODE=1"}, Prepare: func(_, dir string) error {
		for _, part := range []string{"docs/python", "vectors/testdata"} {
			if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join("..", part))); err != nil {
				return err
			}
		}
		return nil
	}})
}

// TestImplementingBytes holds every table of bytes in the guide to the vector that its first line
// names. Where the last line is "= …" the vector is the SHA-256 of the bytes.
func TestImplementingBytes(t *testing.T) {
	t.Parallel()
	n := 0
	blocks, err := docsh.Read(implementing)
	require.NoError(t, err)
	for _, b := range blocks {
		if b.Lang != "hex" {
			continue
		}
		n++
		name, got, digest, err := readTable(b.Text)
		if err != nil {
			t.Errorf("%s:%d: %v", b.File, b.Line, err)
			continue
		}
		want := namedVector(t, name)
		if digest != nil {
			sum := sha256.Sum256(got)
			got = sum[:]
			require.Equal(t, hex.EncodeToString(got), hex.EncodeToString(digest), "%s:%d: the digest that it gives", b.File, b.Line)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("%s:%d: %s is\n%x, the table has\n%x", b.File, b.Line, name, want, got)
		}
	}
	require.Greater(t, n, 5)
}

// wordOf is what one space ends: hex digits, or a quoted string.
var wordOf = regexp.MustCompile(`^(?:[0-9a-f]{2,}|"(?:[^"\\]|\\.)*")(?: |$)`)

// readTable reads a table of bytes: on each line the bytes, then two spaces or more, then words.
func readTable(text string) (name string, body, digest []byte, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if what, ok := strings.CutPrefix(line, "# "); ok {
			name = what
			continue
		}
		rest, last := strings.CutPrefix(line, "= ")
		var raw []byte
		for at := wordOf.FindString(rest); at != ""; at = wordOf.FindString(rest) {
			rest = rest[len(at):]
			b, err := bytesOf(strings.TrimSuffix(at, " "))
			if err != nil {
				return "", nil, nil, err
			}
			raw = append(raw, b...)
		}
		if last {
			digest = raw
		} else {
			body = append(body, raw...)
		}
	}
	return name, body, digest, nil
}

func bytesOf(word string) ([]byte, error) {
	if !strings.HasPrefix(word, `"`) {
		return hex.DecodeString(word)
	}
	s, err := strconv.Unquote(strings.ReplaceAll(word, `\0`, `\x00`))
	return []byte(s), err
}

// namedVector finds "FILE LIST: NAME" or "FILE MEMBER".
func namedVector(t *testing.T, name string) []byte {
	t.Helper()
	file, rest, _ := strings.Cut(name, " ")
	list, which, _ := strings.Cut(rest, ": ")
	raw, err := os.ReadFile(filepath.Join("..", "vectors", "testdata", file))
	require.NoError(t, err)
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &members))
	var text string
	if which == "" {
		require.NoError(t, json.Unmarshal(members[list], &text), name)
	} else {
		var found []map[string]any
		require.NoError(t, json.Unmarshal(members[list], &found), name)
		for _, v := range found {
			for _, member := range []string{"frame", "certificate", "image", "digest"} { // the last one that is there
				if s, ok := v[member].(string); ok && v["name"] == which {
					text = s
				}
			}
		}
	}
	out, err := hex.DecodeString(text)
	require.NoError(t, err)
	require.NotEmpty(t, out, "there is no vector %s", name)
	return out
}
