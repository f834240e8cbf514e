package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
)

func TestMain(m *testing.M) { os.Exit(docsh.Main(m)) }

// elsewhere names the documents whose commands need more than a scratch directory, and the
// test that runs them.
var elsewhere = map[string]string{
	"getting-started.md": "TestGettingStarted",
	"hosts.md":           "TestHostsDocument",
	"systemd.md":         "TestSystemdDocument",
	"testing.md":         "TestTheTestingDocument",
	"implementing.md":    "TestImplementingDocument",
}

// TestTheReadme runs what the front page says, in a copy of the sources.
func TestTheReadme(t *testing.T) {
	t.Parallel()
	docsh.Run(t, "../README.md", docsh.Options{Timeout: 5 * time.Minute, Prepare: checkout})
}

// TestGettingStarted runs what a newcomer types, in a copy of the sources.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	docsh.Run(t, "getting-started.md", docsh.Options{Timeout: 5 * time.Minute, Prepare: checkout})
}

// TestTheTestingDocument runs what is said about the tests, in a copy of the sources.
func TestTheTestingDocument(t *testing.T) {
	t.Parallel()
	docsh.Run(t, "testing.md", docsh.Options{Timeout: 5 * time.Minute, Prepare: func(_, dir string) error { return copySources(dir) }})
}

// TestDocuments runs every other document that has commands.
func TestDocuments(t *testing.T) {
	named := tests(t)
	for name := range documents(t) {
		if name == "../README.md" {
			continue
		}
		if test := elsewhere[name]; test != "" {
			require.True(t, named[test], "%s is said to be run by %s, which is not there", name, test)
			continue
		}
		blocks, err := docsh.Read(name)
		require.NoError(t, err)
		if !slices.ContainsFunc(blocks, runs) {
			continue
		}
		if slices.ContainsFunc(blocks, func(b docsh.Block) bool { return b.Host != "" }) {
			t.Errorf("%s speaks of machines of its own; name in elsewhere the test that makes them", name)
			continue // its commands are not for this machine
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			docsh.Run(t, name, docsh.Options{Timeout: 5 * time.Minute})
		})
	}
}

func runs(b docsh.Block) bool { return b.Lang == "sh" && b.Skip == "" }

// checkout makes dir a checkout in which `make build` was run before. Its programs are those
// of [docsh.Programs], so that another `make build` finds them up to date.
func checkout(_, dir string) error {
	bin, err := docsh.Programs()
	if err != nil {
		return err
	}
	if err := copySources(dir); err != nil {
		return err
	}
	return os.CopyFS(filepath.Join(dir, "bin"), os.DirFS(bin))
}

// copySources copies what a checkout holds, without its history and what was built.
func copySources(to string) error {
	return filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		switch {
		case rel == ".git" || rel == "bin" || rel == "bench" || d.Name() == "node_modules":
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case !d.Type().IsRegular():
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), raw, 0o600)
	})
}
