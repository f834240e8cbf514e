package handshake

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/internal/durable"

	"github.com/stretchr/testify/require"
)

// quickClock runs the registry's polls and bounds twenty times as fast, so
// that each change can be tried ten times. TestJudge holds the true figures.
type quickClock struct{ clock.Clock }

const quick = 20

func (c quickClock) Now() clock.Reading {
	r := c.Clock.Now()
	r.Boot *= quick
	return r
}
func (c quickClock) NewTimer(d time.Duration) clock.Timer {
	return quickTimer{c.Clock.NewTimer(d / quick)}
}

type quickTimer struct{ clock.Timer }

func (t quickTimer) Reset(d time.Duration) { t.Timer.Reset(d / quick) }

// follow opens the registry at path and runs it until the test ends.
func follow(t *testing.T, path string, o RegistryOptions) *Registry {
	t.Helper()
	o.KnownScopes = testScopes
	if o.Clock == nil {
		o.Clock = quickClock{clock.System()}
	}
	r, err := OpenRegistry(path, o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

const patience = 20 * time.Second // only a failure takes so long

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, patience, time.Millisecond, what)
}

// holds reports whether exactly the given keys are in force.
func (r *Registry) holds(keys ...byte) func() bool {
	return func() bool {
		snap := r.Snapshot()
		if snap.Problem != nil || len(snap.Records) != len(keys) {
			return false
		}
		for i, n := range keys {
			if snap.Records[i] != testRecord(n) {
				return false
			}
		}
		return true
	}
}

func (r *Registry) isEmptied() bool {
	snap := r.Snapshot()
	_, found := r.Lookup(testRecord(1).KeyID)
	return snap.Problem != nil && len(snap.Records) == 0 && !found
}

// ways to put content at path.
var ways = map[string]func(t *testing.T, path string, content []byte){
	"in-place write": func(t *testing.T, path string, content []byte) {
		require.NoError(t, os.WriteFile(path, content, 0o600))
	},
	"write in two pieces": func(t *testing.T, path string, content []byte) {
		require.NoError(t, os.WriteFile(path, content[:len(content)/2], 0o600))
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		require.NoError(t, err)
		_, err = f.Write(content[len(content)/2:])
		require.NoError(t, err)
		require.NoError(t, f.Close())
	},
	"atomic replacement": func(t *testing.T, path string, content []byte) {
		require.NoError(t, durable.Replace(path, content, 0o600))
	},
	"delete and create": func(t *testing.T, path string, content []byte) {
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	},
	"parent directory replaced": func(t *testing.T, path string, content []byte) {
		dir := filepath.Dir(path)
		old, err := os.MkdirTemp(filepath.Dir(dir), "old")
		require.NoError(t, err)
		require.NoError(t, os.Rename(dir, filepath.Join(old, "moved")))
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	},
	"parent directory swapped by a link": func(t *testing.T, path string, content []byte) {
		dir := filepath.Dir(path)
		target, err := os.MkdirTemp(filepath.Dir(dir), "target")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(target, filepath.Base(path)), content, 0o600))
		require.NoError(t, os.Rename(dir, target+".old"))
		require.NoError(t, os.Symlink(target, dir))
	},
}

func TestC04_EveryWayToChangeTheRegistryTakesEffect(t *testing.T) {
	watches := map[string]error{"watched": nil, "inotify exhausted": errors.New("no space left on device")}
	for way, put := range ways {
		for watch, noWatch := range watches {
			t.Run(way+"/"+watch, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(stateDir(t), "workload-keys")
				writeRegistry(t, path, testRecord(1))
				r := follow(t, path, RegistryOptions{noWatch: noWatch})
				for i := range 10 { // each time another set of keys
					keys := []byte{1, 2, 3}[:1+i%3]
					records := make([]Record, len(keys))
					for i, n := range keys {
						records[i] = testRecord(n)
					}
					before := r.Generation()
					changed := !r.holds(keys...)()
					put(t, path, registryText(records...))
					eventually(t, way, r.holds(keys...))
					if changed {
						require.Greater(t, r.Generation(), before, "the generation tells of a change")
					}
				}
				for i := range 10 { // and ten at once, of which the last counts
					put(t, path, registryText(testRecord(byte(4+i))))
				}
				eventually(t, way+" in a burst", r.holds(13))
			})
		}
	}
}

func TestC04_BadRegistryFileAuthorisesNobody(t *testing.T) {
	// damages leave the registry bad until the file is put back by mend.
	damages := map[string]func(t *testing.T, path string){
		"chmod 000":       func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0)) },
		"chmod 644":       func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0o644)) },
		"open directory":  func(t *testing.T, p string) { require.NoError(t, os.Chmod(filepath.Dir(p), 0o755)) },
		"half written":    func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, 120)) },
		"emptied":         func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, 0)) },
		"removed":         func(t *testing.T, p string) { require.NoError(t, os.Remove(p)) },
		"one bad record":  func(t *testing.T, p string) { appendTo(t, p, "ed25519:oops\n") },
		"too large":       func(t *testing.T, p string) { require.NoError(t, os.Truncate(p, MaxRegistryBytes+1)) },
		"symlink swapped": func(t *testing.T, p string) { swapForLink(t, p) },
		"directory there": func(t *testing.T, p string) {
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Mkdir(p, 0o700))
		},
		"parent moved away": func(t *testing.T, p string) {
			require.NoError(t, os.Rename(filepath.Dir(p), filepath.Dir(p)+".away"))
		},
	}
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(stateDir(t), "workload-keys")
			writeRegistry(t, path, testRecord(1))
			var changes atomic.Int64
			r := follow(t, path, RegistryOptions{OnChange: func(s Snapshot) { changes.Add(1) }})
			for range 10 {
				damage(t, path)
				eventually(t, "emptied", r.isEmptied)
				// Mend by starting over in a fresh directory. The follower may put its
				// own file into the old one while that is being removed.
				eventually(t, "removed", func() bool { return os.RemoveAll(filepath.Dir(path)) == nil })
				require.NoError(t, os.RemoveAll(filepath.Dir(path)+".away"))
				require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
				writeRegistry(t, path, testRecord(1))
				eventually(t, "mended", r.holds(1))
			}
			eventually(t, "told of each", func() bool { return changes.Load() == 20 })
			require.Equal(t, uint64(21), r.Generation())
		})
	}
}

// TestSlowListenerDelaysNoRevocation: whoever records the registry may wait for a disk.
func TestSlowListenerDelaysNoRevocation(t *testing.T) {
	path := filepath.Join(stateDir(t), "workload-keys")
	writeRegistry(t, path, testRecord(1))
	told, release := make(chan Snapshot, 8), make(chan struct{})
	r := follow(t, path, RegistryOptions{OnChange: func(s Snapshot) {
		told <- s
		<-release
	}})
	writeRegistry(t, path, testRecord(1), testRecord(2))
	require.EqualValues(t, 2, (<-told).Generation)
	writeRegistry(t, path, testRecord(2))
	eventually(t, "in force while the listener is busy", r.holds(2))
	writeRegistry(t, path, testRecord(3))
	eventually(t, "and once more", r.holds(3))
	require.Empty(t, told, "two calls at once")
	close(release)
	for want := uint64(3); want <= 4; want++ {
		s := <-told
		require.Equal(t, want, s.Generation, "none is left out")
		require.Len(t, s.Records, 1)
	}
}

func appendTo(t *testing.T, path, text string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// swapForLink puts a link to a perfectly good file at path, atomically.
func swapForLink(t *testing.T, path string) {
	require.NoError(t, os.WriteFile(path+".real", registryText(testRecord(1), testRecord(2)), 0o600))
	require.NoError(t, os.Symlink(path+".real", path+".link"))
	require.NoError(t, os.Rename(path+".link", path))
}

func TestC04_BadRegistryRefusesTheStart(t *testing.T) {
	o := RegistryOptions{KnownScopes: testScopes}
	path := filepath.Join(stateDir(t), "workload-keys")
	_, err := OpenRegistry(path, o)
	require.ErrorIs(t, err, fs.ErrNotExist)
	writeRegistry(t, path, testRecord(1))
	_, err = OpenRegistry(path, o)
	require.NoError(t, err)

	var unsafe *durable.UnsafeFileError
	require.NoError(t, os.Chmod(path, 0o660))
	_, err = OpenRegistry(path, o)
	require.ErrorAs(t, err, &unsafe)
	require.Equal(t, "run: chmod 600 "+path, unsafe.Mend)
	require.NoError(t, os.Chmod(path, 0o600))
	appendTo(t, path, "nonsense\n")
	_, err = OpenRegistry(path, o)
	var bad *RegistryError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, 3, bad.Line)
}

// stepped is a registry whose reloads the test makes itself, on a manual clock.
type stepped struct {
	*Registry
	clock *clock.Manual
	path  string
	pub   publisher
}

func newStepped(t *testing.T, records ...Record) *stepped {
	path := filepath.Join(stateDir(t), "workload-keys")
	writeRegistry(t, path, records...)
	m := manualClock()
	r, err := OpenRegistry(path, RegistryOptions{Clock: m, KnownScopes: testScopes})
	require.NoError(t, err)
	s := &stepped{Registry: r, clock: m, path: path, pub: publisher{path: path}}
	t.Cleanup(s.pub.close)
	return s
}

func (s *stepped) after(d time.Duration) {
	s.clock.Advance(d)
	s.reload(&s.pub, &teller{})
}

// change writes records and lets them settle.
func (s *stepped) change(t *testing.T, records ...Record) {
	writeRegistry(t, s.path, records...)
	s.after(0)
	s.after(settleFor)
}

func (s *stepped) grant(t *testing.T, key byte, scope uint64) *Grant {
	t.Helper()
	g := &Grant{KeyID: testRecord(key).KeyID, Scope: scope, ExpiresAt: testEnd}
	require.NoError(t, s.admit(g))
	return g
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestC04_RevocationIsForEver(t *testing.T) {
	revoked := testRecord(1)
	revoked.RevokedAt = testNow
	narrow := testRecord(1)
	narrow.Scope = 2
	expired := testRecord(1)
	expired.ExpiresAt = testNow
	for name, cut := range map[string][]Record{
		"revoked":         {revoked, testRecord(2)},
		"removed":         {testRecord(2)},
		"ceiling lowered": {narrow, testRecord(2)},
		"expired already": {expired, testRecord(2)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStepped(t, testRecord(1), testRecord(2))
			g, other := s.grant(t, 1, 3), s.grant(t, 2, 3)
			require.NoError(t, g.Err(s.clock.Now()))
			require.False(t, isClosed(g.Revoked()))

			s.change(t, cut...)
			require.ErrorIs(t, g.Err(s.clock.Now()), ErrRevoked)
			require.True(t, isClosed(g.Revoked()))
			require.NoError(t, other.Err(s.clock.Now()), "other keys are untouched")

			s.change(t, testRecord(1), testRecord(2)) // enrolled again
			require.ErrorIs(t, g.Err(s.clock.Now()), ErrRevoked)
			require.NoError(t, s.grant(t, 1, 3).Err(s.clock.Now()))
			require.Equal(t, uint64(3), s.Generation())
			g.Release()
			other.Release()
			other.Release()
			require.Len(t, s.grants, 1, "the one made after the revocation is still watched")
		})
	}
}

func TestNarrowerCeilingSparesWhatItStillContains(t *testing.T) {
	s := newStepped(t, testRecord(1))
	g := s.grant(t, 1, 1)
	narrow := testRecord(1)
	narrow.Scope = 1
	narrow.ExpiresAt = testNow + 60 // and a shorter life ends it sooner
	s.change(t, narrow)
	require.NoError(t, g.Err(s.clock.Now()))
	s.change(t, testRecord(1)) // longer again: not for this grant
	s.clock.Advance(time.Minute)
	require.ErrorIs(t, g.Err(s.clock.Now()), ErrExpired)
}

// A half-written file cuts nobody within its second; after that everybody, for
// good, and no record counts as removed.
func TestC04_HalfWrittenRegistry(t *testing.T) {
	s := newStepped(t, testRecord(1), testRecord(2))
	g := s.grant(t, 1, 3)
	content, err := os.ReadFile(s.path)
	require.NoError(t, err)

	require.NoError(t, os.WriteFile(s.path, content[:len(content)-20], 0o600))
	s.after(0)
	s.after(900 * time.Millisecond)
	require.NoError(t, g.Err(s.clock.Now()))
	require.NoError(t, os.WriteFile(s.path, content, 0o600))
	s.after(90 * time.Millisecond)
	s.after(time.Second)
	require.NoError(t, g.Err(s.clock.Now()))
	require.Equal(t, uint64(1), s.Generation())

	// Cut at a line's end the file is valid, and lacks a key; only for a moment.
	firstTwo := len(registryText(testRecord(2)))
	require.NoError(t, os.WriteFile(s.path, content[:firstTwo-1], 0o600))
	require.NoError(t, os.WriteFile(s.path, registryText(testRecord(2)), 0o600))
	s.after(0)
	s.after(50 * time.Millisecond)
	require.NoError(t, os.WriteFile(s.path, content, 0o600))
	s.after(50 * time.Millisecond)
	s.after(time.Second)
	require.NoError(t, g.Err(s.clock.Now()))
	require.Equal(t, uint64(1), s.Generation())

	require.NoError(t, os.Chmod(s.path, 0))
	s.after(0)
	s.after(time.Second)
	require.ErrorIs(t, g.Err(s.clock.Now()), ErrRevoked)
	snap := s.Snapshot()
	var unsafe *durable.UnsafeFileError
	require.ErrorAs(t, snap.Problem, &unsafe)
	require.Equal(t, uint64(2), snap.Generation)
	require.ErrorIs(t, s.admit(&Grant{KeyID: testRecord(1).KeyID, Scope: 1, ExpiresAt: testEnd}), errNoGrant)

	require.NoError(t, os.Chmod(s.path, 0o600))
	s.after(time.Second)
	s.after(settleFor)
	require.ErrorIs(t, g.Err(s.clock.Now()), ErrRevoked)
	require.NoError(t, s.grant(t, 1, 3).Err(s.clock.Now()))
	require.NoError(t, s.Snapshot().Problem)
}

// A key revoked between proof and grant earns nothing.
func TestC04_RevokedDuringTheExchange(t *testing.T) {
	p := newPair()
	x, _, resp := p.open(t, 1, testEnd)
	revoked := testRecord(1)
	revoked.RevokedAt = testNow
	p.registry.install([]Record{revoked}, nil)
	_, err := x.Finish(resp)
	require.True(t, err == ErrAuthentication)
	require.ErrorIs(t, p.registry.admit(&Grant{KeyID: revoked.KeyID, Scope: 1, ExpiresAt: testEnd}), errNoGrant)
}

// What the record says at the instant of the grant counts, and not what it said at the proof.
func TestC04_TheRecordChangesDuringTheExchange(t *testing.T) {
	s := newStepped(t, testRecord(1))
	asked := func() *Grant { return &Grant{KeyID: testRecord(1).KeyID, Scope: 3, ExpiresAt: testEnd} }
	require.NoError(t, s.admit(asked()))
	for name, change := range map[string]func(*Record){
		"a shorter life":      func(r *Record) { r.ExpiresAt = testEnd - 1 },
		"a lower ceiling":     func(r *Record) { r.Scope = 1 },
		"another coordinator": func(r *Record) { r.Coordinator[0]++ },
	} {
		rec := testRecord(1)
		change(&rec)
		s.install([]Record{rec}, nil)
		require.ErrorIs(t, s.admit(asked()), errNoGrant, name)
		s.install([]Record{testRecord(1)}, nil)
		require.NoError(t, s.admit(asked()))
	}
}

// Grants are checked and revoked from many goroutines at once.
func TestGrantsUnderConcurrentReloads(t *testing.T) {
	r := StaticRegistry([]Record{testRecord(1), testRecord(2)})
	now := manualClock().Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				g := &Grant{KeyID: testRecord(1).KeyID, Scope: 1, ExpiresAt: testEnd}
				if r.admit(g) != nil {
					continue
				}
				first := g.Err(now)
				if second := g.Err(now); first != nil && second == nil {
					t.Error("a grant came back to life")
				}
				g.Release()
			}
		})
	}
	wg.Go(func() {
		for i := range 200 {
			r.install([]Record{testRecord(byte(1 + i%2))}, nil)
		}
	})
	wg.Wait()
	require.Empty(t, r.grants)
}

func TestStaticRegistryRunsUntilStopped(t *testing.T) {
	rec := testRecord(1)
	rec.KeyID = frames.KeyID{}
	r := StaticRegistry([]Record{rec})
	_, ok := r.Lookup(testRecord(1).KeyID)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, r.Run(ctx), context.Canceled)
}
