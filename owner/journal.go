package owner

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/durable"
	"coordinator/internal/meter"

	bolt "go.etcd.io/bbolt"
)

const (
	journalFile = "owner.db"
	headKey     = "head"

	bucketHead         = "head"
	bucketAttempts     = "attempts"     // EffectAttemptId -> attemptRow
	bucketIndex        = "index"        // operation, binding or digest -> indexRow
	bucketBindings     = "bindings"     // BindingId -> bindingRow
	bucketFacts        = "facts"        // BindingId || sequence -> factRow
	bucketAuthorities  = "authorities"  // CoordinatorId -> authorityRow
	bucketIncarnations = "incarnations" // IncarnationId -> incarnationRow

	// maxJournalBytes bounds what is read and checked at start.
	maxJournalBytes = 16 << 30
	// maxChanges is how many changes wait for the journal, and the most that share a sync.
	maxChanges = 256
)

// buckets is the number of buckets.
const buckets = 7

var bucketNames = [buckets]string{bucketHead, bucketAttempts, bucketIndex, bucketBindings, bucketFacts, bucketAuthorities, bucketIncarnations}

// schemas are the steps from older files to those of this program.
var schemas boltfile.Schemas

// A journal is the owner's durable memory. Changes that wait at the same time share one
// transaction and one sync. Once a write has failed, that and every later call matches
// [ErrFailed].
type journal struct {
	db      *bolt.DB
	schema  uint32
	owner   frames.Fingerprint
	changes chan *change
	counts  rowCounts        // owned by the writer
	took    *meter.Histogram // of transactions that wrote
	failing chan struct{}    // closed once failed is set
	join    sync.WaitGroup

	mu     sync.RWMutex
	closed bool  // guarded by mu; no change is sent afterwards
	failed error // set before failing is closed, constant afterwards
}

// A change is one caller's part of a transaction.
type change struct {
	fn  func(*txn) error
	err error
	ok  chan struct{} // closed when err is set
}

func createJournal(path string, owner frames.Fingerprint) error {
	return boltfile.Create(path, func(tx *bolt.Tx) error {
		for _, name := range bucketNames {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		t := &txn{tx: tx}
		t.put(bucketHead, []byte(headKey), new(headRow)) // counts itself
		return t.putHead(schemas.Newest(), owner)
	})
}

// openJournal checks the whole file and opens it. One of an older schema is migrated first.
func openJournal(path string, owner frames.Fingerprint, known boltfile.Schemas, progress func(string)) (*journal, error) {
	head, err := checkJournal(path, owner, known.Newest())
	var other *SchemaError
	if errors.As(err, &other) && other.Have < other.Want {
		m := boltfile.Migration{Path: path, From: other.Have, Steps: known.From(other.Have), Progress: progress, Check: func(path string) error {
			_, err := checkJournal(path, owner, known.Newest())
			return err
		}}
		if err := m.Run(); err != nil {
			return nil, err
		}
		head, err = checkJournal(path, owner, known.Newest())
	}
	if err != nil {
		return nil, err
	}
	db, err := boltfile.Open(path)
	if err != nil {
		return nil, err
	}
	j := &journal{db: db, schema: head.Schema, owner: owner, counts: head.Counts, took: meter.NewDurations(meter.FlushBounds...), changes: make(chan *change, maxChanges), failing: make(chan struct{})}
	j.join.Go(j.write)
	return j, nil
}

// checkJournal reads the whole file without opening it for writing. Only its pages are
// checked of a file of an older schema.
func checkJournal(path string, owner frames.Fingerprint, newest uint32) (headRow, error) {
	file, err := durable.ReadPrivate(path, maxJournalBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return headRow{}, &MissingError{File: path}
	} else if err != nil {
		return headRow{}, err
	}
	head, err := parseJournal(file, newest)
	var other *SchemaError
	switch {
	case errors.As(err, &other):
		other.File = path
		return head, other
	case err != nil:
		return head, &CorruptError{File: path, Problem: err.Error()}
	case head.Owner != owner:
		return head, &IdentityError{File: path, Have: head.Owner, Want: owner}
	}
	return head, nil
}

// parseJournal checks a whole file image: pages, checksums, the number of rows, and that all of
// it stems from the newest transaction. What schema it has comes before all that a schema
// decides.
func parseJournal(file []byte, newest uint32) (headRow, error) {
	var head headRow
	if have, err := boltfile.SchemaOf(file, bucketHead, headKey); err == nil && have != newest {
		if have < newest {
			_, err = boltfile.ReadAll(file)
		}
		return head, cmp.Or(err, error(&SchemaError{Have: have, Want: newest}))
	}
	c, err := boltfile.Read(file, bucketNames[:]...)
	if err != nil {
		return head, err
	}
	for _, p := range c.Buckets[bucketHead] {
		if string(p.Key) != headKey {
			return head, errors.New("an unknown key beside the head")
		}
		if err := unseal(p.Key, p.Value, &head); err != nil {
			return head, fmt.Errorf("head: %w", err)
		}
	}
	if head.Schema == 0 {
		return head, errors.New("the head is missing")
	}
	if head.TxID != c.TxID {
		return head, fmt.Errorf("the head is of transaction %d, the file of %d", head.TxID, c.TxID)
	}
	for k, name := range bucketNames {
		pairs := c.Buckets[name]
		if uint64(len(pairs)) != head.Counts[k] {
			return head, fmt.Errorf("%s: %d rows, the head counts %d", name, len(pairs), head.Counts[k])
		}
		for _, p := range pairs {
			if err := checkRow(name, p.Key, p.Value); err != nil {
				return head, fmt.Errorf("%s: row %x: %w", name, p.Key, err)
			}
		}
	}
	return head, nil
}

func checkRow(bucket string, key, value []byte) error {
	var row codec.Value
	width := 16
	switch bucket {
	case bucketHead:
		row, width = new(headRow), len(headKey)
	case bucketAttempts:
		row = new(attemptRow)
	case bucketIndex:
		row, width = new(indexRow), len(key)
	case bucketBindings:
		row = new(bindingRow)
	case bucketFacts:
		row, width = new(factRow), 24
	case bucketAuthorities:
		row = new(authorityRow)
	case bucketIncarnations:
		row = new(incarnationRow)
	}
	if len(key) != width {
		return fmt.Errorf("a key of %d bytes", len(key))
	}
	return unseal(key, value, row)
}

// update runs fn in a transaction and returns once it is durable. fn may share its transaction
// with others, so it must finish its checks before its first write: after an error of fn
// nothing of it is written. It may be called twice only for a transaction that failed whole.
func (j *journal) update(fn func(*txn) error) error {
	c := &change{fn: fn, ok: make(chan struct{})}
	j.mu.RLock()
	if j.closed {
		j.mu.RUnlock()
		return j.refusal()
	}
	select {
	case j.changes <- c:
	case <-j.failing:
		j.mu.RUnlock()
		return j.failed
	}
	j.mu.RUnlock()
	select {
	case <-c.ok:
		return c.err
	case <-j.failing:
	}
	select {
	case <-c.ok: // it was decided before the failure
		return c.err
	default:
		return j.failed
	}
}

func (j *journal) refusal() error {
	select {
	case <-j.failing:
		return j.failed
	default:
		return fmt.Errorf("journal: %w", ErrClosed)
	}
}

// write is the one writer. It takes all changes that wait into one transaction.
func (j *journal) write() {
	for first := range j.changes {
		batch := []*change{first}
		for full := false; !full && len(batch) < maxChanges; {
			select {
			case c, open := <-j.changes:
				if !open {
					full = true
					break
				}
				batch = append(batch, c)
			default:
				full = true
			}
		}
		if err := j.commit(batch); err != nil {
			j.failed = fmt.Errorf("%w: %w", ErrFailed, err)
			close(j.failing)
			return
		}
		for _, c := range batch {
			close(c.ok)
		}
	}
}

// errNothing rolls back a transaction in which nothing was written.
var errNothing = errors.New("nothing to write")

func (j *journal) commit(batch []*change) error {
	t := &txn{counts: j.counts}
	began := time.Now()
	err := boltfile.Guard(func() error {
		return j.db.Update(func(tx *bolt.Tx) error {
			t.tx = tx
			for _, c := range batch {
				before := t.writes
				c.err = c.fn(t)
				if c.err != nil && t.writes != before {
					panic("owner: a change failed after its first write: " + c.err.Error())
				}
				if t.err != nil {
					return t.err
				}
			}
			if t.writes == 0 {
				return errNothing
			}
			return t.putHead(j.schema, j.owner)
		})
	})
	if errors.Is(err, errNothing) {
		return nil
	}
	if err == nil {
		j.took.Took(time.Since(began))
		j.counts = t.counts
	}
	return err
}

// view runs fn on what is durable.
func (j *journal) view(fn func(*txn) error) error {
	select {
	case <-j.failing:
		return j.failed
	default:
	}
	var t txn
	err := boltfile.Guard(func() error {
		return j.db.View(func(tx *bolt.Tx) error {
			t.tx = tx
			return fn(&t)
		})
	})
	return errors.Join(t.err, err)
}

// close waits for the changes under way and gives the file up.
func (j *journal) close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	close(j.changes)
	j.mu.Unlock()
	j.join.Wait()
	return boltfile.Guard(j.db.Close)
}

// txn reads and writes rows. A damaged row or a failed write is kept in err, which fails the
// transaction and with it the journal.
type txn struct {
	tx     *bolt.Tx
	writes int
	counts rowCounts // in an update
	err    error
}

// get reads a row; false when there is none. Byte slices in v live as long as the transaction.
func (t *txn) get(bucket string, key []byte, v codec.Value) bool {
	raw := t.tx.Bucket([]byte(bucket)).Get(key)
	if raw == nil {
		return false
	}
	return t.decode(bucket, key, raw, v)
}

func (t *txn) decode(bucket string, key, raw []byte, v codec.Value) bool {
	if err := unseal(key, raw, v); err != nil {
		if t.err == nil {
			t.err = fmt.Errorf("%s: row %x: %w", bucket, key, err)
		}
		return false
	}
	return true
}

func (t *txn) put(bucket string, key []byte, v codec.Value) {
	t.writes++
	b := t.tx.Bucket([]byte(bucket))
	if b.Get(key) == nil {
		t.counts[bucketIndexOf(bucket)]++
	}
	raw, err := seal(key, v)
	if err == nil {
		err = b.Put(key, raw)
	}
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("%s: row %x: %w", bucket, key, err)
	}
}

func (t *txn) remove(bucket string, key []byte) {
	t.writes++
	b := t.tx.Bucket([]byte(bucket))
	if b.Get(key) != nil {
		t.counts[bucketIndexOf(bucket)]--
	}
	if err := b.Delete(key); err != nil && t.err == nil {
		t.err = fmt.Errorf("%s: row %x: %w", bucket, key, err)
	}
}

func (t *txn) putHead(schema uint32, owner frames.Fingerprint) error {
	t.put(bucketHead, []byte(headKey), &headRow{Schema: schema, Owner: owner, TxID: uint64(t.tx.ID()), Counts: t.counts})
	return t.err
}

func bucketIndexOf(name string) int {
	k := slices.Index(bucketNames[:], name)
	if k < 0 {
		panic("owner: no bucket " + name)
	}
	return k
}

func (t *txn) attempt(id frames.EffectAttemptID) (r attemptRow, ok bool) {
	ok = t.get(bucketAttempts, id[:], &r)
	return r, ok
}

func (t *txn) putAttempt(id frames.EffectAttemptID, r *attemptRow) { t.put(bucketAttempts, id[:], r) }

func (t *txn) binding(id frames.BindingID) (r bindingRow, ok bool) {
	ok = t.get(bucketBindings, id[:], &r)
	return r, ok
}

func (t *txn) putBinding(id frames.BindingID, r *bindingRow) { t.put(bucketBindings, id[:], r) }

func (t *txn) indexed(key []byte) (id frames.EffectAttemptID, ok bool) {
	var r indexRow
	ok = t.get(bucketIndex, key, &r)
	return r.Attempt, ok
}

// each calls fn for all rows of a bucket. v is decoded anew for each.
func (t *txn) each(bucket string, v codec.Value, fn func(key []byte)) {
	c := t.tx.Bucket([]byte(bucket)).Cursor()
	for k, raw := c.First(); k != nil && t.err == nil; k, raw = c.Next() {
		if t.decode(bucket, k, raw, v) {
			fn(k)
		}
	}
}
