package store_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/server/store"
)

// threeCommits leaves a store with commits 1 to 4 and returns the state after 3 and 4.
func threeCommits(t *testing.T) (b *bed, before, after string) {
	b = newBed(t, t.TempDir())
	b.put(frames.KindObjective, 1, 1, "one", true)
	b.put(frames.KindObjective, 2, 1, "two", false)
	before = b.dump()
	b.put(frames.KindObjective, 1, 2, "the last record", true)
	after = b.dump()
	b.crash(0)
	return b, before, after
}

// reopen opens the store over other bytes of one file and gives what it holds.
func (b *bed) reopen(path string, data []byte) (string, error) {
	b.t.Helper()
	require.NoError(b.t, b.fs.WriteFile(path, data))
	s, err := store.Open(b.dir, b.opts)
	if err != nil {
		return "", err
	}
	b.s = s
	text := b.dump()
	require.NoError(b.t, s.Abandon())
	return text, nil
}

func TestLogTailTornLostAndFlippedAtEveryByte(t *testing.T) {
	b, before, after := threeCommits(t)
	spans := b.records()
	last := spans[len(spans)-1]
	good, err := b.fs.ReadFile(last.path)
	require.NoError(t, err)
	for at := last.from; at < last.to; at++ {
		torn := bytes.Clone(good)
		clear(torn[at:last.to])
		text, err := b.reopen(last.path, torn)
		require.NoError(t, err, "torn at %d", at)
		want := before
		if bytes.Equal(torn, good) {
			want = after // only padding was lost
		}
		require.Equal(t, want, text, "torn at %d", at)
		cut, err := b.fs.ReadFile(last.path)
		require.NoError(t, err)
		if want == before {
			require.Equal(t, make([]byte, len(cut)-last.from), cut[last.from:], "the torn tail was not cut")
		}

		lost := bytes.Clone(good) // the first part never arrived
		clear(lost[last.from : at+1])
		text, err = b.reopen(last.path, lost)
		require.NoError(t, err, "lost up to %d", at)
		want = before
		if bytes.Equal(lost, good) {
			want = after // those bytes were zero anyway
		}
		require.Equal(t, want, text, "lost up to %d", at)

		for bit := 0; bit < 8; bit++ {
			flipped := bytes.Clone(good)
			flipped[at] ^= 1 << bit
			text, err := b.reopen(last.path, flipped)
			require.NoError(t, err, "bit %d of %d", bit, at)
			require.Equal(t, before, text)
		}
	}
	text, err := b.reopen(last.path, good)
	require.NoError(t, err)
	require.Equal(t, after, text)
}

func TestWhatFollowsACutTailIsReadBack(t *testing.T) {
	b, before, _ := threeCommits(t)
	spans := b.records()
	last := spans[len(spans)-1]
	good, err := b.fs.ReadFile(last.path)
	require.NoError(t, err)
	good[last.to-1] ^= 0x80
	require.NoError(t, b.fs.WriteFile(last.path, good))
	b.open()
	require.Equal(t, before, b.dump())
	b.put(frames.KindObjective, 3, 1, "in its place", true)
	want := b.dump()
	b.crash(9)
	b.open()
	require.Equal(t, want, b.dump())
	require.NoError(t, b.s.Close())
}

func requireCorrupt(t fataler, err error, file string, msg ...any) {
	t.Helper()
	var damaged *store.CorruptError
	require.ErrorAs(t, err, &damaged, msg...)
	require.Contains(t, damaged.File, file, msg...)
	require.Contains(t, err.Error(), "restore", msg...)
}

func TestDamageBeforeTheLastRecordIsCorruption(t *testing.T) {
	b, _, _ := threeCommits(t)
	spans := b.records()
	last := spans[len(spans)-1]
	good, err := b.fs.ReadFile(last.path)
	require.NoError(t, err)
	var bad []byte
	for at := 0; at < last.from; at++ {
		bad = bytes.Clone(good)
		bad[at] ^= 1 << (at % 8)
		require.NoError(t, b.fs.WriteFile(last.path, bad))
		requireCorrupt(t, b.openError(), ".seg", "flip at %d", at)
	}
	for _, size := range []int{0, 10, segmentHeader, last.from, last.to, len(good) - 1, len(good) + 1} {
		bad = append(bytes.Clone(good), 0)[:size]
		require.NoError(t, b.fs.WriteFile(last.path, bad))
		before := b.fingerprint()
		requireCorrupt(t, b.openError(), ".seg", "cut to %d bytes", size)
		require.Equal(t, before, b.fingerprint(), "a damaged store was changed")
	}
	// A whole record gone while a later one is there.
	bad = bytes.Clone(good)
	clear(bad[spans[1].from:spans[1].to])
	require.NoError(t, b.fs.WriteFile(last.path, bad))
	requireCorrupt(t, b.openError(), ".seg")
}

func TestPayloadCannotForgeARecord(t *testing.T) {
	b := newBed(t, t.TempDir())
	b.put(frames.KindObjective, 1, 1, "x", true)
	// A record of the commit after next, whole but for the salt, at every alignment.
	forged := make([]byte, recordHeader+8)
	binary.BigEndian.PutUint32(forged[0:], 8)
	binary.BigEndian.PutUint64(forged[8:], 4)
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.BigEndian.PutUint32(forged[4:], crc32.Checksum(forged[recordHeader:], table))
	binary.BigEndian.PutUint32(forged[44:], crc32.Checksum(forged[:44], table))
	var payload []byte
	for i := range 8 {
		payload = append(payload, forged...)
		payload = append(payload, make([]byte, i)...)
	}
	before := b.dump()
	b.put(frames.KindObjective, 2, 1, string(payload), true)
	b.crash(0)
	spans := b.records()
	last := spans[len(spans)-1]
	data, err := b.fs.ReadFile(last.path)
	require.NoError(t, err)
	clear(data[last.from : last.from+8])
	text, err := b.reopen(last.path, data)
	require.NoError(t, err, "the payload passed for a later record")
	require.Equal(t, before, text)
}

// manySegments leaves a cleanly closed store of several segments.
func manySegments(t *testing.T) *bed {
	b := newBed(t, t.TempDir())
	for i := uint64(1); i <= 30; i++ {
		b.put(frames.KindObjective, i, 1, strings.Repeat("p", 900), i%2 == 0)
	}
	require.NoError(t, b.s.Close())
	require.Greater(t, len(b.segments()), 3)
	return b
}

func TestMissingFilesAreCorruption(t *testing.T) {
	for i := range 4 {
		b := manySegments(t)
		segments := b.segments()
		path := segments[min(i, len(segments)-1)]
		require.NoError(t, b.fs.Remove(path))
		before := b.fingerprint()
		requireCorrupt(t, b.openError(), "log", "without %s", path)
		require.Equal(t, before, b.fingerprint())
	}
	b := manySegments(t)
	for _, p := range b.segments() {
		require.NoError(t, b.fs.Remove(p))
	}
	requireCorrupt(t, b.openError(), "log")
	require.NoError(t, b.fs.Remove(filepath.Join(b.dir, "log")))
	requireCorrupt(t, b.openError(), "log")

	b = manySegments(t)
	require.NoError(t, os.Remove(filepath.Join(b.dir, "state.db")))
	requireCorrupt(t, b.openError(), "state.db")
	require.NoFileExists(t, filepath.Join(b.dir, "state.db"))
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "state.db"), nil, 0o600))
	requireCorrupt(t, b.openError(), "state.db")

	b = manySegments(t)
	f, err := b.fs.Create(filepath.Join(b.dir, "log", "0000000000000001.bak"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	requireCorrupt(t, b.openError(), "0000000000000001.bak")
}

// TestSealedSegmentsAreChecked: damage to sealed records is found by whoever reads them: the
// start when they are behind the checkpoint or have no index, else Verify and replays.
func TestSealedSegmentsAreChecked(t *testing.T) {
	for _, behind := range []bool{false, true} {
		b := manySegments(t)
		if behind {
			b = newBed(t, t.TempDir())
			for i := uint64(1); i <= 30; i++ {
				b.put(frames.KindObjective, i, 1, strings.Repeat("p", 900), i%2 == 0)
			}
			b.crash(0)
		}
		path := b.segments()[1]
		good, err := b.fs.ReadFile(path)
		require.NoError(t, err)
		for _, sp := range b.records() {
			if sp.path != path {
				continue
			}
			for _, at := range []int{sp.from, sp.from + 9, sp.from + recordHeader, sp.to - 1} {
				bad := bytes.Clone(good)
				bad[at] ^= 4
				require.NoError(t, b.fs.WriteFile(path, bad))
				require.Error(t, store.Verify(b.dir, b.opts))
				if behind {
					requireCorrupt(t, b.openError(), filepath.Base(path), "flip at %d", at)
				} else {
					b.open()
					requireCorrupt(t, b.readAll(), filepath.Base(path), "flip at %d", at)
					require.NoError(t, b.s.Err(), "what is applied does not need the record")
					require.NoError(t, b.s.Abandon())
				}
				bad[len(bad)-1] ^= 4
				require.NoError(t, b.fs.WriteFile(path, bad))
				requireCorrupt(t, b.openError(), filepath.Base(path), "flip at %d without index", at)
			}
		}
		require.NoError(t, b.fs.WriteFile(path, good))
		require.NoError(t, store.Verify(b.dir, b.opts))
	}
}

// readAll reads every image in the log.
func (b *bed) readAll() error {
	b.t.Helper()
	after := frames.EventCut(b.s.FirstRetained() - 1)
	r, err := b.s.Replay(after, b.s.State().Head)
	require.NoError(b.t, err)
	defer r.Close()
	for done := false; !done; {
		var events []store.Event
		if events, done, err = r.Page(after, everything, 5, 1<<20); err != nil {
			return err
		}
		if len(events) > 0 {
			after = frames.EventCut(events[len(events)-1].Sequence)
		}
	}
	return nil
}

// TestLogThatEndsBeforeTheCheckpoint: state.db knows of commits that the log has lost.
func TestLogThatEndsBeforeTheCheckpoint(t *testing.T) {
	for _, whole := range []bool{true, false} {
		b := newBed(t, t.TempDir())
		for i := uint64(1); i <= 8; i++ {
			b.put(frames.KindObjective, i, 1, "x", false)
		}
		if whole {
			b.checkpoint()
		} else { // only begun: the target is known
			more, err := b.s.CheckpointStep()
			require.NoError(t, err)
			require.True(t, more)
		}
		b.crash(0)
		spans := b.records()
		last := spans[len(spans)-1]
		data, err := b.fs.ReadFile(last.path)
		require.NoError(t, err)
		clear(data[last.from:last.to])
		require.NoError(t, b.fs.WriteFile(last.path, data))
		requireCorrupt(t, b.openError(), ".seg")
	}
}

func TestFilesOfDifferentStores(t *testing.T) {
	copyState := func(from, to *bed) {
		db, err := os.ReadFile(filepath.Join(from.dir, "state.db"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to.dir, "state.db"), db, 0o600))
	}
	a := manySegments(t)
	b := &bed{t: t, dir: t.TempDir(), fs: a.fs, opts: a.opts}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: frames.CoordinatorID{1}, CreatedAt: testTime}, b.opts))
	copyState(b, a)
	requireCorrupt(t, a.openError(), ".seg")

	// Two copies of one store that went different ways.
	a, b = manySegments(t), manySegments(t)
	b.open()
	b.put(frames.KindObjective, 99, 1, "other", true)
	require.NoError(t, b.s.Close())
	a.open()
	a.put(frames.KindObjective, 98, 1, "one", true)
	a.put(frames.KindObjective, 97, 1, "two", true)
	require.NoError(t, a.s.Close())
	copyState(b, a)
	requireCorrupt(t, a.openError(), "state.db")
}

// editState changes state.db behind the store's back.
func (b *bed) editState(f func(tx *bolt.Tx) error) {
	b.t.Helper()
	db, err := bolt.Open(filepath.Join(b.dir, "state.db"), 0o600, nil)
	require.NoError(b.t, err)
	require.NoError(b.t, db.Update(f))
	require.NoError(b.t, db.Close())
}

func TestNewerSchemaIsLeftUntouched(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	for _, tt := range []struct {
		name  string
		raise func(b *bed)
		file  string
	}{
		{"log", func(b *bed) {
			p := b.segments()[0]
			data, err := b.fs.ReadFile(p)
			require.NoError(t, err)
			binary.BigEndian.PutUint32(data[8:], 2)
			binary.BigEndian.PutUint32(data[68:], crc32.Checksum(data[:68], table))
			require.NoError(t, b.fs.WriteFile(p, data))
		}, ".seg"},
		{"state.db", func(b *bed) {
			b.editState(func(tx *bolt.Tx) error {
				v := []byte{1, 0, 0, 0, 2}
				crc := crc32.Update(crc32.Checksum([]byte("schema"), table), table, v)
				return tx.Bucket([]byte("meta")).Put([]byte("schema"), binary.BigEndian.AppendUint32(v, crc))
			})
		}, "state.db"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, _, _ := threeCommits(t)
			spans := b.records()
			last := spans[len(spans)-1]
			data, err := b.fs.ReadFile(last.path)
			require.NoError(t, err)
			data[last.to-1] ^= 1 // a torn tail must stay as well
			require.NoError(t, b.fs.WriteFile(last.path, data))
			tt.raise(b)
			before := b.fingerprint()
			var newer *store.SchemaError
			require.ErrorAs(t, b.openError(), &newer)
			require.Contains(t, newer.File, tt.file)
			require.EqualValues(t, 2, newer.Have)
			require.ErrorAs(t, store.Verify(b.dir, b.opts), &newer)
			require.Equal(t, before, b.fingerprint())
		})
	}
}

func TestDamagedValuesAreFound(t *testing.T) {
	for _, bucket := range []string{"history", "live"} {
		b := manySegments(t)
		var key []byte
		b.editState(func(tx *bolt.Tx) error {
			h := tx.Bucket([]byte(bucket))
			k, v := h.Cursor().First()
			key = bytes.Clone(k)
			v = bytes.Clone(v)
			v[len(v)/2] ^= 1
			return h.Put(k, v)
		})
		requireCorrupt(t, store.CheckFile(filepath.Join(b.dir, "state.db")), "state.db")
		if bucket == "live" {
			requireCorrupt(t, b.openError(), "state.db")
			continue
		}
		b.open()
		_, err := b.s.Prefetch([]frames.ObjectRef{store.Key(key).Ref()})
		requireCorrupt(t, err, "state.db")
		require.Error(t, b.s.Err())
		_, err = b.s.Commit(b.s.Begin(), testTime)
		require.ErrorIs(t, err, store.ErrFailed)
		require.NotErrorIs(t, err, store.ErrOutcomeUnknown)
		require.NoError(t, b.s.Abandon())
	}
}

// TestDamagedPages truncates and overwrites state.db page by page: every fault is an error
// of ours or changes nothing that matters, and nothing replaces the file.
func TestDamagedPages(t *testing.T) {
	b := manySegments(t)
	path := filepath.Join(b.dir, "state.db")
	b.open()
	want := b.dump()
	require.NoError(t, b.s.Close())
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	page := os.Getpagesize()
	used := 0
	for at := 0; at+page <= len(good); at += page {
		if !bytes.Equal(good[at:at+page], make([]byte, page)) {
			used = at + page
		}
	}
	fault := func(name string, data []byte, must bool) {
		require.NoError(t, os.WriteFile(path, data, 0o600))
		s, err := store.Open(b.dir, b.opts)
		if err == nil {
			b.s = s
			c := s.Cut()
			rows, _, err := c.Page(store.Key{}, everything, 1000)
			if err == nil {
				require.Equal(t, want, dump(rows), name)
			} else {
				requireCorrupt(t, err, "state.db", name)
			}
			require.False(t, must, name)
			s.Abandon()
			return
		}
		requireCorrupt(t, err, "state.db", name)
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	for at := 0; at < used; at += page {
		fault(fmt.Sprintf("cut at page %d", at/page), good[:at], true)
		zeroed := bytes.Clone(good)
		clear(zeroed[at : at+page])
		fault(fmt.Sprintf("page %d zeroed", at/page), zeroed, false)
		for _, bit := range []int{3, 8*8 + 1, 8*16 + 2, 8 * 100} {
			flipped := bytes.Clone(good)
			flipped[at+bit/8] ^= 1 << (bit % 8)
			fault(fmt.Sprintf("page %d bit %d", at/page, bit), flipped, false)
		}
	}
	require.NoError(t, os.WriteFile(path, good, 0o600))
	require.NoError(t, store.CheckFile(path))
}

func TestPageCheckRunsAfterAnUncleanStop(t *testing.T) {
	b := newBed(t, t.TempDir())
	checked := 0
	b.opts.PageCheck = func(path string) error {
		checked++
		return store.CheckFile(path)
	}
	b.opts.PageCheckBytes = 1
	b.crash(0)
	b.open()
	require.Equal(t, 0, checked, "fresh from Create")
	require.NoError(t, b.s.Close())
	b.open()
	require.Equal(t, 0, checked, "after a clean stop")
	b.crash(0)
	b.open()
	require.Equal(t, 0, checked, "nothing was written since the clean stop")
	b.put(frames.KindObjective, 1, 1, "x", false)
	b.checkpoint()
	b.crash(0)
	b.open()
	require.Equal(t, 1, checked)
	require.NoError(t, b.s.Close())
	b.opts.PageCheckBytes = 0
	b.open()
	require.Equal(t, 2, checked, "a small file is checked at every start")
	b.crash(0)
	b.opts.PageCheck = func(string) error { return errors.New("signal: segmentation fault") }
	err := b.openError()
	requireCorrupt(t, err, "state.db")
	require.Contains(t, err.Error(), "segmentation fault")
}

// TestAnExtentBeyondTheFile: a page that claims to go on for four billion pages is named at
// once, before anything remembers them one by one.
func TestAnExtentBeyondTheFile(t *testing.T) {
	b := manySegments(t)
	path := filepath.Join(b.dir, "state.db")
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, store.CheckFile(path))
	page, faults := os.Getpagesize(), 0
	for at := 2 * page; at+page <= len(good); at += page {
		const flags, branch, leaf = 8, 1, 2
		if f := good[at+flags]; f != branch && f != leaf {
			continue
		}
		for _, pages := range []uint32{math.MaxUint32, uint32(len(good)/page - at/page)} {
			bad := bytes.Clone(good)
			binary.NativeEndian.PutUint32(bad[at+12:], pages)
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			if err := store.CheckFile(path); err != nil { // a free page says nothing
				requireCorrupt(t, err, "state.db", fmt.Sprintf("page %d", at/page))
				faults++
			}
		}
	}
	require.Positive(t, faults)
}
