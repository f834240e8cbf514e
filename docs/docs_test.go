// Package docs holds no code: its test keeps what the documents name true.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	testName  = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9_]*|Fuzz[A-Z][A-Za-z0-9_]*|Benchmark[A-Z][A-Za-z0-9_]*)`")
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)[A-Za-z0-9_]*)\(`)
	link      = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	fenced    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	invariant = regexp.MustCompile(`^\| (C\d\d) \|`)
)

// tests is every test, fuzz target and benchmark of the repository.
func tests(t *testing.T) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		for _, m := range testFunc.FindAllSubmatch(raw, -1) {
			out[string(m[1])] = true
		}
		return err
	}))
	return out
}

func documents(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, pattern := range []string{"../README.md", "*.md", "adr/*.md"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			raw, err := os.ReadFile(name)
			require.NoError(t, err)
			out[name] = string(raw)
		}
	}
	return out
}

func TestNamedTestsExist(t *testing.T) {
	have := tests(t)
	for name, text := range documents(t) {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			if !have[m[1]] {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	for name, text := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) { // code has brackets too
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
		}
	}
}

// Each conformance invariant has a row in the README, and the row names tests of its own.
func TestEveryInvariantNamesItsTests(t *testing.T) {
	raw, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	rows := make(map[string]bool)
	for line := range strings.Lines(string(raw)) {
		m := invariant.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		rows[m[1]] = true
		named := testName.FindAllStringSubmatch(line, -1)
		if len(named) == 0 {
			t.Errorf("the row of %s names no test", m[1])
		}
		for _, n := range named {
			if !strings.HasPrefix(n[1], "Test"+m[1]+"_") {
				t.Errorf("the row of %s names %s", m[1], n[1])
			}
		}
	}
	require.Len(t, rows, 16)
}
