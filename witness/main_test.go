package witness

import (
	"crypto/rand"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	testWitness = frames.WitnessID{15: 7}
	coordA      = frames.CoordinatorID{0: 0xaa}
	coordB      = frames.CoordinatorID{0: 0xbb}
	incA        = frames.IncarnationID{0: 1}
	incB        = frames.IncarnationID{0: 2}
	signKey     = handshake.NewKey(sha256.Sum256([]byte("witness signing key")))
	linkKey     = handshake.NewKey(sha256.Sum256([]byte("link key")))
	holderA     = handshake.KeyIDOf(linkKey.Public())
	holderB     = frames.KeyID{0: 0xb0}
)

const bootOne, bootTwo = "boot-one", "boot-two"

func startClock() *clock.Manual {
	return clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 500), Boot: time.Hour})
}

func options(clk clock.Clock, boot string) Options {
	return Options{ID: testWitness, Key: signKey, BootID: boot, Clock: clk, Rand: rand.Reader}
}

// privateDir makes a directory that the checks for private material accept.
func privateDir(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "witness")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

// newWitness makes and opens a fresh witness, which is closed with the test.
func newWitness(t testing.TB, clk clock.Clock) (*Witness, string) {
	t.Helper()
	dir := privateDir(t)
	require.NoError(t, Create(dir, testWitness))
	return openWitness(t, dir, options(clk, bootOne)), dir
}

func openWitness(t testing.TB, dir string, o Options) *Witness {
	t.Helper()
	w, err := Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// requireCode fails unless err is the witness's refusal with this code.
func requireCode(t testing.TB, code frames.Code, err error) {
	t.Helper()
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, code, refused.Code, "%v", err)
}

// copyState copies the file of an open witness elsewhere, as a crash leaves it.
func copyState(t testing.TB, dir string) string {
	t.Helper()
	to := privateDir(t)
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(to, stateFile), data, 0o600))
	return to
}

// failingReader has no randomness.
type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

var errEMFILE error = syscall.EMFILE
