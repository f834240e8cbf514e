package browsertest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDistIsWhatWebBuilds builds the page from its sources and compares it with what the
// program carries.
func TestDistIsWhatWebBuilds(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node, so the page cannot be built; install Node.js 20")
	}
	if _, err := os.Stat("../web/node_modules/esbuild"); err != nil {
		t.Skipf("the page's packages are not there (%v); npm ci in cmd/internal/console/web brings them", err)
	}
	fresh := filepath.Join(t.TempDir(), "dist")
	cmd := exec.Command(node, "build.mjs", fresh)
	cmd.Dir = "../web"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, contents(t, fresh), contents(t, "../dist"), "dist is not what web builds: run make console and commit the result")
}

// contents are the files below a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	root := os.DirFS(dir)
	require.NoError(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := fs.ReadFile(root, name)
		all[name] = string(raw)
		return err
	}))
	require.Contains(t, all, "index.html")
	return all
}
