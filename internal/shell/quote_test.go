package shell

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestQuoteLeavesPlainWordsAlone(t *testing.T) {
	for _, s := range []string{"/a/b-c_d.e", "sha256:00", "work_read,admin", "a=b"} {
		require.Equal(t, s, Quote(s))
	}
	require.Equal(t, "''", Quote(""))
	require.Equal(t, `'It'\''s $(here)'`, Quote("It's $(here)"))
}

// TestQuoteIsOneWordOfARealShell lets sh give the word back.
func TestQuoteIsOneWordOfARealShell(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh here")
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom([]rune("ab '\"$`\\!*?~#;&|<>(){}[]\n\té")), 0, 20, -1).Draw(t, "s")
		out, err := exec.Command(sh, "-c", "printf '<%s>' "+Quote(s)).Output()
		if err != nil || string(out) != "<"+s+">" {
			t.Fatalf("Quote(%q) = %s, which sh reads as %q (%v)", s, Quote(s), out, err)
		}
	})
}
