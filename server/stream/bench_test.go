package stream

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
	"coordinator/server/work"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tester is what testing.T and rapid.T share.
type tester interface {
	require.TestingT
	Helper()
	Cleanup(func())
	Context() context.Context
}

// bench is a store driven by the test itself, which is its writer, with the room
// above it.
type bench struct {
	t      tester
	dir    string
	opts   store.Options
	store  *store.Store
	m      *Manager
	quotas *quota.Server
	clock  *clock.Manual
	guard  frames.AuthorityGuard
	viewer work.Viewer
	window int
	refuse error // what Do answers instead of running

	events    []store.Event // all that was published
	revisions map[frames.ObjectRef]frames.ObjectRevision
	admin     frames.ObjectRevision
}

func newBench(t *testing.T) *bench { return newBenchIn(t, t.TempDir(), 4<<20, 0) }

func newBenchIn(t tester, dir string, segment int64, window int) *bench {
	t.Helper()
	b := &bench{
		t: t, dir: dir, window: window,
		clock:     clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour}),
		revisions: make(map[frames.ObjectRef]frames.ObjectRevision),
	}
	id := newID[frames.CoordinatorID](t)
	b.opts = store.Options{FS: simfs.New(), Manual: true, UnsafeNoSync: true, SegmentBytes: segment, Clock: b.clock}
	require.NoError(t, store.Create(dir, store.Genesis{CoordinatorID: id, CreatedAt: time.Unix(1, 0)}, b.opts))
	b.guard = frames.AuthorityGuard{CoordinatorID: id, Epoch: 3, Activation: 4, TokenSHA256: [32]byte{5}}
	b.viewer = work.Viewer{
		Principal: frames.KeyID{1}, Scope: frames.AllScopes,
		Capabilities: (work.Capabilities | Capabilities) &^ frames.CapWithoutOperations,
	}
	b.quota(func(*quota.Limits) {})
	b.start()
	t.Cleanup(func() { require.NoError(t, b.store.Close()) })
	return b
}

// quota replaces the accounts; sessions made before keep theirs.
func (b *bench) quota(change func(*quota.Limits)) {
	b.t.Helper()
	l := quota.Defaults()
	change(&l)
	var err error
	b.quotas, err = quota.New(l)
	require.NoError(b.t, err)
}

// start opens the store and makes a room for it.
func (b *bench) start() {
	b.t.Helper()
	var err error
	b.store, err = store.Open(b.dir, b.opts)
	require.NoError(b.t, err)
	b.m = New(Options{
		Clock: b.clock, Rand: rand.Reader, Guard: b.guard, Store: b.store, WindowBytes: b.window,
		Do: func(_ context.Context, f func(*store.Store) error) error {
			if b.refuse != nil {
				return b.refuse
			}
			return f(b.store)
		},
	})
}

// restart is a new process on the same store. Sessions of the old one are over.
func (b *bench) restart() {
	b.t.Helper()
	require.NoError(b.t, b.store.Close())
	b.start()
}

func newID[T ~[16]byte](t require.TestingT) T {
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

// commit makes a transaction durable and publishes it.
func (b *bench) commit(fill func(*store.Tx)) store.Batch {
	b.t.Helper()
	tx := b.store.Begin()
	fill(tx)
	batch, err := b.store.Commit(tx, b.clock.Now().Wall)
	require.NoError(b.t, err)
	b.events = append(b.events, batch.Events...)
	b.m.Publish(batch)
	return batch
}

// put commits one objective, new or replaced.
func (b *bench) put(id frames.ObjectID, rev frames.ObjectRevision, size int) {
	b.t.Helper()
	b.commit(func(tx *store.Tx) { b.emit(tx, id, rev, size) })
}

func (b *bench) emit(tx *store.Tx, id frames.ObjectID, rev frames.ObjectRevision, size int) {
	b.t.Helper()
	rec, err := frames.NewRecord(frames.ObjectRef{Kind: frames.KindObjective, ID: id}, rev,
		&frames.Objective{DocumentSchema: 1, Document: []byte(strings.Repeat("d", size))})
	require.NoError(b.t, err)
	tx.Emit(frames.EventObjectiveChanged, newID[frames.EventID](b.t), store.Row{Record: rec, Live: true})
	b.revisions[rec.Ref()] = rev
}

// operation adds a finished operation of a principal.
func (b *bench) operation(tx *store.Tx, of frames.KeyID) {
	b.t.Helper()
	ref := frames.ObjectRef{Kind: frames.KindOperation, ID: newID[frames.ObjectID](b.t)}
	rec, err := frames.NewRecord(ref, 1, &frames.Operation{
		Principal: of, Result: frames.OperationResult{State: frames.OperationSucceeded, Sequence: frames.EventSequence(tx.Head()) + 1, Payload: []byte{}},
	})
	require.NoError(b.t, err)
	tx.Emit(frames.EventOperationChanged, newID[frames.EventID](b.t), store.Row{Record: rec, Principal: of})
}

// remove takes an objective away as an archive does, and remembers where for the next process.
func (b *bench) remove(tx *store.Tx, id frames.ObjectID) {
	b.t.Helper()
	ref := frames.ObjectRef{Kind: frames.KindObjective, ID: id}
	payload, err := codec.EncodeImage(nil, &ref)
	require.NoError(b.t, err)
	at := tx.EmitEvent(frames.ReplayEvent{
		ID: newID[frames.EventID](b.t), Kind: frames.EventObjectRemoved, Object: ref, Revision: b.revisions[ref] + 1, Schema: 1, Payload: payload,
	})
	tx.Remove(ref)
	annex := binary.BigEndian.AppendUint64([]byte{1, 0, 1, 0, byte(frames.KindObjective)}, uint64(at))
	tx.Put(store.Row{
		Record: frames.SnapshotRecord{Kind: work.RemovalsKind, ID: frames.ObjectID{15: 1}, Revision: 1}, Live: true, Annex: annex,
	})
	delete(b.revisions, ref)
}

// write commits n new objectives, one commit each, and counts.
func (b *bench) write(n int) {
	b.t.Helper()
	for range n {
		b.put(newID[frames.ObjectID](b.t), 1, 10)
	}
	b.m.fanOut()
}

// changeAdmin commits an ADMIN change that has no operation of its own.
func (b *bench) changeAdmin() {
	b.t.Helper()
	b.admin++
	rec, err := frames.NewRecord(work.RetentionRef(), b.admin, &frames.Admin{Kind: frames.AdminRetention, Payload: []byte{1}})
	require.NoError(b.t, err)
	b.commit(func(tx *store.Tx) {
		tx.Hidden()
		tx.Put(store.Row{Record: rec, Live: true})
	})
}

// trim checkpoints everything and lets the log drop all but its newest segments.
func (b *bench) trim() {
	b.t.Helper()
	b.store.SetEventBytes(1)
	for more := true; more; {
		var err error
		b.store.Maintain()
		more, err = b.store.CheckpointStep()
		require.NoError(b.t, err)
	}
	b.store.Maintain()
}

func (b *bench) session(limits ...func(*frames.Limits)) *Session {
	b.t.Helper()
	account, err := b.quotas.Connect(quota.Principal(b.viewer.Principal))
	require.NoError(b.t, err)
	b.t.Cleanup(account.Close)
	l := frames.ReferenceLimits()
	for _, f := range limits {
		f(&l)
	}
	s := b.m.NewSession(SessionOptions{Viewer: b.viewer, Limits: l, Account: account})
	b.t.Cleanup(s.Close)
	return s
}

// head is the newest published sequence.
func (b *bench) head() frames.EventCut { return b.m.window.published() }

// sees is the one predicate, asked directly.
func (b *bench) sees(ev *store.Event) bool {
	if ev.Kind == frames.EventObjectRemoved {
		return work.VisibleRemoval(ev.Object.Kind, b.viewer)
	}
	return work.Visible(ev.Class, ev.Principal, b.viewer)
}

// plenty is credit for whatever a test sends.
const (
	plentyEvents = 1024
	plentyBytes  = 4 << 20
)

// subscribe opens a direct subscription and takes its SUBSCRIBED.
func (b *bench) subscribe(s *Session, after frames.EventCut, count, bytes uint32) frames.SubscriptionID {
	b.t.Helper()
	r, err := s.Subscribe(&frames.Subscribe{RequestID: 1, Guard: b.guard, After: after, CreditCount: count, CreditBytes: bytes})
	require.NoError(b.t, err)
	r.Sent()
	return r.Frames[0].(*frames.Subscribed).SubscriptionID
}

// pull takes what one write would carry, and decodes it.
func (b *bench) pull(s *Session) []frames.Frame {
	b.t.Helper()
	return b.pullUpTo(s, 512, 64<<10)
}

func (b *bench) pullUpTo(s *Session, events, size int) (out []frames.Frame) {
	b.t.Helper()
	var raw []byte
	s.Fetch(events, size)
	s.Gaps(func(frame []byte) { raw = append(raw, frame...) })
	s.Pull(Batch{Frames: events, Bytes: size, Emit: func(head, tail []byte) { raw = append(append(raw, head...), tail...) }})
	return b.decode(raw)
}

// pullAll pulls until nothing is due.
func (b *bench) pullAll(s *Session) (out []frames.Frame) {
	b.t.Helper()
	for rounds := 0; s.Ready(); rounds++ {
		require.Less(b.t, rounds, 10_000, "it is due and nothing comes")
		out = append(out, b.pull(s)...)
	}
	return out
}

func (b *bench) decode(raw []byte) (out []frames.Frame) {
	b.t.Helper()
	in := bytes.NewReader(raw)
	for {
		var h [codec.HeaderSize]byte
		n, kind, err := codec.ReadHeader(in, &h)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(b.t, err)
		body := make([]byte, n-1)
		_, err = io.ReadFull(in, body)
		require.NoError(b.t, err)
		f, err := frames.Decode(frames.Type(kind), body)
		require.NoError(b.t, err)
		out = append(out, f)
	}
}

// gapOf requires that what was pulled is one GAP.
func (b *bench) gapOf(got []frames.Frame) *frames.Gap {
	b.t.Helper()
	require.Len(b.t, got, 1)
	require.IsType(b.t, &frames.Gap{}, got[0])
	return got[0].(*frames.Gap)
}

// sequences requires that what was pulled are events and returns where they lie.
func (b *bench) sequences(got []frames.Frame) (out []frames.EventSequence) {
	b.t.Helper()
	for _, f := range got {
		require.IsType(b.t, &frames.CoordEvent{}, f)
		out = append(out, f.(*frames.CoordEvent).Sequence)
	}
	return out
}

// unsent is what the viewer's principal holds of unsent frames.
func (b *bench) unsent() uint64 { return b.used(quota.UnsentFrames) }

func (b *bench) used(what quota.Resource) uint64 {
	n, _ := b.quotas.Use(quota.Principal(b.viewer.Principal), what)
	return n
}

// told is every frame of a reply, in the order in which they go out.
func (b *bench) told(r Reply) []frames.Frame {
	b.t.Helper()
	return append(b.decode(r.Page), r.Frames...)
}
