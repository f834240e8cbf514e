package docs

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var picture = regexp.MustCompile(`!\[([^\]]*)\]\(([^)]+)\)`)

// TestPictures looks at each drawing that a document shows, and that no drawing is left over:
// it is well-formed, says what it shows to who cannot see it, holds text as text, and neither
// acts nor loads anything. What the document says in place of a picture is not empty.
func TestPictures(t *testing.T) {
	shown := make(map[string]bool)
	for name, text := range documents(t) {
		for _, m := range picture.FindAllStringSubmatch(text, -1) {
			require.NotEmpty(t, m[1], "%s shows %s and says nothing in its place", name, m[2])
			path := filepath.Join(filepath.Dir(name), m[2])
			require.FileExists(t, path, "in %s", name)
			shown[path] = true
		}
	}
	drawings, err := filepath.Glob("*.svg")
	require.NoError(t, err)
	require.NotEmpty(t, drawings)
	for _, path := range drawings {
		require.True(t, shown[path], "no document shows %s", path)
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, drawing(string(raw)), path)
	}
}

// Each of these is refused.
func TestPicturesThatAreNone(t *testing.T) {
	const good = `<svg xmlns="http://www.w3.org/2000/svg"><title>a</title><desc>b</desc><style>text { fill: red }</style><text>c</text></svg>`
	require.NoError(t, drawing(good))
	for name, edit := range map[string][2]string{
		"not closed":         {"</svg>", ""},
		"crossed":            {"<text>c</text>", "<g><text>c</g></text>"},
		"another root":       {"svg", "html"},
		"no title":           {"<title>a</title>", ""},
		"an empty title":     {"<title>a</title>", "<title> </title>"},
		"no description":     {"<desc>b</desc>", ""},
		"no text":            {"<text>c</text>", "<path d='M0 0'/>"},
		"a script":           {"<text>", "<script>1</script><text>"},
		"a handler":          {"<text>", "<text onclick='x()'>"},
		"a foreign object":   {"<text>", "<foreignObject/><text>"},
		"a picture":          {"<text>", "<image href='x.png'/><text>"},
		"a link":             {"<text>", "<a href='https://example.org'/><text>"},
		"an imported style":  {"text {", "@import 'x.css'; text {"},
		"a style that loads": {"red", "url(https://example.org/x)"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, drawing(strings.ReplaceAll(good, edit[0], edit[1])))
		})
	}
}

// drawing says what is wrong with a picture.
func drawing(text string) error {
	d := xml.NewDecoder(strings.NewReader(text))
	said := make(map[string]string) // element: all of its text
	var open []string
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		switch token := token.(type) {
		case xml.StartElement:
			if err := passive(token, len(open) == 0); err != nil {
				return err
			}
			open = append(open, token.Name.Local)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				said[open[len(open)-1]] += strings.TrimSpace(string(token))
			}
		}
	}
	for _, name := range []string{"title", "desc", "text"} {
		if said[name] == "" {
			return errors.New("it has no " + name)
		}
	}
	if loads.MatchString(said["style"]) {
		return errors.New("its style loads something")
	}
	return nil
}

var loads = regexp.MustCompile(`@import|url\((?:[^#]|$)`)

// passive says that an element neither acts nor loads anything.
func passive(e xml.StartElement, root bool) error {
	switch name := e.Name.Local; {
	case root && (name != "svg" || e.Name.Space != "http://www.w3.org/2000/svg"):
		return errors.New("it is no svg but " + name)
	case name == "script", name == "foreignObject", name == "image", name == "use", name == "a", name == "animate", name == "set":
		return errors.New("it has an element " + name)
	}
	for _, a := range e.Attr {
		if strings.HasPrefix(strings.ToLower(a.Name.Local), "on") || a.Name.Local == "href" || loads.MatchString(a.Value) {
			return errors.New("it has an attribute " + a.Name.Local)
		}
	}
	return nil
}
