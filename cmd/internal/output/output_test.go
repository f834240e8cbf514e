package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"coordinator/internal/text"
)

const records = `{"items":[
	{"id":"aa","revision":1,"payload":{"state":"Active","document":{"title":"One \u001b[31m\nline","n":9007199254740993}}},
	{"id":"bb","revision":18446744073709551615,"payload":{"state":"Completed","outcome":{"exit_status":null}}}]}`

func TestTemplatesPick(t *testing.T) {
	for name, tt := range map[string]struct{ template, want string }{
		"a member":                   {`{.items[0].id}`, "aa\n"},
		"all of a list":              {`{.items[*].id}`, "aa bb\n"},
		"a range":                    {`{range .items[*]}{.id}{"\t"}{.payload.state}{"\n"}{end}`, "aa\tActive\nbb\tCompleted\n"},
		"text around":                {`ids: {.items[*].id};`, "ids: aa bb;\n"},
		"a filter":                   {`{.items[?(@.payload.state=="Completed")].id}`, "bb\n"},
		"a filter with a brace":      {`{.items[?@.id=="}"].id}`, ""},
		"numbers digit for digit":    {`{.items[*].revision} {.items[0].payload.document.n}`, "1 18446744073709551615 9007199254740993\n"},
		"a number beyond 2^53":       {`{.items[?@.revision>2].id}`, "bb\n"},
		"what is not there":          {`{.items[*].nothing}`, ""},
		"null":                       {`{.items[1].payload.outcome.exit_status}`, "null\n"},
		"an object":                  {`{.items[1].payload}`, `{"outcome":{"exit_status":null},"state":"Completed"}` + "\n"},
		"text that steers nothing":   {`{.items[0].payload.document.title}`, "One \ufffd[31m\ufffdline\n"},
		"the last one":               {`{.items[-1:].id}`, "bb\n"},
		"in the order asked for":     {`{.items[*]['revision','id']}`, "1 aa 18446744073709551615 bb\n"},
		"members that are not named": {`{.items[1].*}`, `bb {"outcome":{"exit_status":null},"state":"Completed"} 18446744073709551615` + "\n"},
		"everywhere":                 {`{..state}`, "Active Completed\n"},
		"the whole within a range":   {`{range .items[*]}{@.id}<{$.items[0].id}{end}`, "aa<aabb<aa\n"},
		"a range within a range":     {`{range .items[*]}{range .payload.*}[{@}]{end}{"\n"}{end}`, "[{\"n\":9007199254740993,\"title\":\"One \\u001b[31m\\nline\"}][Active]\n[{\"exit_status\":null}][Completed]\n"},
		"spaces":                     {`{ range .items[*] }{ .id }{ "," }{ end }`, "aa,bb,\n"},
		"quotes of the other kind":   {`{.items[0]['id']}{'\'"\n'}`, "aa'\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("jsonpath=" + tt.template)
			require.NoError(t, err)
			for range 3 { // a template can be used again
				var b bytes.Buffer
				require.NoError(t, f.Value(&b, json.RawMessage(records)))
				require.Equal(t, tt.want, b.String())
			}
		})
	}
}

func TestWrongTemplatesPointAtTheirFault(t *testing.T) {
	for template, at := range map[string]int{
		``:                          0,
		`.state`:                    0,
		`{"text"}`:                  0,
		`{`:                         0,
		`{.a}{.b`:                   4,
		`{.items[*}`:                9,
		`{.a$b}`:                    3,
		`日本{.a$b}`:                  5,
		`{ .a$b }`:                  4,
		`{$.a[}`:                    5,
		`{@.a[}`:                    5,
		`{.items[?@.n=3]}`:          12,
		`{state}`:                   1,
		`{}`:                        1,
		`{range}{end}`:              6,
		`{range .a}{.b}`:            0,
		`{.a}{end}`:                 4,
		`{range .a}{end}{end}`:      15,
		`{rangex}{end}`:             1,
		`{"unfinished}`:             0,
		`{.a}{"\q"}`:                5,
		`{.a}{range .b[}x{end}`:     14,
		`{.items[?@.a=="x\"}"].b}}`: -1,
	} {
		_, err := Parse("jsonpath=" + template)
		if at < 0 {
			require.NoError(t, err, template)
			continue
		}
		var wrong *TemplateError
		require.ErrorAs(t, err, &wrong, template)
		require.Equal(t, at, wrong.At, "%s: %v", template, err)
		lines := strings.Split(err.Error(), "\n")
		require.Len(t, lines, 3)
		require.Equal(t, at, strings.Index(lines[2], "^")-4)
	}
	_, err := ParseTemplate(strings.Repeat("x", maxTemplate+1))
	require.ErrorContains(t, err, "longer than")
}

func TestFormats(t *testing.T) {
	var unset Format
	require.False(t, unset.Structured())
	require.Equal(t, "text", unset.String())
	for text, structured := range map[string]bool{"text": false, "table": false, "wide": false, "json": true, "yaml": true, "jsonpath={.a}": true} {
		f, err := Parse(text)
		require.NoError(t, err)
		require.Equal(t, structured, f.Structured(), text)
		require.Equal(t, text == "wide", f.Wide())
		require.Equal(t, text == "jsonpath={.a}", f.Picks())
	}
	for _, text := range []string{"", "xml", "JSON", "jsonpath", "yaml "} {
		_, err := Parse(text)
		require.ErrorContains(t, err, Usage, text)
	}
}

// written is what a list of values becomes in a format.
func written(t *testing.T, format string, values ...any) (list, stream string) {
	f, err := Parse(format)
	require.NoError(t, err)
	var l, s bytes.Buffer
	out := f.List(&l)
	for _, v := range values {
		require.NoError(t, out.Add(v))
		require.NoError(t, f.Item(&s, v))
	}
	require.NoError(t, out.Close())
	return l.String(), s.String()
}

func TestListsAndStreams(t *testing.T) {
	a, b := json.RawMessage(`{"z":1,"a":["x",{}]}`), json.RawMessage(`{"z":2,"a":[]}`)
	for format, want := range map[string][2]string{
		"json": {"[\n  {\n    \"z\": 1,\n    \"a\": [\n      \"x\",\n      {}\n    ]\n  },\n  {\n    \"z\": 2,\n    \"a\": []\n  }\n]\n",
			"{\"z\":1,\"a\":[\"x\",{}]}\n{\"z\":2,\"a\":[]}\n"},
		"yaml":                   {"- z: 1\n  a:\n    - x\n    - {}\n- z: 2\n  a: []\n", "---\nz: 1\na:\n  - x\n  - {}\n---\nz: 2\na: []\n"},
		"jsonpath={.items[*].z}": {"1 2\n", ""},
		"jsonpath={.z}{\":\"}":   {":\n", "1:\n2:\n"},
	} {
		list, stream := written(t, format, a, b)
		require.Equal(t, want, [2]string{list, stream}, format)
	}
	for format, want := range map[string]string{"json": "[]\n", "yaml": "[]\n", "jsonpath={.items}": "[]\n", "jsonpath={.items[*]}": ""} {
		list, _ := written(t, format)
		require.Equal(t, want, list, format)
	}
}

// TestNothingSteersATerminal: formats for programs are looked at by people too.
func TestNothingSteersATerminal(t *testing.T) {
	hostile := "a\u009b31m\u202eb\u2066\x7f\U000e0041\ufeff\U0001f600\u200d\ufffd\n\x1b]0;x\a"
	value := map[string]any{hostile: []any{hostile, "plain"}}
	for _, format := range []string{"json", "yaml"} {
		list, stream := written(t, format, value)
		for _, out := range []string{list, stream} {
			require.Equal(t, strings.Count(out, "\ufffd"), strings.Count(text.Inert(strings.ReplaceAll(out, "\n", " ")), "\ufffd"), "%s: %q", format, out)
			var back any
			read := yaml.Unmarshal
			if format == "json" {
				read = json.Unmarshal
			}
			require.NoError(t, read([]byte(out), &back), "%q", out)
			if items, is := back.([]any); is {
				back = items[0]
			}
			require.Equal(t, any(value), back, "%s: %q", format, out)
		}
	}
}

func TestBrokenBytesAreReplaced(t *testing.T) {
	list, _ := written(t, "json", json.RawMessage("{\"a\":\"\x9b31m\"}"))
	require.Equal(t, "[\n  {\n    \"a\": \"\\ufffd31m\"\n  }\n]\n", list)
}

// TestYAMLHasEachNameOnce: a document may have it twice, and JSON's readers take the last.
func TestYAMLHasEachNameOnce(t *testing.T) {
	list, _ := written(t, "yaml", json.RawMessage(`{"a":1,"b":{"c":2,"c":3},"a":[4]}`))
	require.Equal(t, "- a:\n    - 4\n  b:\n    c: 3\n", list)
}

// TestYAMLSaysWhatJSONSays reads back what was written, by YAML's own rules, and compares it with
// the JSON: text that looks like something else, any characters, and numbers of 64 bits and more.
func TestYAMLSaysWhatJSONSays(t *testing.T) {
	hard := []string{"", " ", "~", "null", "yes", "No", "on", "true", "0x10", "012", "1_000", "1e3", ".5", "-", "- a", "a: b", "#x", "a #b", "!t", "&a", "*a", "{", "[x]", "|", ">",
		"'", "\"", "2026-11-30", "12:30:45", "1234567890123456789012345e123456", "a\nb", "a\n\nb\n", "\ttab", "\u0085", "\u2028", "\x1b", "\x7f", "\ufeff", "<<", "=", "日本", "😀"}
	leaf := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) any { return rapid.SampledFrom(hard).Draw(t, "hard") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.String().Draw(t, "text") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.Uint64().Draw(t, "u64") }),
		rapid.Custom(func(t *rapid.T) any { return rapid.Int64().Draw(t, "i64") }),
		rapid.Custom(func(t *rapid.T) any {
			return rapid.SampledFrom([]any{nil, true, false, []any{}, map[string]any{}}).Draw(t, "word")
		}),
	)
	rapid.Check(t, func(t *rapid.T) {
		value := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(t, "members") {
			name := rapid.OneOf(rapid.SampledFrom(hard), rapid.String()).Draw(t, "name")
			value[name] = []any{leaf.Draw(t, "value"), map[string]any{"v": leaf.Draw(t, "inner")}}
		}
		raw, err := json.Marshal(value)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, writeYAML(&out, raw, false))
		var back any
		require.NoError(t, yaml.Unmarshal(out.Bytes(), &back), "%s", out.String())
		again, err := json.Marshal(back)
		require.NoError(t, err)
		require.JSONEq(t, string(raw), string(again), "%s", out.String())
		require.NotContains(t, out.String(), "\x1b")
		if !bytes.Contains(raw, []byte("!!")) {
			require.NotContains(t, out.String(), "!!", "a tag")
		}
	})
}

func TestYAMLKeepsNumbersDigitForDigit(t *testing.T) {
	list, _ := written(t, "yaml", json.RawMessage(`{"a":18446744073709551615,"b":1.50,"c":1e3,"d":-0}`))
	require.Equal(t, "- a: 18446744073709551615\n  b: 1.50\n  c: 1e3\n  d: -0\n", list)
}
