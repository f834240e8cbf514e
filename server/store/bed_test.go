package store_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/store/simfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	testID   = frames.CoordinatorID{15: 9}
	testTime = time.Unix(1_800_000_000, 5).UTC()
)

// fataler is what testing.T and rapid.T share.
type fataler interface {
	require.TestingT
	Helper()
	Fatalf(string, ...any)
}

// A bed is one store on a simulated disk; state.db is a real file.
type bed struct {
	t    fataler
	dir  string
	fs   *simfs.FS
	opts store.Options
	s    *store.Store
}

func bedOptions(fs *simfs.FS) store.Options {
	return store.Options{
		FS: fs, SegmentBytes: 8192, CheckpointKeys: 3, Manual: true, UnsafeNoSync: true,
		Rand: rand.NewChaCha8([32]byte{1}),
	}
}

func retention() store.Row { return makeRow(frames.KindAdmin, 1, 1, "retention", true) }

func newBed(t fataler, dir string) *bed {
	fs := simfs.New()
	b := &bed{t: t, dir: dir, fs: fs, opts: bedOptions(fs)}
	g := store.Genesis{CoordinatorID: testID, Rows: []store.Row{retention()}, CreatedAt: testTime}
	require.NoError(t, store.Create(dir, g, b.opts))
	b.open()
	return b
}

func (b *bed) open() {
	b.t.Helper()
	s, err := store.Open(b.dir, b.opts)
	require.NoError(b.t, err)
	b.s = s
}

func (b *bed) openError() error {
	b.t.Helper()
	s, err := store.Open(b.dir, b.opts)
	if err == nil {
		s.Abandon()
		b.t.Fatalf("the store opened")
	}
	return err
}

// crash ends the process and, with a seed, the machine under it.
func (b *bed) crash(seed uint64) {
	if seed == 0 {
		b.fs.Kill()
	} else {
		b.fs.Crash(seed)
	}
	b.s.Abandon() // handles of the log are gone, which it may report
}

func objectID(n uint64) (id frames.ObjectID) {
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

func makeRow(kind frames.ObjectKind, id, rev uint64, payload string, live bool) store.Row {
	return store.Row{Live: live, Record: frames.SnapshotRecord{
		Kind: kind, ID: objectID(id), Revision: frames.ObjectRevision(rev), Schema: 1, Payload: []byte(payload),
	}}
}

func ref(kind frames.ObjectKind, id uint64) frames.ObjectRef {
	return frames.ObjectRef{Kind: kind, ID: objectID(id)}
}

func eventID(n uint64) frames.EventID { return frames.EventID(objectID(n + 1)) }

// begin starts a transaction that knows refs.
func (b *bed) begin(refs ...frames.ObjectRef) *store.Tx {
	b.t.Helper()
	l, err := b.s.Prefetch(refs)
	require.NoError(b.t, err)
	tx := b.s.Begin()
	if !tx.Use(l) {
		l, err = b.s.Prefetch(refs)
		require.NoError(b.t, err)
		require.True(b.t, tx.Use(l), "a fresh prefetch is stale")
	}
	return tx
}

func (b *bed) commit(tx *store.Tx) store.Batch {
	b.t.Helper()
	batch, err := b.s.Commit(tx, testTime)
	require.NoError(b.t, err)
	return batch
}

// put commits one row with an event.
func (b *bed) put(kind frames.ObjectKind, id, rev uint64, payload string, live bool) store.Batch {
	b.t.Helper()
	tx := b.begin(ref(kind, id))
	tx.Emit(frames.EventObjectiveChanged, eventID(uint64(tx.Head())), makeRow(kind, id, rev, payload, live))
	return b.commit(tx)
}

// checkpoint steps one checkpoint to its end and takes it over.
func (b *bed) checkpoint() {
	b.t.Helper()
	for more := true; more; {
		var err error
		more, err = b.s.CheckpointStep()
		require.NoError(b.t, err)
	}
	b.s.Maintain()
}

// dump renders rows so that two states compare as text.
func dump(rows []store.Row) string {
	var w bytes.Buffer
	for _, r := range rows {
		fmt.Fprintf(&w, "%v rev=%d schema=%d seq=%d live=%v principal=%x payload=%q annex=%q\n", r.Record.Ref(), r.Record.Revision,
			r.Record.Schema, r.Seq, r.Live, r.Principal[:2], r.Record.Payload, r.Annex)
	}
	return w.String()
}

func everything(frames.ObjectKind, frames.KeyID) bool { return true }

// pages reads a whole cut, n rows at a time.
func pages(t fataler, c *store.Cut, visible store.Visible, n int) (rows []store.Row) {
	t.Helper()
	var after store.Key
	room := make([]store.Row, 3) // too small for some, and used again
	for {
		page, done, err := c.PageIn(room, after, visible, n)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), n)
		rows = append(rows, page...)
		if done {
			return rows
		}
		require.NotEmpty(t, page, "an empty page that is not the last")
		after = page[len(page)-1].Key()
	}
}

func (b *bed) dump() string {
	b.t.Helper()
	c := b.s.Cut()
	defer c.Close()
	return dump(pages(b.t, c, everything, 100))
}

// fingerprint is every file of the store.
func (b *bed) fingerprint() string {
	b.t.Helper()
	var w bytes.Buffer
	db, err := os.ReadFile(filepath.Join(b.dir, "state.db"))
	require.NoError(b.t, err)
	w.Write(db)
	for _, p := range b.segments() {
		data, err := b.fs.ReadFile(p)
		require.NoError(b.t, err)
		fmt.Fprintf(&w, "%s:", p)
		w.Write(data)
	}
	return w.String()
}

func (b *bed) segments() (paths []string) {
	entries, err := b.fs.List(filepath.Join(b.dir, "log"))
	require.NoError(b.t, err)
	for _, e := range entries {
		paths = append(paths, filepath.Join(b.dir, "log", e.Name))
	}
	sort.Strings(paths)
	return paths
}

const (
	segmentHeader = 72
	recordHeader  = 48
)

// recordSpan is where a record lies in its file.
type recordSpan struct {
	path     string
	from, to int
}

// records finds every record of the log by its length field.
func (b *bed) records() (spans []recordSpan) {
	for _, p := range b.segments() {
		data, err := b.fs.ReadFile(p)
		require.NoError(b.t, err)
		for off := segmentHeader; off+recordHeader <= len(data); {
			if binary.BigEndian.Uint64(data[off+8:]) == 0 {
				break
			}
			end := off + recordHeader + int(binary.BigEndian.Uint32(data[off:]))
			spans = append(spans, recordSpan{p, off, end})
			off = end
		}
	}
	return spans
}

func newLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
