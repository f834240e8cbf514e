package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// logging are the directories of the code that runs in a daemon.
var logging = []string{
	"../cmd/coordinatord", "../cmd/witnessd", "../cmd/ownerd", "../cmd/internal/daemon",
	"../server", "../witness", "../owner", "../handshake", "../internal",
}

var (
	logReceiver = regexp.MustCompile(`(?i)(^|\.)log(ger)?$`)
	logRow      = regexp.MustCompile("^\\| `([^`]+)` \\| (debug|info|warn|error)(?: or (?:debug|info|warn|error))* \\|")
)

// events finds the event name of every log call, and complains about names that are not fixed.
func events(t *testing.T) map[string][]string {
	t.Helper()
	out := make(map[string][]string)
	for _, dir := range logging {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				name, is := eventOf(call)
				switch lit, fixed := name.(*ast.BasicLit); {
				case !is:
				case fixed && lit.Kind == token.STRING:
					text, err := strconv.Unquote(lit.Value)
					require.NoError(t, err)
					out[text] = append(out[text], set.Position(call.Pos()).String())
				case types.ExprString(name) == "what" || types.ExprString(name) == "msg": // handed on by a function that takes it
				default:
					t.Errorf("%s: the event name %s is not fixed", set.Position(call.Pos()), types.ExprString(name))
				}
				return true
			})
			return nil
		}))
	}
	return out
}

// eventOf gives the argument that names the event, if the call writes a line.
func eventOf(call *ast.CallExpr) (ast.Expr, bool) {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil, false
	}
	switch sel.Sel.Name {
	case "Debug", "Info", "Warn", "Error":
		if logReceiver.MatchString(types.ExprString(sel.X)) && len(call.Args) > 0 {
			return call.Args[0], true
		}
	case "Say": // of a lograte.Limiter: logger, level, event
		if len(call.Args) >= 3 {
			return call.Args[2], true
		}
	case "warn": // of the log of a store
		if len(call.Args) == 2 {
			return call.Args[0], true
		}
	}
	return nil, false
}

// TestEventsOfTheLogAreDocumented holds the names in the code and those in logs.md equal.
func TestEventsOfTheLogAreDocumented(t *testing.T) {
	raw, err := os.ReadFile("logs.md")
	require.NoError(t, err)
	var documented []string
	for line := range strings.Lines(string(raw)) {
		if m := logRow.FindStringSubmatch(line); m != nil {
			require.NotContains(t, documented, m[1], "twice")
			documented = append(documented, m[1])
		}
	}
	have := events(t)
	for name, places := range have {
		if !slices.Contains(documented, name) {
			t.Errorf("logs.md does not have %q of %v", name, places)
		}
	}
	for _, name := range documented {
		if have[name] == nil {
			t.Errorf("logs.md has %q, which nothing writes", name)
		}
	}
	require.Greater(t, len(documented), 30)
}
