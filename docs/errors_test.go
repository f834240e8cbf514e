package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

var (
	codeHeading = regexp.MustCompile("(?m)^### `([A-Z_]+)` \\((\\d+)\\)$")
	codeTable   = regexp.MustCompile(`([A-Z_]+)=(\d+)`)
	exitRow     = regexp.MustCompile(`(?m)^\| (\d+) \|`)
)

// section is the part of a document from a heading to the next of its level.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, "\n"+heading+"\n")
	require.True(t, found, "there is no %q", heading)
	level, _, _ := strings.Cut(heading, " ")
	part, _, _ := strings.Cut(rest, "\n"+level+" ")
	return part
}

// TestEveryErrorCodeIsExplained holds the document against the codes of the protocol and what
// they do.
func TestEveryErrorCodeIsExplained(t *testing.T) {
	raw, err := os.ReadFile("errors.md")
	require.NoError(t, err)
	text := string(raw)
	var want, got []string
	for n := range math.MaxUint16 + 1 {
		if code := frames.Code(n); code.Known() {
			want = append(want, fmt.Sprintf("%v=%d", code, n))
		}
	}
	for _, m := range codeHeading.FindAllStringSubmatch(text, -1) {
		got = append(got, m[1]+"="+m[2])
		part := section(t, text, m[0])
		n, err := strconv.ParseUint(m[2], 10, 16)
		require.NoError(t, err)
		ends := "\nEnds its request"
		if frames.Code(n).Fatal() {
			ends = "\nEnds the connection."
		}
		require.True(t, strings.HasPrefix(part, ends), "%s: its section begins with %q", m[1], ends)
		for _, says := range []string{"Means.", "You see.", "Why.", "Do.", "Again?"} {
			require.Contains(t, part, "* **"+says+"** ", m[1])
		}
	}
	require.Equal(t, want, got)

	raw, err = os.ReadFile("protocol.md")
	require.NoError(t, err)
	block, _, _ := strings.Cut(section(t, string(raw), "## 13. Errors"), "Fatal codes")
	require.Equal(t, want, codeTable.FindAllString(block, -1))
}

// TestEveryResultIsExplained does the same for the states of operations, why they are
// indeterminate, and the reasons of gaps.
func TestEveryResultIsExplained(t *testing.T) {
	raw, err := os.ReadFile("errors.md")
	require.NoError(t, err)
	results, gaps := section(t, string(raw), "## Results of operations"), section(t, string(raw), "## Gaps")
	for s := frames.OperationPending; s <= frames.OperationUnknown; s++ {
		require.Contains(t, results, fmt.Sprintf("\n| %v | ", s))
	}
	for r := frames.TargetOutcomeUnknown; r <= frames.RecoveryStateInvalid; r++ {
		require.Contains(t, results, fmt.Sprintf("\n| %v | ", r))
	}
	for r := frames.GapQueueOverflow; r <= frames.GapInternal; r++ {
		require.Contains(t, gaps, fmt.Sprintf("\n| %v | ", r))
	}
}

// TestEveryExitCodeIsExplained holds each table of exit codes against the constants.
func TestEveryExitCodeIsExplained(t *testing.T) {
	client := exitCodes(t, "../cmd/coordctl/exit.go", "exit")
	daemons := exitCodes(t, "../cmd/internal/daemon/exit.go", "Exit")
	failures := slices.DeleteFunc(slices.Clone(daemons), func(n int) bool { return n == 0 })
	for _, tt := range []struct {
		file, heading string
		want          []int
	}{
		{"errors.md", "## Exit codes of coordctl", client},
		{"errors.md", "## Exit codes of the daemons", daemons},
		{"../README.md", "## Using it", client},
		{"systemd.md", "## What the units promise", failures},
	} {
		raw, err := os.ReadFile(tt.file)
		require.NoError(t, err)
		var got []int
		for _, m := range exitRow.FindAllStringSubmatch(section(t, string(raw), tt.heading), -1) {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, tt.want, got, "%s, %s", tt.file, tt.heading)
	}
}

// TestQuotedMessagesAreSaid looks for each message that the document quotes in the programs:
// what somebody sees is what they look for here.
func TestQuotedMessagesAreSaid(t *testing.T) {
	raw, err := os.ReadFile("errors.md")
	require.NoError(t, err)
	said := programText(t)
	quoted := 0
	for _, m := range inlineCode.FindAllStringSubmatch(fenced.ReplaceAllString(string(raw), ""), -1) {
		text := strings.Join(strings.Fields(m[1]), " ")
		if strings.Count(text, " ") < 3 || isCommand.MatchString(text) {
			continue
		}
		quoted++
		for _, part := range variable.Split(text, -1) {
			if part = strings.Trim(part, " :;"); len(part) > 3 && !strings.Contains(said, part) {
				t.Errorf("no program says %q of %q", part, text)
			}
		}
	}
	require.Greater(t, quoted, 15)
}

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	isCommand  = regexp.MustCompile(`^(coordctl|coordinatord|witnessd|ownerd) [a-z]`)
	variable   = regexp.MustCompile(`…|\bN\b|\d+`) // what differs from one message to the next
	splitText  = regexp.MustCompile(`["` + "`" + `] ?\+\s*["` + "`" + `]`)
)

// programText is the code of the programs, with texts put together that are written in parts.
func programText(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, dir := range []string{"../cmd", "../client", "../server", "../witness", "../owner", "../handshake", "../internal"} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if d.IsDir() && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			out.Write(raw)
			return err
		}))
	}
	return splitText.ReplaceAllString(out.String(), "")
}

// exitCodes are the values of the constants of a file whose names begin with prefix, in order.
func exitCodes(t *testing.T, path, prefix string) (codes []int) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	for _, d := range file.Decls {
		decl, is := d.(*ast.GenDecl)
		if !is || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			if !strings.HasPrefix(spec.Names[0].Name, prefix) {
				continue
			}
			require.Len(t, spec.Values, 1, spec.Names[0].Name)
			n, err := strconv.Atoi(spec.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			codes = append(codes, n)
		}
	}
	require.NotEmpty(t, codes)
	return codes
}
