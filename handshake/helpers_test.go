package handshake

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loadVectors decodes one golden file into v.
func loadVectors(t testing.TB, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "vectors", "testdata", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, v))
}

// hexBytes is a hex string in JSON.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

func seededKey(n byte) *Key { return NewKey([32]byte{n, 1: 0xa5}) }

const (
	testNow = 1_800_000_000
	testEnd = testNow + 3600
)

var testScopes = ScopeNames{"work_read": 1, "work_command": 2, "admin": 0x20}
var testRules = Rules{Scopes: testScopes}

func testRecord(n byte) Record {
	k := seededKey(n)
	return Record{PublicKey: k.pub, KeyID: KeyIDOf(k.pub), Scope: 3, ExpiresAt: testEnd, Label: "key-" + string('a'+rune(n))}
}

func manualClock() *clock.Manual {
	return clock.NewManual(clock.Reading{Wall: time.Unix(testNow, 0), Boot: time.Hour})
}

func stateDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

func registryText(records ...Record) []byte {
	out := []byte("# test registry\n")
	for _, r := range records {
		out = append(out, r.Line(testRules)+"\n"...)
	}
	return out
}

func writeRegistry(t testing.TB, path string, records ...Record) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, registryText(records...), 0o600))
}

var testIncarnation = frames.IncarnationID{0: 7, 15: 9}
