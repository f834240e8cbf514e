package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/internal/failpoint"
)

// oldFile makes a file of schema 1 with n rows.
func oldFile(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	require.NoError(t, Create(path, func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		require.NoError(t, err)
		for i := range n {
			require.NoError(t, b.Put(fmt.Appendf(nil, "k%06d", i), []byte("value")))
		}
		require.NoError(t, b.SetSequence(7))
		return b.Put([]byte("head"), schemaValue(t, 1))
	}))
	return path
}

func schemaValue(t *testing.T, schema uint32) []byte {
	v, err := Seal([]byte("head"), func(dst []byte) ([]byte, error) {
		return append(binary.BigEndian.AppendUint32(dst, schema), "more"...), nil
	})
	require.NoError(t, err)
	return v
}

// to is a step that makes each value longer.
func to(t *testing.T, schema uint32) Step {
	return func(old *bolt.Tx, fresh *bolt.DB) error {
		return Copy(old, fresh, func(_, key, value []byte) ([]byte, error) {
			switch string(key) {
			case "head":
				return schemaValue(t, schema), nil
			case "k000001":
				return nil, nil
			}
			return append(append([]byte(nil), value...), byte('0'+schema)), nil
		})
	}
}

func requireMigrated(t *testing.T, path string, schema uint32, n int, value string) {
	t.Helper()
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	have, err := SchemaOf(file, "b", "head")
	require.NoError(t, err)
	require.Equal(t, schema, have)
	c, err := Read(file, "b")
	require.NoError(t, err)
	require.Len(t, c.Buckets["b"], n)
	for _, p := range c.Buckets["b"] {
		if string(p.Key) != "head" {
			require.Equal(t, value, string(p.Value))
		}
	}
}

func TestMigration(t *testing.T) {
	for steps := 1; steps <= 3; steps++ {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			path := oldFile(t, 2000)
			require.NoError(t, os.Chmod(path, 0o640))
			was, err := os.ReadFile(path)
			require.NoError(t, err)
			m := Migration{Path: path, From: 1}
			want := "value"
			for i := range steps {
				m.Steps = append(m.Steps, to(t, uint32(i)+2))
				want += string(byte('2' + i))
			}
			var told []string
			m.Progress = func(line string) { told = append(told, line) }
			m.Check = func(path string) error {
				requireMigrated(t, path, uint32(steps)+1, 2000, want) // one row less, and the head
				return nil
			}
			require.NoError(t, m.Run())
			requireMigrated(t, path, uint32(steps)+1, 2000, want)
			kept, err := os.ReadFile(Kept(path, 1))
			require.NoError(t, err)
			require.Equal(t, was, kept)
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.EqualValues(t, 0o640, info.Mode())
			db, err := Open(path)
			require.NoError(t, err)
			require.NoError(t, db.View(func(tx *bolt.Tx) error {
				require.EqualValues(t, 7, tx.Bucket([]byte("b")).Sequence())
				return nil
			}))
			require.NoError(t, db.Close())
			names, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Len(t, names, 2, "nothing else is left")
			require.Len(t, told, steps+2)
			require.Contains(t, told[0], "in schema 2")
			require.Contains(t, told[steps+1], "is kept as "+Kept(path, 1))
		})
	}
}

// A migration that fails leaves the old file and nothing else.
func TestMigrationFails(t *testing.T) {
	refused := errors.New("refused")
	for _, tt := range []struct {
		name string
		with func(*Migration)
		want error
	}{
		{"no room", func(m *Migration) { m.Free = func(string) uint64 { return 1 << 20 } }, syscall.ENOSPC},
		{"the first step", func(m *Migration) {
			m.Steps[0] = func(*bolt.Tx, *bolt.DB) error { return refused }
		}, refused},
		{"a later step, half done", func(m *Migration) {
			m.Steps = append(m.Steps, func(old *bolt.Tx, fresh *bolt.DB) error {
				return errors.Join(to(t, 3)(old, fresh), refused)
			})
		}, refused},
		{"the check", func(m *Migration) { m.Check = func(string) error { return refused } }, refused},
		{"a step that panics", func(m *Migration) {
			m.Steps[0] = func(*bolt.Tx, *bolt.DB) error { panic("in the step") }
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := oldFile(t, 100)
			was, err := os.ReadFile(path)
			require.NoError(t, err)
			m := Migration{Path: path, From: 1, Steps: []Step{to(t, 2)}}
			tt.with(&m)
			err = m.Run()
			if tt.want == nil {
				require.ErrorContains(t, err, "in the step")
			} else {
				require.ErrorIs(t, err, tt.want)
			}
			now, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, was, now)
			names, err := os.ReadDir(filepath.Dir(path))
			require.NoError(t, err)
			require.Len(t, names, 1)
			require.NoError(t, (&Migration{Path: path, From: 1, Steps: []Step{to(t, 2)}}).Run())
			requireMigrated(t, path, 2, 100, "value2")
		})
	}
	m := Migration{Path: oldFile(t, 1), From: 1, Steps: []Step{to(t, 2)}, Free: func(string) uint64 { return 5 }}
	require.ErrorContains(t, m.Run(), "of which 5 are free; nothing was changed: make room")
}

// TestMigrationInterrupted takes the directory as it stands at each step: a file of one
// schema, whole, is under the name, and the next run ends with the newest.
func TestMigrationInterrupted(t *testing.T) {
	path := oldFile(t, 500)
	var taken []string
	take := func() {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Dir(path))))
		taken = append(taken, filepath.Join(dir, "x.db"))
	}
	for _, name := range []string{"migrate-written", "migrate-checked", "migrate-kept", "migrate-renamed"} {
		defer failpoint.Set(name, take)()
	}
	m := Migration{Path: path, From: 1, Check: func(string) error { take(); return nil }, Progress: func(string) { take() }}
	within := func(s Step) Step {
		return func(old *bolt.Tx, fresh *bolt.DB) error { take(); defer take(); return s(old, fresh) }
	}
	m.Steps = []Step{within(to(t, 2)), within(to(t, 3))}
	require.NoError(t, m.Run())
	require.GreaterOrEqual(t, len(taken), 9)
	if failpoint.Enabled {
		require.GreaterOrEqual(t, len(taken), 14)
	}
	olds := 0
	for i, path := range taken {
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		have, err := SchemaOf(file, "b", "head")
		require.NoError(t, err, i)
		if have == 1 {
			olds++
			require.NoError(t, (&Migration{Path: path, From: 1, Steps: []Step{to(t, 2), to(t, 3)}}).Run())
		}
		requireMigrated(t, path, 3, 500, "value23")
		names, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, names, 2, "%v", names)
	}
	require.Greater(t, olds, 5)
	require.Less(t, olds, len(taken))
}

func TestSchemaOf(t *testing.T) {
	file, err := os.ReadFile(oldFile(t, 3000))
	require.NoError(t, err)
	have, err := SchemaOf(file, "b", "head")
	require.NoError(t, err)
	require.EqualValues(t, 1, have)
	_, err = SchemaOf(file, "c", "head")
	require.ErrorIs(t, err, ErrDamaged)
	_, err = SchemaOf(file, "b", "heads")
	require.ErrorIs(t, err, ErrDamaged)
	_, err = SchemaOf(file, "b", "k000002")
	require.ErrorIs(t, err, ErrChecksum)
	var s Schemas
	require.EqualValues(t, 1, s.Newest())
	s = Schemas{to(t, 2), to(t, 3)}
	require.EqualValues(t, 3, s.Newest())
	require.Len(t, s.From(1), 2)
	require.Len(t, s.From(2), 1)
}
