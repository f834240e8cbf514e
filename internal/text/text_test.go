package text

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
