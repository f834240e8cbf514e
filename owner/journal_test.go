package owner

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/durable"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"
)

func openTestJournal(t testing.TB, dir string) *journal {
	t.Helper()
	j, err := openJournal(filepath.Join(dir, journalFile), ownerPrint, schemas, nil)
	require.NoError(t, err)
	t.Cleanup(func() { j.close() })
	return j
}

// grownJournal is a file with rows of every kind.
func grownJournal(t testing.TB, n int) string {
	t.Helper()
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	j := openTestJournal(t, dir)
	inc := frames.IncarnationID{1}
	for i := range n {
		require.NoError(t, j.update(func(tx *txn) error {
			id, b := frames.EffectAttemptID{1, byte(i)}, frames.BindingID{2, byte(i)}
			tx.putAttempt(id, &attemptRow{Coordinator: coordA, Incarnation: inc, State: frames.EffectSucceeded, Message: "m"})
			tx.put(bucketIndex, digestKey(coordA, [32]byte{byte(i)}), &indexRow{id})
			row := bindingRow{Coordinator: coordA, Session: frames.WorkSessionID{1}, Incarnation: inc, Attempt: id, State: bindingClosed}
			tx.addFacts(b, &row, fact(frames.FactOpened, &frames.Opened{}), fact(frames.FactClosed, &frames.Closed{}))
			tx.putBinding(b, &row)
			tx.put(bucketIncarnations, inc[:], &incarnationRow{Started: 1})
			tx.put(bucketAuthorities, coordA[:], &authorityRow{Epoch: 1, Activation: 1, Incarnation: inc})
			return nil
		}))
	}
	require.NoError(t, j.close())
	return dir
}

// A flipped bit is an error at start, or changes nothing.
func TestEveryBitFlipOfTheJournalIsSeen(t *testing.T) {
	dir := grownJournal(t, 3)
	path := filepath.Join(dir, journalFile)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = parseJournal(file, schemas.Newest())
	require.NoError(t, err)
	want, err := summarise(file)
	require.NoError(t, err)
	seen := 0
	for at := 0; at < len(file); at += 3 {
		bit := byte(1) << (at % 8)
		file[at] ^= bit
		if _, err := parseJournal(file, schemas.Newest()); err == nil {
			got, err := summarise(file)
			require.NoError(t, err)
			require.Equal(t, want, got, "flip at %d", at)
		} else {
			seen++
		}
		file[at] ^= bit
	}
	require.Greater(t, seen, 300)
}

func TestDamagedJournalIsNamedAndKept(t *testing.T) {
	good := grownJournal(t, 2)
	file, err := os.ReadFile(filepath.Join(good, journalFile))
	require.NoError(t, err)
	for name, damage := range map[string]func([]byte) []byte{
		"empty": func([]byte) []byte { return nil },
		"cut":   func(b []byte) []byte { return b[:len(b)/2] },
		"text":  func([]byte) []byte { return []byte("no journal") },
		"zeroed data": func(b []byte) []byte {
			clear(b[2*os.Getpagesize():])
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := privateDir(t)
			path := filepath.Join(dir, journalFile)
			bad := damage(append([]byte(nil), file...))
			require.NoError(t, os.WriteFile(path, bad, 0o600))
			_, err := openJournal(path, ownerPrint, schemas, nil)
			var corrupt *CorruptError
			require.ErrorAs(t, err, &corrupt)
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(bad), string(after))
		})
	}
	_, err = openJournal(filepath.Join(privateDir(t), journalFile), ownerPrint, schemas, nil)
	var missing *MissingError
	require.ErrorAs(t, err, &missing)
	_, err = openJournal(filepath.Join(good, journalFile), frames.Fingerprint{1}, schemas, nil)
	var identity *IdentityError
	require.ErrorAs(t, err, &identity)
	require.NoError(t, os.Chmod(filepath.Join(good, journalFile), 0o644))
	_, err = openJournal(filepath.Join(good, journalFile), ownerPrint, schemas, nil)
	var unsafe *durable.UnsafeFileError
	require.ErrorAs(t, err, &unsafe)
}

// A file of a newer program is refused as it is.
func TestNewerSchemaIsUntouched(t *testing.T) {
	dir := grownJournal(t, 1)
	path := filepath.Join(dir, journalFile)
	db, err := boltfile.Open(path)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bolt.Tx) error {
		value, err := boltfile.Seal([]byte(headKey), func(dst []byte) ([]byte, error) {
			return append(dst, 0, 0, 0, byte(schemas.Newest())+1, 'n', 'e', 'w'), nil
		})
		require.NoError(t, err)
		return tx.Bucket([]byte(bucketHead)).Put([]byte(headKey), value)
	}))
	require.NoError(t, db.Close())
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = openJournal(path, ownerPrint, schemas, nil)
	var newer *SchemaError
	require.ErrorAs(t, err, &newer)
	require.EqualValues(t, schemas.Newest()+1, newer.Have)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

// Changes that wait together share a transaction; a refused one leaves nothing in it.
func TestChangesShareATransaction(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	j := openTestJournal(t, dir)
	refused := errors.New("refused")
	begun, gate := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	var wg sync.WaitGroup
	wg.Go(func() {
		err := j.update(func(*txn) error { close(begun); <-gate; return nil }) // writes nothing
		if err != nil {
			t.Error(err)
		}
	})
	<-begun // all others wait behind it
	txids := make(chan int, 20)
	for i := range 20 {
		wg.Go(func() {
			err := j.update(func(tx *txn) error {
				if i%2 == 1 {
					return refused
				}
				tx.put(bucketIncarnations, []byte{15: byte(i)}, &incarnationRow{Started: 1})
				txids <- tx.tx.ID()
				return nil
			})
			if i%2 == 1 && !errors.Is(err, refused) || i%2 == 0 && err != nil {
				t.Errorf("change %d: %v", i, err)
			}
		})
	}
	require.Eventually(t, func() bool { return len(j.changes) == 20 }, waitLimit, time.Millisecond)
	release()
	wg.Wait()
	close(txids)
	ids := map[int]bool{}
	for id := range txids {
		ids[id] = true
	}
	require.Len(t, ids, 1)
	n := 0
	require.NoError(t, j.view(func(tx *txn) error {
		tx.each(bucketIncarnations, new(incarnationRow), func([]byte) { n++ })
		return nil
	}))
	require.Equal(t, 10, n)
	require.NoError(t, j.close())
	require.ErrorIs(t, j.update(func(*txn) error { return nil }), ErrClosed)
}

// Once a write has failed nothing is answered any more.
func TestFailedJournalAnswersNothing(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	j := openTestJournal(t, dir)
	require.NoError(t, j.db.Close())
	for range 3 {
		require.ErrorIs(t, j.update(func(tx *txn) error {
			tx.put(bucketIncarnations, []byte{15: 1}, &incarnationRow{})
			return nil
		}), ErrFailed)
	}
	require.ErrorIs(t, j.view(func(*txn) error { return nil }), ErrFailed)
	select {
	case <-j.failing:
	default:
		t.Fatal("the failure is not announced")
	}
}

func TestCreateReplacesNothing(t *testing.T) {
	dir := grownJournal(t, 1)
	require.ErrorIs(t, Create(dir, ownerPrint), os.ErrExist)
}

// Nothing that is answered may be lost with the machine: each transaction is synced, its pages
// and its growth.
func TestTheJournalIsSynced(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, Create(dir, ownerPrint))
	j := openTestJournal(t, dir)
	require.False(t, j.db.NoSync)
	require.False(t, j.db.NoGrowSync)
	require.False(t, j.db.NoFreelistSync)
}
