package vectors_test

import (
	"io/fs"
	"maps"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"coordinator/vectors"
)

// whole is a copy of testdata's own files in memory.
func whole(t *testing.T) fstest.MapFS {
	t.Helper()
	names, err := fs.Glob(os.DirFS("testdata"), "*.json")
	if err != nil {
		t.Fatal(err)
	}
	m := fstest.MapFS{}
	for _, name := range names {
		raw, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		m[name] = &fstest.MapFile{Data: raw}
	}
	return m
}

func TestLoaderTakesWhatIsWhole(t *testing.T) {
	m := whole(t)
	m["README.md"] = &fstest.MapFile{Data: []byte("not vectors")}
	if _, err := vectors.LoadFS("copy", m); err != nil {
		t.Fatal(err)
	}
}

func TestLoaderRefuses(t *testing.T) {
	const tlv = `[{"name":"x","body":"","fields":[],"canonical":""}]`
	for _, tt := range []struct {
		name, file, content, want string
	}{
		{"a file that is missing", "tlv.json", "", "tlv.json is missing"},
		{"a file of an unknown family", "tvl.json", tlv, "no file of vectors"},
		{"an empty list as file", "tlv.json", `[]`, "empty"},
		{"an empty list in a file", "frames.json", `{"frames":[],"refused":[]}`, "empty"},
		{"a file without a list", "frames.json", `{"refused":[{"name":"x","frame":"","direction":"c2s","state":"active","code":2}]}`, "frames is missing"},
		{"a file that says nothing", "records.more.json", `{}`, "empty"},
		{"null for a list", "ed25519.json", `null`, "null"},
		{"an unknown member", "tlv.json", `[{"name":"x","body":"","error":true,"why":"?"}]`, "unknown field"},
		{"an unknown list", "records.more.json", `{"recrods":[]}`, "unknown field"},
		{"a missing member", "ed25519.json", `[{"name":"x","public_key":"","message":"","signature":""}]`, "valid is missing"},
		{"a member in other case", "ed25519.json", `[{"Name":"x","public_key":"","message":"","signature":"","valid":true}]`, "name is missing"},
		{"a case without name", "tlv.json", `[{"name":"","body":"","error":true}]`, "no name"},
		{"uppercase hex", "tlv.json", `[{"name":"x","body":"0A","error":true}]`, "lowercase hex"},
		{"half a byte", "tlv.json", `[{"name":"x","body":"0","error":true}]`, "lowercase hex"},
		{"a field of three parts", "tlv.json", `[{"name":"x","body":"","fields":[[1,"",2]],"canonical":""}]`, "pair"},
		{"a number below zero", "certificates.more.json", `{"pins":{"witness_id":"","witness_public_key":"","coordinator_id":""},"cases":[{"name":"x","certificate":"","now":-1,"valid":true}]}`, "unsigned"},
		{"something behind the value", "tlv.json", tlv + tlv, "something follows"},
		{"half a file", "tlv.json", tlv[:20], "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := whole(t)
			if tt.content == "" {
				delete(m, tt.file)
			} else {
				m[tt.file] = &fstest.MapFile{Data: []byte(tt.content)}
			}
			_, err := vectors.LoadFS("dir", m)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.file) {
				t.Errorf("error %v, want one that names %s and says %q", err, tt.file, tt.want)
			}
		})
	}
}

// Every family that the specification's vectors have is asked for.
func TestLoaderNeedsEveryFamily(t *testing.T) {
	for _, family := range []string{"tlv", "frames", "records", "digests", "certificates", "handshake", "ed25519"} {
		m := whole(t)
		maps.DeleteFunc(m, func(name string, _ *fstest.MapFile) bool { return name == family+".json" })
		if _, err := vectors.LoadFS("dir", m); err == nil {
			t.Errorf("loaded without %s.json", family)
		}
	}
}

func TestFurtherDirectory(t *testing.T) {
	for _, dir := range []string{"vectors/testdata", mustAbs(t, "testdata")} {
		t.Setenv(vectors.DirVariable, dir)
		sets := vectors.Load(t)
		if len(sets) != 2 || len(sets[1].TLV) != len(sets[0].TLV) || len(sets[1].Frames) != len(sets[0].Frames) {
			t.Errorf("%s: %d sets", dir, len(sets))
		}
	}
}

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return wd + "/" + path
}
