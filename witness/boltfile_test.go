package witness

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/durable"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

// grownState makes a file with enough leases for branch pages, overwritten often enough for
// stale copies of everything in free pages.
func grownState(t testing.TB, coordinators int) (string, map[frames.CoordinatorID]*lease) {
	t.Helper()
	clk := startClock()
	w, dir := newWitness(t, clk)
	leases := map[frames.CoordinatorID]*lease{}
	for round := range 3 {
		for i := range coordinators {
			c := frames.CoordinatorID{0: byte(i + 1), 15: 1}
			l := lease{Epoch: frames.AuthorityEpoch(round + 1), Activation: frames.ActivationSequence(round + 1),
				Incarnation: incA, Holder: holderA, Length: 15 * time.Second, BootID: bootOne, Expires: time.Hour}
			leases[c] = &l
		}
		require.NoError(t, w.ledger.put(leases))
	}
	require.NoError(t, w.Close())
	return dir, leases
}

// TestEveryBitFlipIsSeen: a flipped bit anywhere is an error, or lies in a page that nothing
// refers to and changes no content.
func TestEveryBitFlipIsSeen(t *testing.T) {
	for _, n := range []int{1, 40} {
		dir, leases := grownState(t, n)
		path := filepath.Join(dir, stateFile)
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		_, want, err := parseLedger(file, schemas.Newest())
		require.NoError(t, err)
		require.Equal(t, leases, want)

		harmless, live := 0, livePages(t, file)
		for at := range file {
			if !live[at/os.Getpagesize()] && at%16 != n%16 {
				continue // nothing reads these: a sample is enough
			}
			bit := byte(1) << (at % 8)
			file[at] ^= bit
			head, got, err := parseLedger(file, schemas.Newest())
			if err == nil {
				harmless++
				if !reflect.DeepEqual(got, want) || head.Witness != testWitness {
					t.Fatalf("%d leases: flip at %d changed the content unseen", n, at)
				}
				if harmless%499 == 0 { // what was let through must also be safe to go on with
					requireUsable(t, file, want)
				}
			}
			file[at] ^= bit
		}
		require.Greater(t, len(live), 3, "meta, freelist and data pages are live")
		require.Less(t, harmless, len(file)-150*n, "flips in live pages must have been seen")
	}
}

// livePages are the pages that bbolt would read.
func livePages(t *testing.T, file []byte) map[int]bool {
	t.Helper()
	c, err := boltfile.Read(file, bucketName)
	require.NoError(t, err)
	live := map[int]bool{}
	for _, id := range c.Used {
		live[int(id)] = true
	}
	return live
}

// requireUsable opens a file image, grants once and checks that everything is still there.
func requireUsable(t *testing.T, file []byte, want map[frames.CoordinatorID]*lease) {
	t.Helper()
	dir := privateDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, stateFile), file, 0o600))
	clk := startClock()
	clk.Advance(1000 * time.Hour)
	w, err := Open(dir, options(clk, bootOne))
	require.NoError(t, err)
	_, err = w.Activate(holderA, coordB, 1, incA, 15)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, leases, err := readLedger(filepath.Join(dir, stateFile), schemas.Newest())
	require.NoError(t, err)
	require.Len(t, leases, len(want)+1)
	for id, l := range want {
		require.Equal(t, l.Epoch, leases[id].Epoch)
	}
}

// A damaged file is a named error at Open, stays as it is and gets no fresh one beside it.
func TestDamagedFileIsNamedAndKept(t *testing.T) {
	good, _ := grownState(t, 40)
	file, err := os.ReadFile(filepath.Join(good, stateFile))
	require.NoError(t, err)
	page := os.Getpagesize()
	for _, tt := range []struct {
		name   string
		damage func([]byte) []byte
	}{
		{"empty", func([]byte) []byte { return nil }},
		{"one byte", func(b []byte) []byte { return b[:1] }},
		{"first page only", func(b []byte) []byte { return b[:page] }},
		{"meta pages only", func(b []byte) []byte { return b[:2*page] }},
		{"cut in a page", func(b []byte) []byte { return b[:3*page+17] }},
		{"first meta page zeroed", func(b []byte) []byte { clear(b[:page]); return b }},
		{"second meta page zeroed", func(b []byte) []byte { clear(b[page : 2*page]); return b }},
		{"both meta pages zeroed", func(b []byte) []byte { clear(b[:2*page]); return b }},
		{"data zeroed", func(b []byte) []byte { clear(b[2*page:]); return b }},
		{"text", func([]byte) []byte { return []byte("not a database at all, but some text") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := privateDir(t)
			path := filepath.Join(dir, stateFile)
			bad := tt.damage(append([]byte(nil), file...))
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			_, err := Open(dir, options(startClock(), bootOne))
			var corrupt *CorruptError
			require.ErrorAs(t, err, &corrupt)
			require.Equal(t, path, corrupt.File)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, len(bad), len(after))
			require.Equal(t, string(bad), string(after))
			l, err := durable.Acquire(filepath.Join(dir, lockFile))
			require.NoError(t, err, "the lock was given back")
			require.NoError(t, l.Release())
		})
	}
}

// TestC05_NewerSchemaIsUntouched: a file of a newer program is refused as it is.
func TestC05_NewerSchemaIsUntouched(t *testing.T) {
	dir, _ := grownState(t, 1)
	path := filepath.Join(dir, stateFile)
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		value, err := seal([]byte(headerKey), &header{Schema: schemas.Newest() + 1, Witness: testWitness, Leases: 1, TxID: uint64(tx.ID())})
		if err != nil {
			return err
		}
		return tx.Bucket([]byte(bucketName)).Put([]byte(headerKey), value)
	}))
	require.NoError(t, db.Close())
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = Open(dir, options(startClock(), bootOne))
	var newer *SchemaError
	require.ErrorAs(t, err, &newer)
	require.Equal(t, SchemaError{File: path, Have: schemas.Newest() + 1, Want: schemas.Newest()}, *newer)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

// A write by a foreign tool leaves a header of an older transaction behind.
func TestForeignWriteIsSeen(t *testing.T) {
	dir, _ := grownState(t, 1)
	path := filepath.Join(dir, stateFile)
	db, err := bolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketName)).Delete(make([]byte, 16))
	}))
	require.NoError(t, db.Close())
	_, err = Open(dir, options(startClock(), bootOne))
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
}

// The checker accepts whatever bbolt itself writes, page splits and overflow pages included.
func TestCheckerAgreesWithBolt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "any.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, NoSync: true})
	require.NoError(t, err)
	want := map[string]string{}
	for round := range 12 {
		require.NoError(t, db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucketName))
			if err != nil {
				return err
			}
			for i := range 60 * round {
				k := string([]byte{byte(i >> 8), byte(i), byte(round % 3)})
				v := string(make([]byte, (i*37+round)%900))
				if i%61 == 0 {
					v = string(make([]byte, 9000))
				}
				if (i+round)%5 == 0 {
					delete(want, k)
					err = errors.Join(err, b.Delete([]byte(k)))
					continue
				}
				want[k] = v
				err = errors.Join(err, b.Put([]byte(k), []byte(v)))
			}
			return err
		}))
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		c, err := boltfile.Read(file, bucketName)
		require.NoError(t, err, "round %d", round)
		got := map[string]string{}
		for _, p := range c.Buckets[bucketName] {
			got[string(p.Key)] = string(p.Value)
		}
		require.Equal(t, want, got)
	}
	require.NoError(t, db.Close())
}
