package commit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

func TestC06_InstallSurvivesAndAdvances(t *testing.T) {
	b := newBed(t)
	var installed error
	require.NoError(t, b.writer.Amend(Activation(b.cert), func(err error) { installed = err }))
	require.NoError(t, b.step())
	require.NoError(t, installed)
	first := b.store.State()
	require.EqualValues(t, 1, first.Head, "one hidden sequence")
	require.EqualValues(t, 1, first.AdminHead)
	require.Equal(t, b.cert.Epoch, first.Epoch)
	require.Equal(t, b.cert.Activation, first.Activation)
	require.Equal(t, b.cert.Guard().TokenSHA256, first.TokenSHA256)
	require.Empty(t, b.published[0].Events)
	require.NoError(t, b.do(create(t, 1, 1, "a"), alice).err)

	b.restart(func() { b.disk.Crash(4) })
	require.NoError(t, b.writer.Amend(Activation(b.cert), func(err error) { installed = err }))
	require.NoError(t, b.step())
	require.NoError(t, installed)
	second := b.store.State()
	require.Greater(t, second.Epoch, first.Epoch)
	require.Greater(t, second.Activation, first.Activation)
	require.Equal(t, []frames.ActivationBase{{Activation: first.Activation, Base: 0}, {Activation: second.Activation, Base: 3}}, second.Bases)
	require.EqualValues(t, 2, second.Counts[frames.KindAdmin], "one ACTIVATION and one RETENTION")
}

func TestC05_InstallThatEndsPastTheDeadlineDoesNotCount(t *testing.T) {
	b := newBed(t)
	b.disk.Hook(func(op simfs.Op) error {
		if op.Kind == "sync" {
			b.clk.Advance(leaseSeconds * time.Second)
		}
		return nil
	})
	ran := make(chan error, 1)
	go func() { ran <- b.writer.Run(context.Background()) }()
	require.ErrorIs(t, b.writer.Install(t.Context(), b.cert), ErrUnacknowledged)
	require.ErrorIs(t, <-ran, authority.ErrFenced)
}

func TestCredentialsAreOneChangeSet(t *testing.T) {
	b := newBed(t)
	running(t, b)
	var registry []frames.Credential
	for i := range 40 {
		registry = append(registry, frames.Credential{KeyID: frames.KeyID{byte(i), 9}, ScopeCeiling: 3, ExpiresAt: 99})
	}
	require.NoError(t, b.writer.SyncCredentials(t.Context(), registry))
	st := b.store.State()
	require.EqualValues(t, 1, st.Head, "one hidden sequence for all of them")
	require.EqualValues(t, 41, st.Counts[frames.KindAdmin])

	require.NoError(t, b.writer.SyncCredentials(t.Context(), registry))
	require.Equal(t, st.Commit, b.store.State().Commit, "nothing changed, nothing is written")

	require.NoError(t, b.writer.SyncCredentials(t.Context(), registry[1:]))
	require.NoError(t, b.writer.SyncCredentials(t.Context(), registry), "it comes back from history")
	st = b.store.State()
	require.EqualValues(t, 3, st.Head)
	require.EqualValues(t, 41, st.Counts[frames.KindAdmin])
	var found []frames.SnapshotRecord
	require.NoError(t, b.writer.Do(t.Context(), func(*store.Store) error { return nil }))
	found, err := b.writer.credentialRecords(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 40)
	for _, r := range found {
		want := frames.ObjectRevision(1)
		if r.ID == work.CredentialRef(registry[0].KeyID).ID {
			want = 3
		}
		require.Equal(t, want, r.Revision)
	}
}

// TestFullQueueHasRoomForTheServersOwnChanges: a refused change would stay unrecorded.
func TestFullQueueHasRoomForTheServersOwnChanges(t *testing.T) {
	b := newBed(t)
	b.options.QueueLimit = 1
	b.restart(b.disk.Kill)
	waiting := b.propose(create(t, 1, 1, "a"), alice)
	p, _ := b.proposal(create(t, 2, 2, "a"), alice)
	require.Equal(t, frames.CodeResourceExhausted, code(t, b.writer.Propose(p)))
	require.NoError(t, b.writer.Amend(Activation(b.cert), func(err error) { require.NoError(t, err) }))

	called, synced := make(chan error, 1), make(chan error, 1)
	calls := func(n int) func() bool {
		return func() bool {
			b.writer.mu.Lock()
			defer b.writer.mu.Unlock()
			return len(b.writer.calls) == n
		}
	}
	go func() { called <- b.writer.Do(context.Background(), func(*store.Store) error { return nil }) }()
	require.Eventually(t, calls(1), 10*time.Second, time.Millisecond)
	go func() {
		synced <- b.writer.SyncCredentials(context.Background(), []frames.Credential{{KeyID: frames.KeyID{1}, ScopeCeiling: 1, ExpiresAt: 9}})
	}()
	require.Eventually(t, calls(2), 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		require.NoError(t, b.step())
		return len(synced) == 1
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, <-synced)
	require.NoError(t, <-called)
	require.NoError(t, (<-waiting).err)
	require.EqualValues(t, 3, b.count(frames.KindAdmin), "RETENTION, ACTIVATION and the CREDENTIAL")
}
