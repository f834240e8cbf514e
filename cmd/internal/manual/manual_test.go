package manual

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestWrite(t *testing.T) {
	root := func() *cobra.Command {
		c := &cobra.Command{Use: "thing", Short: "does things"}
		sub := &cobra.Command{Use: "do NAME", Short: "does one", Run: func(*cobra.Command, []string) {}}
		sub.Flags().Int("count", 3, "how often")
		hidden := &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
		c.AddCommand(sub, hidden)
		return c
	}
	one, two := t.TempDir(), t.TempDir()
	require.NoError(t, Write(root(), "8", one, "86400"))
	require.NoError(t, Write(root(), "8", two, "86400"))
	for _, name := range []string{"thing.8", "thing-do.8"} {
		page, err := os.ReadFile(filepath.Join(one, name))
		require.NoError(t, err)
		require.Contains(t, string(page), `"Jan 1970"`)
		require.NotContains(t, string(page), "Auto generated")
		again, err := os.ReadFile(filepath.Join(two, name))
		require.NoError(t, err)
		require.Equal(t, page, again)
	}
	require.NoFileExists(t, filepath.Join(one, "thing-secret.8"))
	require.Error(t, Write(root(), "8", one, "soon"))
}
