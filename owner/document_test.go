package owner

import (
	"strings"
	"testing"
	"time"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDocument(t *testing.T) {
	d, err := ParseDocument([]byte(` {"argv":["a",""],"cwd":"/x","env":{"A":"","Ä":"ö=1"},"rows":1,"cols":65535,"term":"t","grace_secs":0} `))
	require.NoError(t, err)
	zero := uint32(0)
	require.Equal(t, &Document{Argv: []string{"a", ""}, Cwd: "/x", Env: map[string]string{"A": "", "Ä": "ö=1"}, Rows: 1, Cols: 65535, Term: "t", GraceSecs: &zero}, d)
	require.Zero(t, d.grace())
	d, err = ParseDocument([]byte(`{"argv":["a"]}`))
	require.NoError(t, err)
	rows, cols := d.size()
	require.Equal(t, []uint16{24, 80}, []uint16{rows, cols})
	require.Equal(t, 5*time.Second, d.grace())
}

func TestDocumentsThatAreRefused(t *testing.T) {
	for _, doc := range []string{
		``, `null`, `[]`, `"x"`, `{`, `{}`, `{"argv":["a"]`, `{"argv":["a"]}{}`, `{"argv":["a"]} x`, `{"argv":["a"],}`,
		`{"argv":[]}`, `{"argv":null}`, `{"argv":"a"}`, `{"argv":[""]}`, `{"argv":[1]}`, `{"argv":["a",null]}`, `{"argv":["a\u0000"]}`,
		`{"argv":["a"],"argv":["b"]}`, `{"ARGV":["a"]}`, `{"Argv":["a"]}`, `{"argv":["a"],"arg\u0076":["b"]}`,
		`{"argv":["a"],"cwd":"x"}`, `{"argv":["a"],"cwd":""}`, `{"argv":["a"],"cwd":null}`, `{"argv":["a"],"cwd":"/\u0000"}`,
		`{"argv":["a"],"env":[]}`, `{"argv":["a"],"env":null}`, `{"argv":["a"],"env":{"":"x"}}`, `{"argv":["a"],"env":{"A=B":"x"}}`,
		`{"argv":["a"],"env":{"A":1}}`, `{"argv":["a"],"env":{"A":null}}`, `{"argv":["a"],"env":{"A":"x","A":"y"}}`, `{"argv":["a"],"env":{"A":"\u0000"}}`,
		`{"argv":["a"],"rows":0}`, `{"argv":["a"],"rows":65536}`, `{"argv":["a"],"cols":-1}`, `{"argv":["a"],"cols":1.5}`, `{"argv":["a"],"rows":"1"}`,
		`{"argv":["a"],"term":""}`, `{"argv":["a"],"term":"` + strings.Repeat("x", 129) + `"}`,
		`{"argv":["a"],"grace_secs":3601}`, `{"argv":["a"],"grace_secs":-1}`, `{"argv":["a"],"grace_secs":null}`,
		"{\"argv\":[\"\xff\"]}", `{"argv":["a"],"env":{"S3CRET":` + strings.Repeat("[", 20000) + `}}`,
		`{"argv":["` + strings.Repeat("a", frames.MaxTypedPayload) + `"]}`,
	} {
		_, err := ParseDocument([]byte(doc))
		require.Error(t, err, "%.60s", doc)
		require.NotContains(t, err.Error(), "S3CRET")
		require.Less(t, len(err.Error()), 200)
	}
}

// What is encoded is read back the same.
func TestDocumentsRoundTrip(t *testing.T) {
	text := rapid.StringMatching(`[^\x00]{1,8}`)
	rapid.Check(t, func(t *rapid.T) {
		d := &Document{Argv: rapid.SliceOfN(text, 1, 5).Draw(t, "argv")}
		if rapid.Bool().Draw(t, "more") {
			d.Cwd = "/" + text.Draw(t, "cwd")
			d.Env = rapid.MapOfN(rapid.StringMatching(`[^\x00=]{1,8}`), text, 1, 3).Draw(t, "env")
			d.Rows = rapid.Uint16Range(1, 500).Draw(t, "rows")
			secs := rapid.Uint32Range(0, maxGraceSecs).Draw(t, "grace")
			d.GraceSecs = &secs
		}
		raw, err := d.Encode()
		require.NoError(t, err)
		got, err := ParseDocument(raw)
		require.NoError(t, err)
		require.Equal(t, d, got)
	})
}
