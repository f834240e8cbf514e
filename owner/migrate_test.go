package owner

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/boltfile"
	"coordinator/internal/frozen"
)

// theRelease unpacks the owner of the first release.
func theRelease(t *testing.T) (path string, print frames.Fingerprint) {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, frozen.Unpack(frozen.Release1, root, "owner"))
	dir := filepath.Join(root, "owner")
	key, err := handshake.LoadKey(filepath.Join(dir, "workload-authority.ed25519"))
	require.NoError(t, err)
	return filepath.Join(dir, journalFile), handshake.FingerprintOf(key.Public())
}

// bindingsOf are all rows of a journal's bindings, and how many facts there are.
func bindingsOf(t *testing.T, j *journal) (rows map[string]bindingRow, facts uint64) {
	t.Helper()
	rows = map[string]bindingRow{}
	require.NoError(t, j.update(func(tx *txn) error {
		var row bindingRow
		tx.each(bucketBindings, &row, func(key []byte) { rows[string(key)] = row })
		facts = tx.counts[bucketIndexOf(bucketFacts)]
		return tx.err
	}))
	return rows, facts
}

// nextSchema is a schema in which the head says so; everything else is copied.
func nextSchema(old *bolt.Tx, fresh *bolt.DB) error {
	var head headRow
	if err := unseal([]byte(headKey), old.Bucket([]byte(bucketHead)).Get([]byte(headKey)), &head); err != nil {
		return err
	}
	err := boltfile.Copy(old, fresh, func(_, key, value []byte) ([]byte, error) {
		_, err := boltfile.Unseal(key, value)
		return value, err
	})
	return errors.Join(err, fresh.Update(func(tx *bolt.Tx) error {
		return (&txn{tx: tx, counts: head.Counts}).putHead(2, head.Owner)
	}))
}

func TestTheReleasesOwner(t *testing.T) {
	path, print := theRelease(t)
	j, err := openJournal(path, print, schemas, func(string) { t.Error("nothing is to be migrated") })
	require.NoError(t, err)
	rows, facts := bindingsOf(t, j)
	require.NoError(t, j.close())
	require.Len(t, rows, 3)
	require.GreaterOrEqual(t, facts, uint64(len(rows)), "admitted ones are forgotten, the last one is not")
	outputs, err := filepath.Glob(filepath.Join(filepath.Dir(path), "output", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, outputs)
}

// TestTheReleasesOwnerMigrates to a schema that only this test knows, keeps every row, and is
// refused by the program that made it.
func TestTheReleasesOwnerMigrates(t *testing.T) {
	path, print := theRelease(t)
	j, err := openJournal(path, print, schemas, nil)
	require.NoError(t, err)
	want, facts := bindingsOf(t, j)
	require.NoError(t, j.close())
	was, err := os.ReadFile(path)
	require.NoError(t, err)

	next := boltfile.Schemas{nextSchema}
	var told []string
	for range 2 {
		j, err = openJournal(path, print, next, func(line string) { told = append(told, line) })
		require.NoError(t, err)
		got, n := bindingsOf(t, j)
		require.Equal(t, want, got)
		require.Equal(t, facts, n)
		require.NoError(t, j.close())
	}
	require.Len(t, told, 3, "once")
	kept, err := os.ReadFile(boltfile.Kept(path, 1))
	require.NoError(t, err)
	require.Equal(t, was, kept)
	_, err = openJournal(path, print, schemas, nil)
	require.Equal(t, &SchemaError{File: path, Have: 2, Want: 1}, err)

	// Another owner's journal is not migrated.
	path, print = theRelease(t)
	_, err = openJournal(path, frames.Fingerprint{1}, next, func(string) {})
	require.ErrorAs(t, err, new(*IdentityError))
	require.NoFileExists(t, boltfile.Kept(path, 1))
	j, err = openJournal(path, print, schemas, nil)
	require.NoError(t, err)
	require.NoError(t, j.close())
}

// TestANewerLayoutIsNoDamage: what a newer schema puts into its buckets is not looked at.
func TestANewerLayoutIsNoDamage(t *testing.T) {
	path, print := theRelease(t)
	db, err := boltfile.Open(path)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("another"))
		require.NoError(t, err)
		require.NoError(t, tx.DeleteBucket([]byte(bucketIndex)))
		value, err := boltfile.Seal([]byte(headKey), func(dst []byte) ([]byte, error) {
			return append(binary.BigEndian.AppendUint32(dst, 2), "more"...), nil
		})
		require.NoError(t, err)
		return tx.Bucket([]byte(bucketHead)).Put([]byte(headKey), value)
	}))
	require.NoError(t, db.Close())
	_, err = openJournal(path, print, schemas, nil)
	require.EqualError(t, err, path+" has schema 2, this program knows 1; run the program version that wrote it")
	require.EqualError(t, &SchemaError{File: "f", Have: 1, Want: 2}, "f has schema 1, this program works with 2; start the owner once, which migrates it")
}
