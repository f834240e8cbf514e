package client

import (
	"bufio"
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
)

// benchmarkRecords is how many records or events one round of a benchmark stages.
const benchmarkRecords = 20_000

// BenchmarkSnapshotStage stages and verifies snapshots, without a server.
func BenchmarkSnapshotStage(b *testing.B) {
	for _, size := range []struct {
		name string
		doc  int
	}{{"memory", 200}, {"file", 4000}} {
		b.Run(size.name, func(b *testing.B) {
			dir, guard := b.TempDir(), frames.AuthorityGuard{Activation: 1}
			records := make([]frames.SnapshotRecord, benchmarkRecords)
			digest := frames.NewSnapshotDigest(guard, 9, benchmarkRecords)
			for i := range records {
				ref := frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID{1, byte(i >> 8), byte(i), 9}}
				r, err := frames.NewRecord(ref, 1, &frames.Objective{DocumentSchema: 1, Document: make([]byte, size.doc)})
				require.NoError(b, err)
				records[i] = r
				require.NoError(b, digest.Add(&r))
			}
			pages := snapshotBodies(b, records)
			end := &frames.SnapshotEnd{RecordCount: benchmarkRecords, Digest: digest.Sum()}
			b.ReportAllocs()
			for b.Loop() {
				t := &taking{conn: &Conn{guard: guard}, staged: newSpool(dir, maxSnapshotBytes), begin: &frames.SnapshotBegin{Guard: guard, Base: 9}}
				for _, body := range pages {
					p, err := frames.DecodeImages(frames.TypeSnapshotPage, bytes.Clone(body))
					require.NoError(b, err)
					require.NoError(b, t.stage(p.(*frames.SnapshotImages)))
				}
				require.NoError(b, t.verify(end))
				require.NoError(b, t.staged.close())
			}
		})
	}
}

// benchmarkPage is how many records or events a page of a benchmark has.
const benchmarkPage = 100

// snapshotBodies are the bodies of pages with these records.
func snapshotBodies(b *testing.B, records []frames.SnapshotRecord) (bodies [][]byte) {
	for part := range slices.Chunk(records, benchmarkPage) {
		body, err := codec.Encode(nil, &frames.SnapshotPage{RequestID: 1, SnapshotID: frames.SnapshotID{1}, Records: part})
		require.NoError(b, err)
		bodies = append(bodies, body)
	}
	return bodies
}

func replayBodies(b *testing.B, events []frames.ReplayEvent) (bodies [][]byte) {
	for part := range slices.Chunk(events, benchmarkPage) {
		body, err := codec.Encode(nil, &frames.ReplayPage{RequestID: 1, ReplayID: frames.ReplayID{1}, Events: part})
		require.NoError(b, err)
		bodies = append(bodies, body)
	}
	return bodies
}

// BenchmarkReplayStage does the same for a replay.
func BenchmarkReplayStage(b *testing.B) {
	guard, id := frames.AuthorityGuard{Activation: 1}, frames.SubscriptionID{5}
	events := make([]frames.ReplayEvent, benchmarkRecords)
	digest := frames.NewReplayDigest(guard, id, 0, benchmarkRecords, benchmarkRecords)
	for i := range events {
		events[i] = change(frames.EventSequence(i+1), 1, frames.ObjectRevision(i+1))
		require.NoError(b, digest.Add(&events[i]))
	}
	end := &frames.ReplayEnd{EventCount: benchmarkRecords, Digest: digest.Sum()}
	dir, pages := b.TempDir(), replayBodies(b, events)
	b.ReportAllocs()
	for b.Loop() {
		t := &replaying{conn: &Conn{guard: guard}, staged: &spool{head: eventHead, dir: dir, max: maxSnapshotBytes},
			begin: &frames.ReplayBegin{SubscriptionID: id, Cut: benchmarkRecords, FirstEvent: 1}}
		for _, body := range pages {
			p, err := frames.DecodeImages(frames.TypeReplayPage, bytes.Clone(body))
			require.NoError(b, err)
			require.NoError(b, t.stage(p.(*frames.ReplayImages)))
		}
		require.NoError(b, t.verify(end))
		require.NoError(b, t.staged.close())
	}
}

// BenchmarkEvents reads and delivers events that came in large reads; an operation is one event.
func BenchmarkEvents(b *testing.B) {
	const n = 10_000
	var wire []byte
	for i := range n {
		e := change(frames.EventSequence(i+1), byte(i), frames.ObjectRevision(i/256+1))
		f := (&feed{id: frames.SubscriptionID{5}, delivery: frames.DeliverySequence(i)}).live(e)
		var err error
		wire, err = frames.Append(wire, f)
		require.NoError(b, err)
	}
	c, s := following(clock.System())
	b.ReportAllocs()
	for i := 0; i < b.N; i += n {
		*s = Subscription{conn: c, phase: phaseLive, balance: credit{1 << 31, 1 << 31}, wake: make(chan struct{}, 1), seen: newRevisions(true), id: s.id}
		require.ErrorIs(b, c.readLoop(bufio.NewReaderSize(bytes.NewReader(wire), readBuffer)), ErrDisconnected)
		for range min(n, b.N-i) {
			_, err := s.Next(b.Context())
			require.NoError(b, err)
		}
	}
}

// following is a connection without a socket that has one live subscription.
func following(now clock.Clock) (*Conn, *Subscription) {
	c := &Conn{opts: Options{Clock: now}, state: &State{}, done: make(chan struct{}), subs: map[frames.SubscriptionID]*Subscription{}}
	c.hello.Limits = frames.ReferenceLimits()
	at := now.Now()
	c.lease.Store(newLease(frames.Certificate{ExpiresAt: at.Unix() + 3600}, at))
	s := &Subscription{conn: c, id: frames.SubscriptionID{5}, phase: phaseLive, balance: credit{1 << 31, 1 << 31}, wake: make(chan struct{}, 1), seen: newRevisions(true)}
	c.subs[s.id] = s
	return c, s
}

func BenchmarkClockReading(b *testing.B) {
	now := clock.System()
	for b.Loop() {
		now.Now()
	}
}
