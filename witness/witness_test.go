package witness

import (
	"bytes"
	"crypto/sha256"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"

	"github.com/stretchr/testify/require"
)

func pinsFor(c frames.CoordinatorID) handshake.Pins {
	return handshake.Pins{WitnessID: testWitness, WitnessPublicKey: signKey.Public(), CoordinatorID: c}
}

func TestCertificateIsValid(t *testing.T) {
	clk := startClock()
	w, _ := newWitness(t, clk)
	cert, err := w.Activate(holderA, coordA, 5, incA, 60)
	require.NoError(t, err)
	now := clk.Now().Unix()
	require.NoError(t, handshake.VerifyCertificate(&cert, pinsFor(coordA), now))
	require.Equal(t, frames.AuthorityEpoch(5), cert.Epoch)
	require.Equal(t, frames.ActivationSequence(1), cert.Activation)
	require.Equal(t, incA, cert.IncarnationID)
	require.Equal(t, now, cert.IssuedAt)
	require.Equal(t, now+60, cert.ExpiresAt)

	clk.Advance(20*time.Second + 400*time.Millisecond)
	next, err := w.Renew(coordA, cert.Epoch, cert.Activation, incA, cert.Token, 60)
	require.NoError(t, err)
	require.NoError(t, handshake.VerifyCertificate(&next, pinsFor(coordA), clk.Now().Unix()))
	require.Equal(t, cert.Token, next.Token)
	require.Equal(t, cert.Activation, next.Activation)
	require.Equal(t, clk.Now().Unix()+60, next.ExpiresAt)
}

// TestC05_OneLease: while a lease is live nobody activates, not even its holder; afterwards
// exactly one does.
func TestC05_OneLease(t *testing.T) {
	clk := startClock()
	w, _ := newWitness(t, clk)
	first, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.NoError(t, err)

	_, err = w.Activate(holderA, coordA, 1, incA, 15)
	requireCode(t, frames.CodeStaleAuthority, err)
	for _, h := range []frames.KeyID{holderA, holderB} {
		_, err = w.Activate(h, coordA, 2, incB, 15)
		requireCode(t, frames.CodeResourceExhausted, err)
	}
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, Status{LastEpoch: 1, Activation: 1, LeaseRemaining: 15 * time.Second}, s)
	// Another coordinator is another authority.
	_, err = w.Activate(holderB, coordB, 1, incB, 15)
	require.NoError(t, err)

	clk.Advance(15*time.Second - 1)
	_, err = w.Activate(holderB, coordA, 2, incB, 15)
	requireCode(t, frames.CodeResourceExhausted, err)
	clk.Advance(1)
	second, err := w.Activate(holderB, coordA, 2, incB, 15)
	require.NoError(t, err)
	require.Equal(t, frames.ActivationSequence(2), second.Activation)
	require.NotEqual(t, first.Token, second.Token)
	// The former holder has nothing left.
	_, err = w.Renew(coordA, first.Epoch, first.Activation, incA, first.Token, 15)
	requireCode(t, frames.CodeStaleAuthority, err)
	requireCode(t, frames.CodeStaleAuthority, w.Relinquish(holderA, coordA, first.Token, incA))
}

// TestC05_WallStepsDecideNothing: on one boot BOOTTIME alone ends a lease.
func TestC05_WallStepsDecideNothing(t *testing.T) {
	for _, step := range []time.Duration{-1000 * time.Hour, time.Hour, 100_000 * time.Hour} {
		clk := startClock()
		w, dir := newWitness(t, clk)
		_, err := w.Activate(holderA, coordA, 1, incA, 15)
		require.NoError(t, err)
		clk.StepWall(step)
		_, err = w.Activate(holderA, coordA, 2, incB, 15)
		requireCode(t, frames.CodeResourceExhausted, err)
		require.NoError(t, w.Close())
		clk.Advance(10 * time.Second)
		w = openWitness(t, dir, options(clk, bootOne))
		s, err := w.Status(coordA)
		require.NoError(t, err)
		require.Equal(t, 5*time.Second, s.LeaseRemaining, "step %v", step)
		clk.Advance(5 * time.Second)
		cert, err := w.Activate(holderA, coordA, 2, incB, 15)
		require.NoError(t, err)
		require.Equal(t, clk.Now().Unix(), cert.IssuedAt)
	}
}

// TestC05_Reboot: an unspent lease counts from the witness's first start in the new boot, and a
// second start in that boot does not prolong it; a spent one delays nobody.
func TestC05_Reboot(t *testing.T) {
	clk := startClock()
	w, dir := newWitness(t, clk)
	cert, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.NoError(t, err)
	spent, err := w.Activate(holderB, coordB, 1, incB, 60)
	require.NoError(t, err)
	require.NoError(t, w.Relinquish(holderB, coordB, spent.Token, incB))
	require.NoError(t, w.Close())

	clk = startClock() // BOOTTIME went back, as it does
	w = openWitness(t, dir, options(clk, bootTwo))
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, 15*time.Second, s.LeaseRemaining)
	_, err = w.Activate(holderB, coordB, 2, incA, 60)
	require.NoError(t, err)
	clk.Advance(10 * time.Second)
	require.NoError(t, w.Close())

	w = openWitness(t, dir, options(clk, bootTwo))
	s, err = w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, 5*time.Second, s.LeaseRemaining)
	// The holder may have lived through it elsewhere.
	next, err := w.Renew(coordA, 1, 1, incA, cert.Token, 15)
	require.NoError(t, err)
	require.Equal(t, cert.Token, next.Token)
}

// A machine image that was restored runs under the same boot id with an earlier BOOTTIME.
func TestRestoredImageNeverProlongsALease(t *testing.T) {
	clk := startClock()
	clk.Advance(1000 * time.Hour)
	w, dir := newWitness(t, clk)
	_, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	w = openWitness(t, dir, options(startClock(), bootOne))
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, 15*time.Second, s.LeaseRemaining)
}

func TestRenewNeverShortens(t *testing.T) {
	clk := startClock()
	w, dir := newWitness(t, clk)
	cert, err := w.Activate(holderA, coordA, 1, incA, 60)
	require.NoError(t, err)
	clk.Advance(10*time.Second + 250*time.Millisecond)
	cert, err = w.Renew(coordA, 1, 1, incA, cert.Token, 6)
	require.NoError(t, err)
	// 49.75 s are left; the certificate promises no more than the whole seconds of that.
	require.Equal(t, uint64(49), cert.ExpiresAt-cert.IssuedAt)
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, 50*time.Second, s.LeaseRemaining)
	// What is left is the lease's length after a reboot.
	require.NoError(t, w.Close())
	w = openWitness(t, dir, options(startClock(), bootTwo))
	s, err = w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, 50*time.Second, s.LeaseRemaining)
}

func TestRenewNeedsEveryValue(t *testing.T) {
	clk := startClock()
	w, _ := newWitness(t, clk)
	cert, err := w.Activate(holderA, coordA, 3, incA, 15)
	require.NoError(t, err)
	bad := cert.Token
	bad[31] ^= 1
	for _, tt := range []struct {
		name  string
		c     frames.CoordinatorID
		epoch frames.AuthorityEpoch
		act   frames.ActivationSequence
		inc   frames.IncarnationID
		token [32]byte
	}{
		{"never activated", coordB, 3, 1, incA, cert.Token},
		{"lower epoch", coordA, 2, 1, incA, cert.Token},
		{"higher epoch", coordA, 4, 1, incA, cert.Token},
		{"other activation", coordA, 3, 2, incA, cert.Token},
		{"other incarnation", coordA, 3, 1, incB, cert.Token},
		{"other token", coordA, 3, 1, incA, bad},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := w.Renew(tt.c, tt.epoch, tt.act, tt.inc, tt.token, 15)
			requireCode(t, frames.CodeStaleAuthority, err)
		})
	}
	clk.Advance(15 * time.Second)
	_, err = w.Renew(coordA, 3, 1, incA, cert.Token, 15)
	requireCode(t, frames.CodeStaleAuthority, err)
}

func TestRelinquish(t *testing.T) {
	clk := startClock()
	w, dir := newWitness(t, clk)
	cert, err := w.Activate(holderA, coordA, 1, incA, 60)
	require.NoError(t, err)
	// The token is in every client's hands: alone it proves nothing.
	requireCode(t, frames.CodeStaleAuthority, w.Relinquish(holderB, coordA, cert.Token, incA))
	requireCode(t, frames.CodeStaleAuthority, w.Relinquish(holderA, coordA, cert.Token, incB))
	requireCode(t, frames.CodeStaleAuthority, w.Relinquish(holderA, coordA, [32]byte{1}, incA))
	requireCode(t, frames.CodeStaleAuthority, w.Relinquish(holderA, coordB, cert.Token, incA))
	require.NoError(t, w.Relinquish(holderA, coordA, cert.Token, incA))
	require.NoError(t, w.Close())
	w = openWitness(t, dir, options(clk, bootOne))
	require.NoError(t, w.Relinquish(holderA, coordA, cert.Token, incA), "a repeat is acknowledged")
	_, err = w.Renew(coordA, 1, 1, incA, cert.Token, 60)
	requireCode(t, frames.CodeStaleAuthority, err)
	_, err = w.Activate(holderB, coordA, 1, incB, 60)
	requireCode(t, frames.CodeStaleAuthority, err)
	_, err = w.Activate(holderB, coordA, 2, incB, 60)
	require.NoError(t, err)
	requireCode(t, frames.CodeStaleAuthority, w.Relinquish(holderA, coordA, cert.Token, incA))
}

func TestLeaseLengthIsBounded(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, testWitness))
	o := options(startClock(), bootOne)
	o.MaxLeaseSecs = 20
	w := openWitness(t, dir, o)
	for _, secs := range []uint16{0, 21, 60, 65535} {
		_, err := w.Activate(holderA, coordA, 1, incA, secs)
		requireCode(t, frames.CodeMalformedMessage, err)
	}
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Zero(t, s)
	o.MaxLeaseSecs = 61
	_, err = Open(privateDir(t), o)
	require.Error(t, err)
}

func TestNoRandomnessNoGrant(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, testWitness))
	o := options(startClock(), bootOne)
	o.Rand = failingReader{}
	w := openWitness(t, dir, o)
	_, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.Error(t, err)
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Zero(t, s)
}

// TestC04_TokenIsKeptNowhere: neither the file nor the log holds a token.
func TestC04_TokenIsKeptNowhere(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, testWitness))
	var log bytes.Buffer
	o := options(startClock(), bootOne)
	o.Logger = slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := openWitness(t, dir, o)
	cert, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.NoError(t, err)
	_, err = w.Renew(coordA, 1, 1, incA, cert.Token, 15)
	require.NoError(t, err)
	require.NoError(t, w.Relinquish(holderA, coordA, cert.Token, incA))
	file, err := os.ReadFile(filepath.Join(dir, stateFile))
	require.NoError(t, err)
	require.NotContains(t, string(file), string(cert.Token[:]))
	hash := sha256.Sum256(cert.Token[:])
	require.Contains(t, string(file), string(hash[:]), "or the test looks at the wrong bytes")
	require.Contains(t, log.String(), coordA.String())
	require.Contains(t, log.String(), "relinquished")
	for _, form := range []string{string(cert.Token[:]), frames.Fingerprint(cert.Token).String()[7:], frames.Fingerprint(hash).String()[7:]} {
		require.NotContains(t, log.String(), form)
	}
}

func TestSecondInstanceIsRefused(t *testing.T) {
	_, dir := newWitness(t, startClock())
	_, err := Open(dir, options(startClock(), bootOne))
	var held *durable.HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, os.Getpid(), held.PID)
}

// TestC05_LostLockGrantsNothing: once the lock file is another one, a second instance may run.
func TestC05_LostLockGrantsNothing(t *testing.T) {
	w, dir := newWitness(t, startClock())
	require.NoError(t, os.Rename(filepath.Join(dir, lockFile), filepath.Join(dir, "away")))
	_, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.ErrorIs(t, err, ErrFailed)
	_, err = w.Status(coordA)
	require.ErrorIs(t, err, ErrFailed, "a failed witness stays failed")
}

func TestFailedWriteStopsTheWitness(t *testing.T) {
	w, dir := newWitness(t, startClock())
	_, err := w.Activate(holderA, coordA, 1, incA, 15)
	require.NoError(t, err)
	require.NoError(t, w.ledger.db.Close()) // every write fails from here on
	_, err = w.Activate(holderB, coordB, 1, incB, 15)
	require.ErrorIs(t, err, ErrFailed)
	_, err = w.Renew(coordA, 1, 1, incA, [32]byte{}, 15)
	require.ErrorIs(t, err, ErrFailed)
	require.NoError(t, w.Close())
	w = openWitness(t, dir, options(startClock(), bootOne))
	s, err := w.Status(coordB)
	require.NoError(t, err)
	require.Zero(t, s)
}

func TestCreateNeverReplaces(t *testing.T) {
	w, dir := newWitness(t, startClock())
	_, err := w.Activate(holderA, coordA, 9, incA, 15)
	require.NoError(t, err)
	require.ErrorIs(t, Create(dir, testWitness), fs.ErrExist)
	require.NoError(t, w.Close())
	w = openWitness(t, dir, options(startClock(), bootOne))
	s, err := w.Status(coordA)
	require.NoError(t, err)
	require.Equal(t, frames.AuthorityEpoch(9), s.LastEpoch)
}

func TestOpenRefusals(t *testing.T) {
	clk := startClock()
	w, dir := newWitness(t, clk)
	require.NoError(t, w.Close())

	t.Run("another witness id", func(t *testing.T) {
		o := options(clk, bootOne)
		o.ID = frames.WitnessID{1}
		_, err := Open(dir, o)
		var identity *IdentityError
		require.ErrorAs(t, err, &identity)
	})
	t.Run("no file", func(t *testing.T) {
		empty := privateDir(t)
		_, err := Open(empty, options(clk, bootOne))
		var missing *MissingError
		require.ErrorAs(t, err, &missing)
		require.NoFileExists(t, filepath.Join(empty, stateFile))
	})
	t.Run("file that others may read", func(t *testing.T) {
		open := copyState(t, dir)
		require.NoError(t, os.Chmod(filepath.Join(open, stateFile), 0o644))
		_, err := Open(open, options(clk, bootOne))
		var unsafe *durable.UnsafeFileError
		require.ErrorAs(t, err, &unsafe)
	})
	t.Run("directory that others may enter", func(t *testing.T) {
		open := copyState(t, dir)
		require.NoError(t, os.Chmod(open, 0o755))
		_, err := Open(open, options(clk, bootOne))
		var unsafe *durable.UnsafeFileError
		require.ErrorAs(t, err, &unsafe)
	})
	t.Run("no boot id", func(t *testing.T) {
		_, err := Open(dir, options(clk, ""))
		require.Error(t, err)
	})
	t.Run("closed", func(t *testing.T) {
		_, err := w.Status(coordA)
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestInspectReadsARunningWitness(t *testing.T) {
	clk := startClock()
	w, dir := newWitness(t, clk)
	_, err := w.Activate(holderA, coordA, 4, incA, 15)
	require.NoError(t, err)
	clk.Advance(5 * time.Second)
	id, all, err := Inspect(dir, bootOne, clk.Now())
	require.NoError(t, err)
	require.Equal(t, testWitness, id)
	require.Len(t, all, 1)
	require.Equal(t, coordA, all[0].Coordinator)
	require.Equal(t, 10*time.Second, all[0].Remaining)
	_, all, err = Inspect(dir, bootTwo, clk.Now())
	require.NoError(t, err)
	require.True(t, all[0].OtherBoot)
	require.Equal(t, 15*time.Second, all[0].Remaining)
}
