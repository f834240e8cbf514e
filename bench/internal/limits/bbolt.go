package limits

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"coordinator/bench/internal/measure"
)

// The buckets of a command's rows: two under random keys, and a log under ascending ones.
var (
	bucketObject    = []byte("object")
	bucketOperation = []byte("operation")
	bucketLog       = []byte("log")
)

const (
	// earlier is the state before the measurement, so that its pages are scattered.
	earlier = 100_000
	// Sizes of the rows that one command of 256 bytes writes, and of all of them in one.
	rowBytes, logBytes, wholeBytes = 200, 300, 716
)

// A boltLoad writes commands as rows of a bbolt file, in batches of one commit each.
type boltLoad struct {
	db     *bolt.DB
	random *rand.ChaCha8
	seq    uint64
	value  []byte
}

func openBolt(e *measure.Env, name string) (*boltLoad, error) {
	dir, err := e.TempDir("bbolt")
	if err != nil {
		return nil, err
	}
	opt := *bolt.DefaultOptions
	opt.FreelistType, opt.InitialMmapSize = bolt.FreelistMapType, 1<<30
	db, err := bolt.Open(filepath.Join(dir, name), 0o600, &opt)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketObject, bucketOperation, bucketLog} {
			if _, err := tx.CreateBucket(b); err != nil {
				return err
			}
		}
		return nil
	})
	return &boltLoad{db: db, random: rand.NewChaCha8([32]byte{7}), value: measure.Payload(7, 720)}, err
}

// scattered writes one command under random keys and in the log.
func (l *boltLoad) scattered(tx *bolt.Tx) error {
	var key [16]byte
	l.random.Read(key[:]) //nolint:errcheck // it never fails
	for _, b := range [][]byte{bucketObject, bucketOperation} {
		if err := tx.Bucket(b).Put(key[:], l.value[:rowBytes]); err != nil {
			return err
		}
	}
	return l.logged(tx, logBytes)
}

// logged writes the next row of the log.
func (l *boltLoad) logged(tx *bolt.Tx, size int) error {
	l.seq++
	b := tx.Bucket(bucketLog)
	b.FillPercent = 1
	return b.Put(binary.BigEndian.AppendUint64(nil, l.seq), l.value[:size])
}

func (l *boltLoad) commit(n int, op func(*bolt.Tx) error) error {
	return l.db.Update(func(tx *bolt.Tx) error {
		for range n {
			if err := op(tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// bboltLimits measures what a commit of a command would cost if bbolt were the log.
func bboltLimits(ctx context.Context, e *measure.Env) error {
	l, err := openBolt(e, "scattered.db")
	if err != nil {
		return err
	}
	defer l.db.Close()
	l.db.NoSync = true
	for range earlier / 1000 {
		if err := l.commit(1000, l.scattered); err != nil {
			return err
		}
	}
	l.db.NoSync = false
	if err := l.db.Sync(); err != nil {
		return err
	}
	for _, n := range []int{1, 64, 256, 1024} {
		if err := l.measure(ctx, e, fmt.Sprintf("bbolt.scattered.batch%d", n), n, l.scattered); err != nil {
			return err
		}
	}
	s, err := openBolt(e, "log.db")
	if err != nil {
		return err
	}
	defer s.db.Close()
	for _, n := range []int{1, 64, 256} {
		op := func(tx *bolt.Tx) error { return s.logged(tx, wholeBytes) }
		if err := s.measure(ctx, e, fmt.Sprintf("bbolt.log.batch%d", n), n, op); err != nil {
			return err
		}
	}
	return nil
}

func (l *boltLoad) measure(ctx context.Context, e *measure.Env, name string, n int, op func(*bolt.Tx) error) error {
	for range 3 {
		h := new(measure.Hist)
		commits := 0
		before := e.Probe(0)
		for end := time.Now().Add(e.Window(300)); time.Now().Before(end); commits++ {
			began := time.Now()
			if err := l.commit(n, op); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			h.Record(int64(time.Since(began)))
		}
		after := e.Probe(0)
		ops := float64(commits * n)
		e.Rec.Add(name, "ops/s", ops/after.At.Sub(before.At).Seconds())
		e.Rec.Add(name+".p99", "µs", h.Quantile(.99)/1e3)
		e.Rec.Add(name+".cpu", "µs/op", (after.Self-before.Self).Seconds()*1e6/ops)
		if before.HasFlushes {
			e.Rec.Add(name+".flushes", "per commit", float64(after.Flushes-before.Flushes)/float64(commits))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
