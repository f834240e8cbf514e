package store

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
)

// grow commits random transactions to a new store of small segments and closes it.
func grow(t *rapid.T, dir string, o Options) {
	g := Genesis{CoordinatorID: frames.CoordinatorID{1}, CreatedAt: time.Unix(1, 0)}
	require.NoError(t, Create(dir, g, o))
	s, err := Open(dir, o)
	require.NoError(t, err)
	var n uint64
	for range rapid.IntRange(1, 25).Draw(t, "commits") {
		tx := s.Begin()
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			n++
			var id frames.EventID
			binary.BigEndian.PutUint64(id[:], n)
			r := Row{Record: frames.SnapshotRecord{
				Kind: rapid.SampledFrom([]frames.ObjectKind{1, 2, frames.KindOperation, frames.KindAdmin}).Draw(t, "kind"),
				ID:   frames.ObjectID(id), Revision: 1, Schema: 1,
				Payload: make([]byte, rapid.IntRange(0, 400).Draw(t, "payload")),
			}}
			r.Annex = make([]byte, n%3)
			if r.Record.Kind == frames.KindOperation {
				r.Principal = frames.KeyID{byte(n % 5)} // 0 is none
			}
			switch rapid.SampledFrom([]string{"emit", "emit", "emit", "fact", "hidden", "put"}).Draw(t, "change") {
			case "emit":
				tx.Emit(frames.EventObjectiveChanged, id, r)
			case "fact":
				tx.EmitEvent(frames.ReplayEvent{ID: id, Kind: frames.EventSourceGap, Object: r.Record.Ref(), Revision: 1, Schema: 1, Payload: r.Record.Payload})
			case "hidden":
				tx.Hidden()
			case "put":
				tx.Put(r)
			}
		}
		_, err := s.Commit(tx, time.Unix(2, 0))
		require.NoError(t, err)
	}
	if rapid.Bool().Draw(t, "clean") {
		require.NoError(t, s.Close())
	} else {
		require.NoError(t, s.Abandon())
	}
}

func smallSegments() Options {
	return Options{SegmentBytes: 8192, Manual: true, UnsafeNoSync: true, Rand: rand.NewChaCha8([32]byte{2})}
}

// TestIndexEqualsAScan: what is in the file, what is in memory and what the records say are
// the same bytes.
func TestIndexEqualsAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "index")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		o := smallSegments()
		grow(t, dir, o)

		segs, tail, err := scanLog(Options{}.withDefaults(), logPath(dir), false)
		require.NoError(t, err)
		full, fullTail, err := scanLog(Options{}.withDefaults(), logPath(dir), true)
		require.NoError(t, err)
		require.Equal(t, fullTail, tail)
		for i, s := range segs {
			c := *full[i]
			c.end, c.next, c.head, c.tail, c.clean, c.marks = segmentHeader, c.first, c.base, c.chain, false, nil
			f, err := osFS{}.Open(s.path)
			require.NoError(t, err)
			_, err = c.scan(&blockReader{f: f, path: s.path, size: s.size})
			require.NoError(t, err)
			x, e, ok := s.readIndex(f)
			require.NoError(t, f.Close())
			if i == len(segs)-1 {
				require.False(t, ok, "the open segment has no index in its file")
				require.True(t, c.idx.equal(s.idx))
				continue
			}
			require.Nil(t, s.idx, "the index was not read from the file")
			require.True(t, ok)
			require.True(t, c.idx.equal(x))
			require.Equal(t, indexEnd{c.end, c.head, c.tail, c.clean}, e)
			require.Equal(t, []any{c.end, c.next, c.head, c.tail, c.clean, c.marks}, []any{s.end, s.next, s.head, s.tail, s.clean, s.marks})
			require.Equal(t, c.idx.size(), grownSize(t, &c), "the room that was kept is not what it takes")
		}

		// And the one that the writer grew is the one that a scan makes.
		s, err := Open(dir, o)
		require.NoError(t, err)
		tx := s.Begin()
		tx.Hidden()
		tx.Emit(1, frames.EventID{1}, Row{Principal: frames.KeyID{9}, Record: frames.SnapshotRecord{Kind: frames.KindOperation, ID: frames.ObjectID{0xff}, Revision: 1}})
		_, err = s.Commit(tx, time.Unix(3, 0))
		require.NoError(t, err)
		last := s.log.cur.view()
		require.NoError(t, s.Abandon())
		f, err := osFS{}.Open(last.path)
		require.NoError(t, err)
		defer f.Close()
		x, err := last.rescan(f)
		require.NoError(t, err)
		require.True(t, x.equal(last.idx))
	})
}

// grownSize sums up what growth says for each record of s.
func grownSize(t *rapid.T, s *segment) int {
	l := &log{fs: osFS{}}
	x, n := newIndex(), int64(0)
	c := s.view()
	_, err := l.eachIn(c, mark{head: c.base, commit: c.first, chain: c.chain, off: segmentHeader}, mark{commit: 1}, func(_ *segment, off int64, h recordHead, body []byte) (bool, error) {
		items, err := decodeBody(h, body)
		require.NoError(t, err)
		n += x.growth(items)
		x.add(c, off, h, items)
		return true, nil
	})
	require.NoError(t, err)
	return int(n)
}

// TestForgedIndexStaysInBounds: an index whose checksum is right and whose content is not
// can be refused or give wrong events an error; it cannot take the process down.
func TestForgedIndexStaysInBounds(t *testing.T) {
	passed, failed := 0, 0
	defer func() {
		require.NotZero(t, passed, "no forged index was taken")
		require.NotZero(t, failed, "no wrong event was noticed")
	}()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "index")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		grow(t, dir, smallSegments())
		segs, _, err := scanLog(Options{}.withDefaults(), logPath(dir), false)
		require.NoError(t, err)
		if len(segs) == 1 {
			return // nothing is sealed
		}
		s := segs[0]
		f, err := osFS{}.Open(s.path)
		require.NoError(t, err)
		defer f.Close()
		s.idx, _, _ = s.readIndex(f)
		b := s.encodeIndex()
		s.idx = nil
		for range rapid.IntRange(1, 4).Draw(t, "changes") {
			b[rapid.IntRange(0, len(b)-5).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		binary.BigEndian.PutUint32(b[len(b)-4:], salted(s.salt, b[:len(b)-4]))
		_, err = f.WriteAt(b, s.size-int64(len(b)))
		require.NoError(t, err)
		x, e, ok := s.readIndex(f)
		if !ok {
			return
		}
		passed++
		s.end = e.end
		l := &log{fs: osFS{}}
		j := &judge{visible: func(frames.ObjectKind, frames.KeyID) bool { return true }}
		j.begin(x)
		for i := range x.eventCount() {
			ev := x.event(i)
			require.True(t, j.sees(ev))
			if _, err := l.imagesIn(nil, []pick{{s, x, ev}}); err != nil {
				failed++
			}
		}
	})
}

// TestIndexCacheIsBounded: the last used stay.
func TestIndexCacheIsBounded(t *testing.T) {
	var c indexCache
	for first := range uint64(20) {
		c.put(first, newIndex())
		if first > 0 {
			require.NotNil(t, c.get(0), "used all the time")
		}
	}
	require.Len(t, c.recent, cachedIndexes)
	var have []uint64
	for first := range uint64(20) {
		if c.get(first) != nil {
			have = append(have, first)
		}
	}
	require.Equal(t, []uint64{0, 17, 18, 19}, have)
	x := newIndex()
	c.put(18, x)
	require.Same(t, x, c.get(18))
	require.Len(t, c.recent, cachedIndexes)
}

// countingFS counts what is read of each file.
type countingFS struct {
	osFS
	read map[string]int64
}

type countingFile struct {
	File
	fs   *countingFS
	name string
}

func (c *countingFS) Open(path string) (File, error) {
	f, err := c.osFS.Open(path)
	return &countingFile{f, c, filepath.Base(path)}, err
}

func (f *countingFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	f.fs.read[f.name] += int64(n)
	return n, err
}

// TestStartReadsNoOldRecords: of segments below the checkpoint a start reads the header and
// the index, however many there are.
func TestStartReadsNoOldRecords(t *testing.T) {
	dir := t.TempDir()
	o := Options{SegmentBytes: 64 << 10, Manual: true, UnsafeNoSync: true}
	require.NoError(t, Create(dir, Genesis{CoordinatorID: frames.CoordinatorID{1}}, o))
	s, err := Open(dir, o)
	require.NoError(t, err)
	for i := range uint64(200) {
		var id frames.EventID
		binary.BigEndian.PutUint64(id[:], i+1)
		tx := s.Begin()
		tx.Emit(1, id, Row{Record: frames.SnapshotRecord{Kind: 1, ID: frames.ObjectID(id), Revision: 1, Payload: make([]byte, 8000)}})
		_, err := s.Commit(tx, time.Unix(1, 0))
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	fs := &countingFS{read: make(map[string]int64)}
	o.FS = fs
	s, err = Open(dir, o)
	require.NoError(t, err)
	require.Greater(t, len(s.log.segs), 20)
	for _, seg := range s.log.segs[:len(s.log.segs)-2] { // the checkpoint ends in one of the last two
		read := fs.read[filepath.Base(seg.path)]
		require.Less(t, read, int64(1024), "%s", seg.path)
		require.Greater(t, read, int64(segmentHeader+indexTrailer))
	}
	require.True(t, slices.IsSortedFunc(s.log.segs, func(a, b *segment) int { return int(a.first) - int(b.first) }))
	require.NoError(t, s.Close())
}
