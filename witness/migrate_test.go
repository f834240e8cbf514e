package witness

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/frozen"
)

// theRelease unpacks the witness of the first release and says which it is.
func theRelease(t *testing.T) (dir string, head header, leases map[frames.CoordinatorID]*lease) {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, frozen.Unpack(frozen.Release1, root, "witness"))
	dir = filepath.Join(root, "witness")
	head, leases, err := readLedger(filepath.Join(dir, stateFile), 1)
	require.NoError(t, err)
	require.NotEmpty(t, leases)
	return dir, head, leases
}

// nextSchema is a schema in which every lease is spent, which shows.
func nextSchema(old *bolt.Tx, fresh *bolt.DB) error {
	return fresh.Update(func(tx *bolt.Tx) error {
		from := old.Bucket([]byte(bucketName))
		var head header
		if err := unseal([]byte(headerKey), from.Get([]byte(headerKey)), &head); err != nil {
			return err
		}
		head.Schema = 2
		if err := putHeader(tx, &head); err != nil {
			return err
		}
		return from.ForEach(func(k, v []byte) error {
			if string(k) == headerKey {
				return nil
			}
			var l lease
			if err := unseal(k, v, &l); err != nil {
				return err
			}
			l.Spent = true
			raw, err := seal(k, &l)
			return errors.Join(err, tx.Bucket([]byte(bucketName)).Put(k, raw))
		})
	})
}

func TestTheReleasesWitness(t *testing.T) {
	dir, head, leases := theRelease(t)
	o := options(startClock(), bootOne)
	o.ID = head.Witness
	w, err := Open(dir, o)
	require.NoError(t, err)
	defer w.Close()
	for id, l := range leases {
		s, err := w.Status(id)
		require.NoError(t, err)
		require.Equal(t, l.Epoch, s.LastEpoch)
		require.Equal(t, l.Activation, s.Activation)
		require.Positive(t, s.LeaseRemaining, "another boot: it counts from now")
	}
}

// TestTheReleasesWitnessMigrates to a schema that only this test knows, and is refused by the
// program that made it.
func TestTheReleasesWitnessMigrates(t *testing.T) {
	dir, head, leases := theRelease(t)
	o := options(startClock(), bootOne)
	o.ID, o.schemas = head.Witness, boltfile.Schemas{nextSchema}
	w, err := Open(dir, o)
	require.NoError(t, err)
	for id, l := range leases {
		s, err := w.Status(id)
		require.NoError(t, err)
		require.Equal(t, l.Epoch, s.LastEpoch)
		require.Zero(t, s.LeaseRemaining)
	}
	require.NoError(t, w.Close())
	w, err = Open(dir, o)
	require.NoError(t, err, "a second start has nothing to do")
	require.NoError(t, w.Close())

	path := filepath.Join(dir, stateFile)
	o.schemas = nil
	_, err = Open(dir, o)
	var newer *SchemaError
	require.ErrorAs(t, err, &newer)
	require.Equal(t, &SchemaError{File: path, Have: 2, Want: 1}, newer)
	_, kept, err := readLedger(boltfile.Kept(path, 1), 1)
	require.NoError(t, err)
	require.Equal(t, leases, kept)
}

func TestAMigrationOfTheWitnessIsRefused(t *testing.T) {
	dir, head, _ := theRelease(t)
	path := filepath.Join(dir, stateFile)
	was, err := os.ReadFile(path)
	require.NoError(t, err)
	o := options(startClock(), bootOne)
	o.ID = head.Witness
	for name, step := range map[string]boltfile.Step{
		"a full disk": func(*bolt.Tx, *bolt.DB) error { return syscall.ENOSPC },
		"a lease is lost": func(old *bolt.Tx, fresh *bolt.DB) error {
			return errors.Join(nextSchema(old, fresh), fresh.Update(func(tx *bolt.Tx) error {
				k, _ := tx.Bucket([]byte(bucketName)).Cursor().First()
				return tx.Bucket([]byte(bucketName)).Delete(k)
			}))
		},
	} {
		o.schemas = boltfile.Schemas{step}
		_, err = Open(dir, o)
		require.Error(t, err, name)
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, was, now, name)
	}
	o.ID, o.schemas = frames.WitnessID{1}, boltfile.Schemas{nextSchema}
	_, err = Open(dir, o)
	require.ErrorAs(t, err, new(*IdentityError))
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, was, now)
	_, _, err = Inspect(dir, bootOne, startClock().Now())
	require.NoError(t, err)
}

// TestANewerLayoutIsNoDamage: what a newer schema puts into its header, leases and buckets is
// not looked at.
func TestANewerLayoutIsNoDamage(t *testing.T) {
	dir, head, _ := theRelease(t)
	path := filepath.Join(dir, stateFile)
	db, err := boltfile.Open(path)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("another"))
		require.NoError(t, err)
		b := tx.Bucket([]byte(bucketName))
		require.NoError(t, b.Put([]byte("a key of another length"), []byte("unsealed")))
		value, err := boltfile.Seal([]byte(headerKey), func(dst []byte) ([]byte, error) {
			return append(binary.BigEndian.AppendUint32(dst, 2), "more"...), nil
		})
		require.NoError(t, err)
		return b.Put([]byte(headerKey), value)
	}))
	require.NoError(t, db.Close())
	o := options(startClock(), bootOne)
	o.ID = head.Witness
	_, err = Open(dir, o)
	var newer *SchemaError
	require.ErrorAs(t, err, &newer)
	require.Equal(t, &SchemaError{File: path, Have: 2, Want: 1}, newer)
	require.EqualError(t, err, path+" has schema 2, this program knows 1; run the program version that wrote it")
	require.EqualError(t, &SchemaError{File: "f", Have: 1, Want: 2}, "f has schema 1, this program works with 2; start the witness once, which migrates it")
}
