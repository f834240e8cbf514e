package text

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInert(t *testing.T) {
	require.Equal(t, "plain, 日本, é, 👩\u200d💻 and می\u200cخواهم", Inert("plain, 日本, é, 👩\u200d💻 and می\u200cخواهم"))
	for name, bad := range map[string]string{
		"escape": "\x1b[31m", "bell": "\a", "line": "\n", "C1": "\u009b31m", "delete": "\x7f", "override": "\u202e", "isolate": "\u2066",
		"line separator": "\u2028", "paragraph separator": "\u2029", "byte order mark": "\ufeff", "tag": "\U000e0041", "private": "\ue000",
		"broken": "\xff",
	} {
		got := Inert("a" + bad + "b")
		require.True(t, strings.HasPrefix(got, "a\ufffd"), "%s: %q", name, got)
		require.NotContains(t, got, bad, name)
	}
}

func TestClip(t *testing.T) {
	long := strings.Repeat("é", 200)
	got := Clip(long, 199)
	require.Len(t, got, 198)
	require.True(t, strings.HasPrefix(long, got))
	require.Equal(t, "a?b", Clip("a\xffb", 10))
	for n := range 5 {
		require.LessOrEqual(t, len(Clip("日本", n)), n)
	}
}
