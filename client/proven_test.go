package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
)

// TestAProvenCertificateIsStillJudged changes everything else about a certificate that was
// accepted before.
func TestAProvenCertificateIsStillJudged(t *testing.T) {
	w := newWorld(t)
	s := &State{}
	good := w.certificate()
	now := clock.Reading{Wall: start, Boot: time.Hour}
	for range 2 {
		require.NoError(t, w.pins.checkCertificate(&good, now, s))
	}
	judge := func(cert frames.Certificate, at clock.Reading, pins Context) error {
		return pins.checkCertificate(&cert, at, s)
	}
	for i := range good.Signature {
		bad := good
		bad.Signature[i] ^= 1
		require.ErrorIs(t, judge(bad, now, *w.pins), handshake.ErrCertificateSignature)
	}
	later := good
	later.ExpiresAt++
	require.ErrorIs(t, judge(later, now, *w.pins), handshake.ErrCertificateSignature)
	over := clock.Reading{Wall: time.Unix(int64(good.ExpiresAt), 0), Boot: time.Hour}
	require.ErrorIs(t, judge(good, over, *w.pins), handshake.ErrCertificateExpired)
	early := clock.Reading{Wall: time.Unix(int64(good.IssuedAt)-60, 0), Boot: time.Hour}
	require.ErrorIs(t, judge(good, early, *w.pins), handshake.ErrCertificateEarly)
	other := *w.pins
	other.WitnessPublicKey[0] ^= 1
	require.ErrorIs(t, judge(good, now, other), handshake.ErrCertificatePin)
	other = *w.pins
	other.CoordinatorID[0] ^= 1
	require.ErrorIs(t, judge(good, now, other), handshake.ErrCertificatePin)
	require.NoError(t, judge(good, now, *w.pins))
}

// counted counts the updates of a store.
type counted struct {
	MemoryStore
	updates int
}

func (c *counted) Update(edit func([]byte) ([]byte, error)) error {
	c.updates++
	return c.MemoryStore.Update(edit)
}

// TestFlushOfWhatIsKeptAlready makes a cut durable once, and again when it has risen.
func TestFlushOfWhatIsKeptAlready(t *testing.T) {
	store := new(counted)
	s := &State{store: store, conns: map[*Conn]struct{}{}}
	_, err := s.accept(&frames.Certificate{Epoch: 1, Activation: 4}, [32]byte{1}, frames.KeyID{1})
	require.NoError(t, err)
	require.NoError(t, s.snapshotVerified(4, 1, nil))
	flushes := func(want int) {
		store.updates = 0
		require.NoError(t, s.Flush())
		require.NoError(t, s.Flush())
		require.Equal(t, want, store.updates)
		raw, err := store.Load()
		require.NoError(t, err)
		m, err := s.parse(raw)
		require.NoError(t, err)
		require.Equal(t, s.cut(), *m.Cut)
	}
	flushes(0)
	s.observe(cutSeen{Activation: 4, Sequence: 9})
	flushes(1)
	require.NoError(t, s.settle(frames.OperationID{1}, true, cutSeen{Activation: 4, Sequence: 12}, false))
	flushes(1)
}

// TestWhatWasParsedIsNotShared changes what was read twice from the same bytes, and the
// bytes by another who shares them.
func TestWhatWasParsedIsNotShared(t *testing.T) {
	store := new(MemoryStore)
	one := &State{store: store, conns: map[*Conn]struct{}{}}
	two := &State{store: store, conns: map[*Conn]struct{}{}}
	cert := &frames.Certificate{Epoch: 1, Activation: 4}
	for range 3 {
		for _, s := range []*State{one, two} {
			verified, err := s.accept(cert, [32]byte{1}, frames.KeyID{1})
			require.NoError(t, err)
			require.False(t, verified)
		}
	}
	failed := two.updateLocked(func(m *memory) error {
		m.Authority.Verified, m.AcceptedKeys[0] = true, "changed and not written"
		return ErrJournalFull
	})
	require.Error(t, failed)
	verified, err := two.accept(cert, [32]byte{1}, frames.KeyID{1})
	require.NoError(t, err)
	require.False(t, verified)
	require.True(t, two.acceptedBefore(frames.KeyID{1}))

	require.NoError(t, one.snapshotVerified(4, 7, nil))
	verified, err = two.accept(cert, [32]byte{1}, frames.KeyID{1})
	require.NoError(t, err)
	require.True(t, verified, "what another wrote")
	_, err = two.accept(&frames.Certificate{Epoch: 1, Activation: 4}, [32]byte{2}, frames.KeyID{1})
	require.ErrorAs(t, err, new(*QuarantineError))
	_, err = one.accept(cert, [32]byte{1}, frames.KeyID{1})
	require.ErrorAs(t, err, new(*QuarantineError))
}
