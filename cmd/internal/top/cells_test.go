package top

import (
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestCellsAreAsWideAsTheySay whatever is in them, on terminals that draw by characters and on
// those that draw by what belongs together.
func TestCellsAreAsWideAsTheySay(t *testing.T) {
	odd := rapid.SampledFrom([]string{"a", "日", "本", "👩", "\u200d", "💻", "👍🏽", "🇩🇪", "🇩", "1\ufe0f\u20e3", "e\u0301", "한", "ᄒ", "ᅡ", "ﷺ", "\ufe0f", "❤", "❤️", "नि", "�", "¨", "…", "☂", "ｗ"})
	rapid.Check(t, func(t *rapid.T) {
		s := strings.Join(rapid.SliceOfN(rapid.OneOf(odd, rapid.String()), 0, 12).Draw(t, "parts"), "")
		w := rapid.IntRange(0, 20).Draw(t, "width")
		for _, got := range []string{cell(inert(s), w), right(inert(s), w)} {
			require.Equal(t, w, ansi.StringWidth(got), "%q of %q", got, s)
			require.Equal(t, w, ansi.StringWidthWc(got), "%q of %q", got, s)
		}
	})
	require.Equal(t, "日本… ", cell("日本語x", 6)[:len("日本… ")])
}

func TestSpans(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", time.Minute: "1m", 59 * time.Minute: "59m", 47 * time.Hour: "47h",
		48 * time.Hour: "2d", 999 * 24 * time.Hour: "999d", 1000 * 24 * time.Hour: "old"} {
		require.Equal(t, want, span(d), "%v", d)
	}
}
