package docs

import (
	"encoding/json"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/handshake"
	"coordinator/internal/docsh"
)

// compared names the documents with console blocks, and the test that holds them against what is
// printed.
var compared = map[string]string{"README.md": "TestDemo"}

// encoded names the documents with blocks of bytes, and the test that holds those against the
// encoders.
var encoded = map[string]string{"implementing.md": "TestImplementingBytes"}

// configures says whose configuration the TOML of a document is: the daemons by name, or "client".
var configures = map[string][]string{
	"architecture.md": {"client"},
	"metrics.md":      {"coordinatord", "witnessd", "ownerd"},
}

// TestEveryBlockIsHeld goes through the fenced blocks of all documents. Commands are run elsewhere
// (TestTheReadme, TestDocuments and what elsewhere names), and so is their output; everything else
// is held here. What nobody holds has to be marked as text.
func TestEveryBlockIsHeld(t *testing.T) {
	named := tests(t)
	goFiles, pyFiles := testedGo(t), sources(t, "python", ".py")
	seen := map[string]int{}
	for name := range documents(t) {
		blocks, err := docsh.Read(name)
		require.NoError(t, err)
		for _, b := range blocks {
			seen[b.Lang]++
			if b.Skip != "" && b.Lang != "sh" {
				t.Errorf("%s:%d: only commands can be skipped", name, b.Line)
			}
			if b.Output && b.Lang != "text" {
				t.Errorf("%s:%d: output is text", name, b.Line)
			}
			switch b.Lang {
			case "sh", "text":
			case "console":
				require.True(t, named[compared[b.File]], "%s:%d: name in compared the test that holds this against what is printed", name, b.Line)
			case "hex":
				require.True(t, named[encoded[b.File]], "%s:%d: name in encoded the test that holds these bytes", name, b.Line)
			case "go":
				if !parses(b.Text) {
					t.Errorf("%s:%d: neither statements nor declarations of Go", name, b.Line)
				}
				if where := within(b.Text, goFiles); where == "" {
					t.Errorf("%s:%d: no example that is run has these lines:\n%s", name, b.Line, b.Text)
				}
			case "python":
				if where := within(b.Text, pyFiles); where == "" {
					t.Errorf("%s:%d: no file in docs/python has these lines:\n%s", name, b.Line, b.Text)
				}
			case "toml":
				configured(t, name, b)
			case "json":
				if !json.Valid([]byte(b.Text)) {
					t.Errorf("%s:%d: not valid JSON", name, b.Line)
				}
			case "":
				t.Errorf("%s:%d: the block has no language; a picture is text", name, b.Line)
			default:
				t.Errorf("%s:%d: nothing holds a block of %s", name, b.Line, b.Lang)
			}
		}
	}
	require.Greater(t, seen["go"], 15)
	require.Greater(t, seen["sh"], 50)
}

// TestPackageOverviewsAreRun holds the code in package comments that is meant to be copied.
func TestPackageOverviewsAreRun(t *testing.T) {
	files := testedGo(t)
	parsed, err := parser.ParseFile(token.NewFileSet(), "../client/doc.go", nil, parser.ParseComments)
	require.NoError(t, err)
	n := 0
	for _, block := range new(comment.Parser).Parse(parsed.Doc.Text()).Content {
		if code, ok := block.(*comment.Code); ok {
			n++
			require.True(t, parses(code.Text), code.Text)
			require.NotEmpty(t, within(code.Text, files), "no example that is run has these lines:\n%s", code.Text)
		}
	}
	require.Equal(t, 1, n)
}

// A source is a file, and which of its lines a test runs.
type source struct {
	path  string
	lines []string // those that do not count are "\x00"
}

// sources are the files beneath dir whose name ends in ext.
func sources(t *testing.T, dir, ext string) (out []source) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == "node_modules" || d.Name() == "testdata" || d.Name() == ".git":
			return fs.SkipDir
		case !strings.HasSuffix(path, ext):
			return nil
		}
		raw, err := os.ReadFile(path)
		out = append(out, source{path, strings.Split(string(raw), "\n")})
		return err
	}))
	return out
}

// testedGo is the text of files with examples that are run and of the packages in examples, without
// the examples that only compile.
func testedGo(t *testing.T) []source {
	t.Helper()
	programs := sources(t, "examples", ".go")
	return append(slices.DeleteFunc(sources(t, "..", "_test.go"), func(s source) bool { return !exercised(t, s) }), programs...)
}

// exercised reports whether a file has examples that are run, and takes the others out of it.
func exercised(t *testing.T, s source) bool {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, s.path, strings.Join(s.lines, "\n"), parser.ParseComments)
	require.NoError(t, err)
	runs := map[string]bool{}
	for _, e := range doc.Examples(file) {
		if e.Output != "" || e.EmptyOutput {
			runs["Example"+e.Name] = true
		}
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(f.Name.Name, "Example") || runs[f.Name.Name] {
			continue
		}
		for line := set.Position(f.Pos()).Line; line <= set.Position(f.End()).Line; line++ {
			s.lines[line-1] = "\x00"
		}
	}
	return len(runs) > 0
}

// within names the file that has the lines of text one after another, all indented by the same
// tabs or spaces more.
func within(text string, files []source) string {
	want := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for _, f := range files {
		for at := 0; at+len(want) <= len(f.lines); at++ {
			if follows(f.lines[at:], want) {
				return f.path
			}
		}
	}
	return ""
}

func follows(lines, want []string) bool {
	indent, ok := strings.CutSuffix(lines[0], want[0])
	if !ok || strings.Trim(indent, "\t ") != "" {
		return false
	}
	for i, w := range want {
		if w != "" {
			w = indent + w
		}
		if lines[i] != w {
			return false
		}
	}
	return true
}

// parses reports whether text is a sequence of statements, or of declarations.
func parses(text string) bool {
	for _, file := range []string{"package p\nfunc _() {\n" + text + "\n}", "package p\n" + text} {
		if _, err := parser.ParseFile(token.NewFileSet(), "", file, parser.SkipObjectResolution); err == nil {
			return true
		}
	}
	return false
}

// configured gives a block of TOML to the parsers of those that it is for. What stands for a value
// in it is given one.
func configured(t *testing.T, name string, b docsh.Block) {
	t.Helper()
	if len(configures[b.File]) == 0 {
		t.Errorf("%s:%d: say in configures whose configuration this is", name, b.Line)
	}
	hex := strings.TrimPrefix(handshake.FormatPublicKey(handshake.NewKey([32]byte{1}).Public()), "ed25519:")
	text := strings.NewReplacer("<32 hex>", hex[:32], "<64 hex>", hex, "…", "x").Replace(b.Text)
	for _, who := range configures[b.File] {
		if who == "client" {
			file := filepath.Join(t.TempDir(), "context.toml")
			require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
			_, err := client.LoadContext(file)
			require.NoError(t, err, "%s:%d", name, b.Line)
			continue
		}
		require.NotEqual(t, parsedBy(t, who, ""), parsedBy(t, who, "nonsense = 1\n"), who) // or its exit code says nothing
		require.Equal(t, parsedBy(t, who, ""), parsedBy(t, who, text), "%s:%d: as configuration of %s", name, b.Line, who)
	}
}

// parsedBy is the exit code of a daemon's program that reads its configuration, with more text in
// it, and does nothing.
func parsedBy(t *testing.T, daemon, more string) int {
	t.Helper()
	bin, err := docsh.Programs()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "d")
	id, key := strings.Repeat("01", 16), handshake.NewKey([32]byte{1})
	var made, reads []string
	switch daemon {
	case "coordinatord":
		made = []string{"--witness-socket", "/none.sock", "--witness-id", id, "--witness-authority", handshake.FormatFingerprint(handshake.FingerprintOf(key.Public()))}
		reads = []string{"backup", dir} // into itself, which is refused once the configuration has been read
	case "witnessd":
		reads = []string{"status"}
	case "ownerd":
		made = []string{"--witness-id", id, "--witness-public-key", handshake.FormatPublicKey(key.Public())}
		reads = []string{"status"}
	}
	program := filepath.Join(bin, daemon)
	out, err := exec.Command(program, append([]string{"init", "--state", dir}, made...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	file := filepath.Join(dir, strings.TrimSuffix(daemon, "d")+".toml")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(string(raw)+"\n"+more), 0o600))
	cmd := exec.Command(program, append(reads, "--state", dir)...)
	out, _ = cmd.CombinedOutput()
	t.Logf("%s: %s", daemon, out)
	return cmd.ProcessState.ExitCode()
}

// What is not a verbatim part of a tested file is found out.
func TestBlocksAreFoundOut(t *testing.T) {
	files := []source{{"a.go", []string{"func a() {", "\tif x {", "\t\tb()", "", "\t}", "\x00", "}"}}}
	for text, want := range map[string]string{
		"if x {\n\tb()\n\n}\n": "a.go", "b()\n": "a.go", "\tb()\n": "a.go",
		"if y {\n\tb()\n\n}\n": "", "if x {\n\tb()\n}\n": "", "if x {\nb()\n\n}\n": "", "()\n": "", "}\n\n}\n": "", "}\n}\nmore\n": "",
	} {
		require.Equal(t, want, within(text, files), text)
	}
	require.True(t, parses("x := 1\nreturn x"))
	require.True(t, parses("func a() {}\n"))
	require.False(t, parses("case x:\n\treturn"))

	text := "package p\n\nfunc ExampleA() {\n\ta()\n\t// Output: 1\n}\n\nfunc ExampleB() {\n\tb()\n}\n\nfunc help() {\n\tc()\n}\n"
	file := source{"a_test.go", strings.Split(text, "\n")}
	require.True(t, exercised(t, file))
	for line, want := range map[string]string{"a()": "a_test.go", "c()": "a_test.go", "b()": ""} { // which only compiles
		require.Equal(t, want, within(line, []source{file}), line)
	}
	require.False(t, exercised(t, source{"b_test.go", strings.Split(strings.Replace(text, "// Output: 1", "", 1), "\n")}))
}
