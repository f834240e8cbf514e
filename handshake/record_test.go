package handshake

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"coordinator/frames"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawRecord(t *rapid.T, rules Rules) Record {
	key := NewKey([32]byte(rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "seed")))
	r := Record{
		PublicKey: key.pub, KeyID: KeyIDOf(key.pub),
		Scope:     rapid.SampledFrom([]uint64{1, 2, 3, 0x20, 0x21, 0x23}).Draw(t, "scope"),
		ExpiresAt: rapid.Uint64Range(1, uint64(maxTime)).Draw(t, "expires"),
		RevokedAt: rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(1, uint64(maxTime))).Draw(t, "revoked"),
		Label:     rapid.StringMatching(`[a-zA-Z0-9._@:+/-]{1,64}`).Draw(t, "label"),
	}
	if rules.NeedCoordinator {
		copy(r.Coordinator[:], rapid.SliceOfN(rapid.ByteRange(1, 255), 16, 16).Draw(t, "coordinator"))
	}
	return r
}

func TestRecordLinesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := Rules{testScopes, rapid.Bool().Draw(t, "need")}
		r := drawRecord(t, rules)
		line := r.Line(rules)
		back, err := ParseRecord(line, rules)
		if err != nil || back != r {
			t.Fatalf("%s reads as %+v, %v", line, back, err)
		}
		// Any order of the fields, any spaces and a comment mean the same.
		fields := strings.Fields(line)
		rest := rapid.Permutation(fields[1:]).Draw(t, "order")
		loose := "  " + fields[0] + "\t" + strings.Join(rest, "   ") + " \t# " + rapid.StringMatching(`[ -~]{0,20}`).Draw(t, "comment")
		back, err = ParseRecord(loose, rules)
		if err != nil || back != r {
			t.Fatalf("%s reads as %+v, %v", loose, back, err)
		}
	})
}

func TestParseRecordNeverPanicsNorEchoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.OneOf(rapid.String(), rapid.StringMatching(`ed25519:[0-9a-f]{64}( (scope|expires|label|x)=[a-z0-9_,:-]{0,12}){0,5}`)).Draw(t, "line")
		r, err := ParseRecord(line, testRules)
		if err == nil {
			if back, err := ParseRecord(r.Line(testRules), testRules); err != nil || back != r {
				t.Fatalf("canonical line of %q reads as %+v, %v", line, back, err)
			}
		} else if _, ok := err.(*lineProblem); !ok {
			t.Fatalf("error is a %T", err)
		}
	})
}

func TestC04_BadRegistryFilesNameTheLine(t *testing.T) {
	good := testRecord(1)
	line := good.Line(testRules)
	with := func(old, new string) string { return strings.Replace(line, old, new, 1) + "\n" }
	second := testRecord(2)
	secret := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, tt := range []struct {
		name string
		file string
		line int
		text string
	}{
		{"empty", "", 1, "empty"},
		{"no final line feed", second.Line(testRules) + "\n" + line, 2, "line feed"},
		{"cut in the middle", second.Line(testRules) + "\n" + line[:100], 2, "line feed"},
		{"unknown scope", "# c\n\n" + with("work_read", "work_raed"), 3, "unknown scope"},
		{"empty scope", with("scope=work_read,work_command", "scope="), 1, "no value"},
		{"trailing comma in scope", with("work_read,", "work_read,,"), 1, "unknown scope"},
		{"scope twice in the list", with("work_read,work_command", "work_read,work_read"), 1, "named twice"},
		{"scope all", with("work_read,work_command", "all"), 1, "unknown scope"},
		{"field twice", with("label=", "label=x label="), 1, "given twice"},
		{"unknown field", with("label=", "lable=x label="), 1, "unknown"},
		{"no scope", with("scope=work_read,work_command ", ""), 1, "scope= is missing"},
		{"no expiry", with(fmt.Sprintf("expires=%s ", formatTime(testEnd)), ""), 1, "expires= is missing"},
		{"no label", with(" label="+good.Label, ""), 1, "label= is missing"},
		{"date without time", with(formatTime(testEnd), "2027-01-01"), 1, "expires="},
		{"year zero", with(formatTime(testEnd), "0000-01-01T00:00:00Z"), 1, "expires="},
		{"fraction of a second", with(formatTime(testEnd), "2027-01-01T00:00:00.5Z"), 1, "expires="},
		{"bad revocation", with("label=", "revoked=yes label="), 1, "revoked="},
		{"bad label", with("label=", "label=é"), 1, "not printable"},
		{"label of a foreign byte", with("label=", "label=a%"), 1, "label"},
		{"coordinator without use", with("label=", "coordinator=00112233445566778899aabbccddeeff label="), 1, "no meaning"},
		{"carriage return", line + "\r\n", 1, "not printable"},
		{"uppercase key", strings.ToUpper(line[:72]) + line[72:] + "\n", 1, "public key"},
		{"a secret pasted in", secret + "\n", 1, "public key"},
		{"the key twice", line + "\n# again\n" + line + "\n", 3, "key of line 1"},
		{"line too long", line + " #" + strings.Repeat("x", 1024) + "\n", 1, "longer"},
		{"bytes of no text", "\x00\x01\n", 1, "not printable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			records, err := parseRegistry("/s/workload-keys", []byte(tt.file), testRules)
			require.Nil(t, records)
			var bad *RegistryError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, tt.line, bad.Line, "%v", err)
			require.Contains(t, err.Error(), tt.text)
			require.Contains(t, err.Error(), "/s/workload-keys line ")
			require.NotEmpty(t, bad.Mend)
			require.NotContains(t, err.Error(), secret)
		})
	}
}

func TestRegistryOfTheLinksNamesCoordinators(t *testing.T) {
	rules := Rules{testScopes, true}
	r := testRecord(1)
	_, err := ParseRecord(r.Line(rules), rules)
	require.ErrorContains(t, err, "coordinator= is missing")
	r.Coordinator = frames.CoordinatorID{0xab}
	line := r.Line(rules)
	back, err := ParseRecord(line, rules)
	require.NoError(t, err)
	require.Equal(t, r, back)
	for _, bad := range []string{"AB" + strings.Repeat("0", 30), strings.Repeat("0", 32), "ab"} {
		_, err = ParseRecord(strings.Replace(line, "ab"+strings.Repeat("0", 30), bad, 1), rules)
		require.Error(t, err, bad)
	}
}

func TestRegistryRecordCap(t *testing.T) {
	var b bytes.Buffer
	for i := range MaxRegistryRecords + 1 {
		r := testRecord(1)
		r.PublicKey = NewKey([32]byte{byte(i), byte(i >> 8), 1}).pub
		b.WriteString(r.Line(testRules) + "\n")
	}
	_, err := parseRegistry("p", b.Bytes(), testRules)
	var bad *RegistryError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, MaxRegistryRecords+1, bad.Line)
}

func TestScopeNames(t *testing.T) {
	n := EndpointScopes()
	require.Equal(t, uint64(frames.AllScopes), n.All())
	require.Equal(t, "work_read,work_command,terminal_control,artifact_read,signal_ack,admin", n.Format(n.All()))
	bits, err := n.Parse("admin,work_read")
	require.NoError(t, err)
	require.Equal(t, uint64(0x21), bits)
	require.Equal(t, "work_read,admin", n.Format(bits))
	_, err = n.Parse("")
	require.Error(t, err)
}
