package stream

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/server/store"
)

// archived is a room with one objective, for a viewer with or without ARCHIVE, and the cut
// that shows it.
func archived(t *testing.T, caps func(frames.Capability) frames.Capability, during func(*bench, *Session, frames.EventCut)) {
	b := newBench(t)
	b.viewer.Capabilities = caps(b.viewer.Capabilities)
	s := b.session()
	b.put(frames.ObjectID{1}, 1, 10)
	before := b.head()
	during(b, s, before)
}

func without(c frames.Capability) frames.Capability { return c &^ frames.CapArchive }
func with(c frames.Capability) frames.Capability    { return c }

func (b *bench) archive(id frames.ObjectID) {
	b.commit(func(tx *store.Tx) {
		b.remove(tx, id)
		b.operation(tx, b.viewer.Principal)
	})
	b.m.fanOut()
}

// Every way in which a subscription can be open meets a removal as it meets a change of an
// ADMIN record, unless it gets OBJECT_REMOVED.
func TestRemovalMeetsEverySubscription(t *testing.T) {
	for name, caps := range map[string]func(frames.Capability) frames.Capability{"with ARCHIVE": with, "without": without} {
		t.Run(name, func(t *testing.T) {
			archived(t, caps, func(b *bench, s *Session, before frames.EventCut) {
				gets := b.viewer.Capabilities.Has(frames.CapArchive)
				live := b.subscribe(s, before, plentyEvents, plentyBytes)
				other := b.session()
				r, err := other.Open(context.Background(), &frames.OpenSnapshot{RequestID: 1, Guard: b.guard, Reserve: true})
				require.NoError(t, err)
				r.Sent()
				b.archive(frames.ObjectID{1})
				if gets {
					require.Equal(t, []frames.EventSequence{frames.EventSequence(before) + 1, frames.EventSequence(before) + 2}, b.sequences(b.pullAll(s)))
					require.Empty(t, b.pullAll(other), "its snapshot is not applied yet")
					return
				}
				gap := b.gapOf(b.pullAll(s))
				require.Equal(t, frames.Gap{
					SubscriptionID: live, LastEvent: before, Observed: frames.EventSequence(before) + 2, Reason: frames.GapRevisionMismatch,
				}, *gap, "the operation is the first that it would have seen")
				_, err = s.OpenReplay(&frames.OpenReplay{RequestID: 2, Guard: b.guard, SubscriptionID: live, After: before})
				require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
				require.Equal(t, frames.GapRevisionMismatch, b.gapOf(b.pullAll(other)).Reason, "a reserved one")
				b.archiveAgain(s)
			})
		})
	}
}

// archiveAgain removes another objective: who is paused already gets no second GAP.
func (b *bench) archiveAgain(s *Session) {
	b.t.Helper()
	b.put(frames.ObjectID{2}, 1, 10)
	b.archive(frames.ObjectID{2})
	require.Empty(b.t, b.pullAll(s))
}

// Who sees neither what was removed nor its removal goes on.
func TestRemovalOfWhatIsNotSeen(t *testing.T) {
	archived(t, without, func(b *bench, _ *Session, before frames.EventCut) {
		b.viewer.Scope = frames.ScopeWorkCommand | frames.ScopeArtifactRead // its own operations, and evidence
		s := b.session()
		b.subscribe(s, before, plentyEvents, plentyBytes)
		b.archive(frames.ObjectID{1})
		require.Equal(t, []frames.EventSequence{frames.EventSequence(before) + 2}, b.sequences(b.pullAll(s)))
		b.subscribe(s, before, plentyEvents, plentyBytes)
		require.Equal(t, []frames.EventSequence{frames.EventSequence(before) + 2}, b.sequences(b.pullAll(s)))
	})
}

// A row that cannot be read bars everything before the start and nothing after it.
func TestRemovalsThatCannotBeRead(t *testing.T) {
	archived(t, without, func(b *bench, _ *Session, before frames.EventCut) {
		b.commit(func(tx *store.Tx) { b.remove(tx, frames.ObjectID{1}) })
		b.commit(func(tx *store.Tx) {
			tx.Put(store.Row{Record: frames.SnapshotRecord{Kind: 0x8008, ID: frames.ObjectID{15: 1}, Revision: 1}, Live: true, Annex: []byte{9}})
		})
		b.put(frames.ObjectID{3}, 1, 10)
		b.restart()
		s := b.session()
		b.subscribe(s, b.head()-1, plentyEvents, plentyBytes)
		require.Equal(t, frames.GapRevisionMismatch, b.gapOf(b.pullAll(s)).Reason)
		b.subscribe(s, b.head(), plentyEvents, plentyBytes)
		require.Empty(t, b.pullAll(s))
	})
}
