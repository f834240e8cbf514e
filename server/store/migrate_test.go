package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	bolt "go.etcd.io/bbolt"

	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/failpoint"
	"coordinator/internal/frozen"
	"coordinator/server/store"
)

// oldStore leaves a store of this program's schema after an unclean stop, with several
// segments, rows in every bucket and commits behind the checkpoint, and what it holds.
func oldStore(t *testing.T) (b *bed, state string, events []string) {
	b = &bed{t: t, dir: t.TempDir(), opts: store.Options{SegmentBytes: 8192, CheckpointKeys: 3, Manual: true, UnsafeNoSync: true}}
	require.NoError(t, store.Create(b.dir, store.Genesis{CoordinatorID: testID, Rows: []store.Row{retention()}, CreatedAt: testTime}, b.opts))
	b.open()
	require.NoError(t, b.script(func(int) {}))
	b.open()
	cut := b.s.Cut() // the checkpoint carries what it needs
	for id := range uint64(7) {
		b.put(frames.KindObjective, id+100, 1, "behind the cut", id%2 == 0)
	}
	b.checkpoint()
	cut.Close()
	for id := range uint64(5) {
		b.put(frames.KindObjective, id+100, 2, "behind the checkpoint", id%2 == 1)
	}
	state, events = b.state(), b.events()
	require.NoError(t, b.s.Abandon())
	tail, err := store.LogTail(b.dir, b.opts)
	require.NoError(t, err)
	require.EqualValues(t, 5, tail)
	return b, state, events
}

// events is what a replay of the whole log gives, after a look that its totals agree.
func (b *bed) events() []string {
	b.t.Helper()
	first := frames.EventCut(b.s.FirstRetained()) - 1
	r := b.replay(first, b.s.State().Head)
	defer r.Close()
	sum, err := r.Count(everything)
	require.NoError(b.t, err)
	events, err := readPages(r, first, everything, 10, 1<<20)
	require.NoError(b.t, err)
	require.EqualValues(b.t, sum.Events, len(events))
	streamed, err := b.s.Events(first, math.MaxInt32, math.MaxInt32)
	require.NoError(b.t, err)
	require.Equal(b.t, texts(streamed), texts(events))
	return texts(events)
}

var payloads = regexp.MustCompile(`schema=1 (.*) payload="([^"]*)"`)

// inNextSchema is a state as store.NextSchema makes it.
func inNextSchema(state string) string {
	return payloads.ReplaceAllString(state, `schema=2 $1 payload="$2+"`)
}

// nextBed is the same directory under a program that knows the next schema.
func (b *bed) nextBed() *bed {
	return &bed{t: b.t, dir: b.dir, opts: store.WithUpgrades(b.opts, store.NextSchema())}
}

func requireFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var have []string
	for _, e := range entries {
		have = append(have, e.Name())
	}
	require.Equal(t, want, have)
}

// TestMigrationToTheNextSchema: every row, count, cut and event is there in the new form, the
// store goes on, and what it was opens under the older program.
func TestMigrationToTheNextSchema(t *testing.T) {
	b, state, events := oldStore(t)
	next := b.nextBed()
	var told []string
	next.opts.Progress = func(line string) { told = append(told, line) }
	next.open()
	require.Equal(t, inNextSchema(state), next.state())
	require.NotEqual(t, state, inNextSchema(state))
	migrated := next.events()
	require.Len(t, migrated, len(events))
	for i := range events {
		require.Equal(t, strings.Fields(events[i])[0], strings.Fields(migrated[i])[0])
	}
	require.Contains(t, strings.Join(told, "\n"), "from schema 1 to 2")
	require.Contains(t, told, "the store has its new schema; what it was is kept in "+filepath.Join(b.dir, "schema-1"))
	requireFiles(t, b.dir, "log", "schema-1", "state.db")

	next.put(frames.KindObjective, 500, 1, "after", true)
	next.checkpoint()
	after, afterEvents := next.state(), next.events()
	require.NoError(t, next.s.Close())
	require.NoError(t, store.Verify(b.dir, next.opts))
	next.open()
	require.Equal(t, after, next.state())
	require.Equal(t, afterEvents, next.events())
	require.NoError(t, next.s.Close())

	var newer *store.SchemaError
	require.ErrorAs(t, b.openError(), &newer)
	require.EqualValues(t, 2, newer.Have)
	require.ErrorContains(t, newer, "it was left untouched")
	kept := &bed{t: t, dir: filepath.Join(b.dir, "schema-1"), opts: b.opts}
	kept.open()
	require.Equal(t, state, kept.state())
	require.Equal(t, events, kept.events())
	require.NoError(t, kept.s.Close())
}

// TestMigrationWhereTheNameLooksLikeAPattern: a directory may be called anything.
func TestMigrationWhereTheNameLooksLikeAPattern(t *testing.T) {
	b, state, _ := oldStore(t)
	odd := filepath.Join(t.TempDir(), `[prod] * \d?`)
	require.NoError(t, os.Rename(b.dir, odd))
	b.dir = odd
	next := b.nextBed()
	next.open()
	require.Equal(t, inNextSchema(state), next.state())
	require.NoError(t, next.s.Close())
	requireFiles(t, odd, "log", "schema-1", "state.db")
}

// TestMigrationOverTwoSchemas runs two steps at once.
func TestMigrationOverTwoSchemas(t *testing.T) {
	b, state, events := oldStore(t)
	two := b.nextBed()
	two.opts = store.WithUpgrades(b.opts, store.NextSchema(), store.NextSchema())
	two.open()
	want := strings.ReplaceAll(strings.ReplaceAll(inNextSchema(state), `schema=2`, `schema=3`), `+"`, `++"`)
	require.Equal(t, want, two.state())
	require.Len(t, two.events(), len(events))
	require.NoError(t, two.s.Close())
	requireFiles(t, b.dir, "log", "schema-1", "state.db")
}

// TestMigrationInterruptedAtEachStep takes the directory as it stands at each step, as a kill
// would leave it. The old program finds its store as it was, or ends what was decided and
// then refuses; the new one ends with the new store. Nothing is between them.
func TestMigrationInterruptedAtEachStep(t *testing.T) {
	b, state, _ := oldStore(t)
	taken := map[string]string{}
	take := func(step string) {
		to := t.TempDir()
		require.NoError(t, os.CopyFS(to, os.DirFS(b.dir)))
		taken[fmt.Sprintf("%02d %s", len(taken), step)] = to
	}
	for _, name := range []string{"migrate-built", "migrate-decided", "migrate-kept", "migrate-replaced", "migrate-ended"} {
		defer failpoint.Set(name, func() { take(name) })()
	}
	next := b.nextBed()
	next.opts.Progress = func(line string) { take(line) }
	next.open()
	require.NoError(t, next.s.Abandon())
	next.opts.Progress = nil
	// Without fail points, the steps behind the decision are made by hand.
	if !failpoint.Enabled {
		decided(t, b.dir, take)
	}
	require.GreaterOrEqual(t, len(taken), 12)
	old, ended := 0, 0
	for step, dir := range taken {
		alike := t.TempDir()
		require.NoError(t, os.CopyFS(alike, os.DirFS(dir)))
		again := &bed{t: t, dir: dir, opts: next.opts}
		again.open()
		require.Equal(t, inNextSchema(state), again.state(), step)
		require.NoError(t, again.s.Close())
		requireFiles(t, dir, "log", "schema-1", "state.db")

		older := &bed{t: t, dir: alike, opts: b.opts}
		if _, err := os.Stat(filepath.Join(alike, "migrated")); err == nil {
			require.ErrorContains(t, store.Verify(alike, b.opts), "was interrupted")
		}
		s, err := store.Open(alike, b.opts)
		if err == nil {
			old++
			older.s = s
			require.Equal(t, state, older.state(), step)
			require.NoError(t, s.Close())
			require.NoDirExists(t, filepath.Join(alike, "migrating"), step)
			continue
		}
		ended++
		var newer *store.SchemaError
		require.ErrorAs(t, err, &newer, step)
		require.NoDirExists(t, filepath.Join(alike, "migrated"), step)
		require.NoError(t, os.RemoveAll(filepath.Join(alike, "migrating")), "a refused program does not tidy up")
		requireFiles(t, alike, "log", "schema-1", "state.db")
	}
	require.Greater(t, old, 4)
	require.GreaterOrEqual(t, ended, 5)
}

// decided puts a finished migration back to where it had been decided, and takes each step.
func decided(t *testing.T, dir string, take func(string)) {
	from, kept := filepath.Join(dir, "migrated"), filepath.Join(dir, "schema-1")
	require.NoError(t, os.Mkdir(from, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(from, "keep-in-schema-1"), nil, 0o600))
	take("all is in place")
	for _, name := range []string{"state.db", "log"} {
		require.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(from, name)))
		take(name + " is kept and not replaced")
		require.NoError(t, os.Rename(filepath.Join(kept, name), filepath.Join(dir, name)))
		take(name + " is not kept")
	}
	require.NoError(t, os.Remove(kept))
	take("decided")
}

// TestMigrationRefused leaves the store as it was, and nothing beside it.
func TestMigrationRefused(t *testing.T) {
	refused := errors.New("refused")
	for _, tt := range []struct {
		name string
		with func(t *testing.T, b *bed)
		text string
		want error
	}{
		{"no room", func(t *testing.T, b *bed) { b.opts.FreeBytes = func() uint64 { return 50_000 } }, "of which 50000 are free; nothing was changed", syscall.ENOSPC},
		{"a step on state.db", func(t *testing.T, b *bed) {
			u := store.NextSchema()
			u.File = func(*bolt.Tx, *bolt.DB) error { return refused }
			b.opts = store.WithUpgrades(b.opts, u)
		}, "state.db in schema 2", refused},
		{"a step that loses a row", func(t *testing.T, b *bed) {
			u := store.NextSchema()
			whole := u.File
			u.File = func(old *bolt.Tx, fresh *bolt.DB) error {
				return errors.Join(whole(old, fresh), fresh.Update(func(tx *bolt.Tx) error {
					c := tx.Bucket([]byte("history")).Cursor()
					k, _ := c.First()
					return tx.Bucket([]byte("history")).Delete(k)
				}))
			}
			b.opts = store.WithUpgrades(b.opts, u)
		}, "the migrated store does not pass", nil},
		{"a step that adds an event", func(t *testing.T, b *bed) {
			u := store.NextSchema()
			u.Record = func(body []byte) ([]byte, error) {
				body, err := store.NextSchema().Record(body)
				return append(body, 3), err // a hidden one
			}
			b.opts = store.WithUpgrades(b.opts, u)
		}, "in schema 2: record body is malformed", nil},
		{"a step on a record", func(t *testing.T, b *bed) {
			u := store.NextSchema()
			u.Record = func([]byte) ([]byte, error) { return nil, refused }
			b.opts = store.WithUpgrades(b.opts, u)
		}, "in schema 2: refused", refused},
		{"what was kept before is in the way", func(t *testing.T, b *bed) {
			require.NoError(t, os.Mkdir(filepath.Join(b.dir, "schema-1"), 0o700))
			t.Cleanup(func() { require.DirExists(t, filepath.Join(b.dir, "schema-1")) })
		}, "holds what an earlier migration kept; move it away", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, state, events := oldStore(t)
			next := b.nextBed()
			tt.with(t, next)
			err := next.openError()
			require.ErrorContains(t, err, tt.text)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			require.NoDirExists(t, filepath.Join(b.dir, "migrating"))
			require.NoDirExists(t, filepath.Join(b.dir, "migrated"))
			b.open()
			require.Equal(t, state, b.state())
			require.Equal(t, events, b.events())
			require.NoError(t, b.s.Close())
		})
	}
}

// TestMigrationOfDamagedFiles: damage is reported as by Open, and nothing is changed.
func TestMigrationOfDamagedFiles(t *testing.T) {
	b, _, _ := oldStore(t)
	segments, err := filepath.Glob(filepath.Join(b.dir, "log", "*.seg"))
	require.NoError(t, err)
	require.Greater(t, len(segments), 3)
	for _, tt := range []struct {
		name   string
		damage func(dir string) error
	}{
		{"a record in the middle", func(dir string) error { return flip(filepath.Join(dir, "log", filepath.Base(segments[1])), 200) }},
		{"a segment is missing", func(dir string) error { return os.Remove(filepath.Join(dir, "log", filepath.Base(segments[1]))) }},
		{"values of state.db", func(dir string) error {
			path := filepath.Join(dir, "state.db")
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			changed := bytes.ReplaceAll(raw, []byte("behind the cut"), []byte("before the cut"))
			require.NotEqual(t, raw, changed)
			return os.WriteFile(path, changed, 0o600)
		}},
		{"state.db of another copy", func(dir string) error {
			other, _, _ := oldStore(t)
			raw, err := os.ReadFile(other.statePath())
			require.NoError(t, err)
			return os.WriteFile(filepath.Join(dir, "state.db"), raw, 0o600)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.CopyFS(dir, os.DirFS(b.dir)))
			require.NoError(t, tt.damage(dir))
			next := &bed{t: t, dir: dir, opts: b.nextBed().opts}
			var damaged *store.CorruptError
			require.ErrorAs(t, next.openError(), &damaged)
			requireFiles(t, dir, "log", "state.db")
		})
	}
}

func flip(path string, at int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	b[0] ^= 0x40
	if err == nil {
		_, err = f.WriteAt(b[:], at)
	}
	return errors.Join(err, f.Close())
}

// TestTheReleasesStore opens the files of the first release, migrates them to a schema that
// only this test knows, and finds every row and event of theirs in it.
func TestTheReleasesStore(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, frozen.Unpack(frozen.Release1, root, "coordinator"))
	require.NoError(t, store.Verify(filepath.Join(root, "coordinator"), store.Options{}))
	b := &bed{t: t, dir: t.TempDir(), opts: store.Options{Manual: true, UnsafeNoSync: true}}
	for _, name := range []string{"log", "state.db"} {
		require.NoError(t, os.Rename(filepath.Join(root, "coordinator", name), filepath.Join(b.dir, name)))
	}
	tail, err := store.LogTail(b.dir, b.opts)
	require.NoError(t, err)
	require.Positive(t, tail, "commits behind the checkpoint")
	b.open()
	state, events := b.state(), b.events()
	require.NoError(t, b.s.Abandon())

	next := b.nextBed()
	next.open()
	require.Len(t, next.events(), len(events))
	migrated := next.state()
	require.Equal(t, strings.Count(state, "schema=1"), strings.Count(migrated, "schema=2"))
	require.NotContains(t, migrated, "schema=1")
	require.Equal(t, strings.SplitN(state, "\n", 2)[0], strings.SplitN(migrated, "\n", 2)[0], "heads, counts and authority")
	require.NoError(t, next.s.Close())
	requireFiles(t, b.dir, "log", "schema-1", "state.db")
	kept := &bed{t: t, dir: filepath.Join(b.dir, "schema-1"), opts: b.opts}
	kept.open()
	require.Equal(t, state, kept.state())
	require.Equal(t, events, kept.events())
	require.NoError(t, kept.s.Close())
}

// TestThisSchema: what the program writes is what it says.
func TestThisSchema(t *testing.T) {
	require.EqualValues(t, 1, store.NewestSchema(), "docs/upgrades.md names the schema")
	var room *boltfile.RoomError
	b, _, _ := oldStore(t)
	next := b.nextBed()
	next.opts.FreeBytes = func() uint64 { return 0 }
	require.ErrorAs(t, next.openError(), &room)
	require.Equal(t, b.dir, room.File)
}
