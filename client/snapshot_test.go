package client

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// TestC11_SnapshotVerifies takes snapshots of every shape, in memory and spilled.
func TestC11_SnapshotVerifies(t *testing.T) {
	for _, tt := range []struct {
		name             string
		n, size, perPage int
	}{
		{"empty", 0, 0, 0},
		{"one page", 3, 10, 0},
		{"many pages", 60, 10, 7},
		{"more than stays in memory", 200, 60 << 10, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			want := objectives(t, tt.n, tt.size)
			c := w.dial(func(p *peer) { p.snapshot(&shown{base: 12, records: want, perPage: tt.perPage}) })
			s, err := c.Snapshot(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(tt.n), s.Records)
			require.Nil(t, s.Lost)
			for range 2 { // staged records can be read again
				i := 0
				require.NoError(t, s.Each(func(r frames.SnapshotRecord) error {
					if string(r.Payload) != string(want[i].Payload) || r.Ref() != want[i].Ref() || r.Revision != want[i].Revision {
						return fmt.Errorf("record %d is another one", i)
					}
					i++
					return nil
				}))
				require.Equal(t, tt.n, i)
			}
			require.Equal(t, tt.n*tt.size >= spoolMemory, s.staged.file != nil)
			left, err := filepath.Glob(filepath.Join(filepath.Dir(w.pins.Path), ".snapshot-*"))
			require.NoError(t, err)
			require.Empty(t, left, "a staging file keeps its name")
			require.NoError(t, s.Close())
			require.Error(t, s.Each(func(frames.SnapshotRecord) error { return nil }))
			state, err := OpenState(w.pins)
			require.NoError(t, err)
			require.Equal(t, cutSeen{Activation: w.activation, Sequence: 12}, state.cut())
			require.True(t, state.mem.Authority.Verified)
		})
	}
}

// TestC11_SnapshotThatContradictsItself closes the connection and shows nothing.
func TestC11_SnapshotThatContradictsItself(t *testing.T) {
	records := objectives(t, 6, 10)
	for _, tt := range []struct {
		name  string
		fault func(s *shown)
	}{
		{"another guard", func(s *shown) { s.begin = func(b *frames.SnapshotBegin) { b.Guard.Activation++ } }},
		{"another base than digested", func(s *shown) { s.begin = func(b *frames.SnapshotBegin) { b.Base++ } }},
		{"a subscription that was not asked for", func(s *shown) {
			s.begin = func(b *frames.SnapshotBegin) { b.SubscriptionID = frames.SubscriptionID{1} }
		}},
		{"bad digest", func(s *shown) { s.end = func(e *frames.SnapshotEnd) { e.Digest[31] ^= 1 } }},
		{"too few records counted", func(s *shown) { s.end = func(e *frames.SnapshotEnd) { e.RecordCount-- } }},
		{"too many pages counted", func(s *shown) { s.end = func(e *frames.SnapshotEnd) { e.PageCount++ } }},
		{"the end of another snapshot", func(s *shown) { s.end = func(e *frames.SnapshotEnd) { e.SnapshotID[0] ^= 1 } }},
		{"a page left out", func(s *shown) {
			s.page = func(p *frames.SnapshotPage) {
				if p.Index == 1 {
					p.Index = 2
				}
			}
		}},
		{"a page sent twice", func(s *shown) {
			s.page = func(p *frames.SnapshotPage) {
				if p.Index == 1 {
					p.Records = records[:2]
				}
			}
		}},
		{"a page without one of its records", func(s *shown) {
			s.page = func(p *frames.SnapshotPage) {
				if p.Index == 1 {
					p.Records = p.Records[1:]
				}
			}
		}},
		{"a record at another revision", func(s *shown) {
			s.page = func(p *frames.SnapshotPage) {
				p.Records = append([]frames.SnapshotRecord{}, p.Records...)
				p.Records[0].Revision += 100
			}
		}},
		{"a page for another cursor", func(s *shown) { s.page = func(p *frames.SnapshotPage) { p.Cursor = []byte("x") } }},
		{"a page of another snapshot", func(s *shown) { s.page = func(p *frames.SnapshotPage) { p.SnapshotID[0] ^= 1 } }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			s := &shown{base: 9, records: records, perPage: 2}
			tt.fault(s)
			c := w.dial(func(p *peer) { p.snapshot(s); p.recv() })
			_, err := c.Snapshot(t.Context())
			var se *SnapshotError
			require.ErrorAs(t, err, &se)
			require.ErrorIs(t, err, ErrProtocol)
			<-c.Done()
			require.ErrorIs(t, c.Err(), ErrProtocol)
			state, err := OpenState(w.pins)
			require.NoError(t, err)
			require.False(t, state.mem.Authority.Verified)
			require.Zero(t, state.cut())
		})
	}
}

func TestSnapshotCutAtEveryFrame(t *testing.T) {
	records := objectives(t, 6, 10)
	for cut := 1; ; cut++ {
		w := newWorld(t)
		c := w.dial(func(p *peer) { p.snapshot(&shown{records: records, perPage: 2, cutAt: cut}) })
		s, err := c.Snapshot(t.Context())
		if err == nil {
			require.NoError(t, s.Close())
			require.Equal(t, 6, cut, "BEGIN, three pages and END can each be lost")
			return
		}
		require.ErrorIs(t, err, ErrDisconnected)
		require.False(t, c.verified.Load())
	}
}

func TestSnapshotRefused(t *testing.T) {
	w := newWorld(t)
	c := w.dial(func(p *peer) {
		o := take[*frames.OpenSnapshot](p)
		p.send(&frames.CoordError{RequestID: o.RequestID, Code: frames.CodeResourceExhausted, Message: "leases"})
		p.snapshot(&shown{})
	})
	_, err := c.Snapshot(t.Context())
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	s, err := c.Snapshot(t.Context())
	require.NoError(t, err, "the connection goes on")
	require.NoError(t, s.Close())
}

func TestLostHistoryRule(t *testing.T) {
	bases := func(pairs ...uint64) (out []frames.ActivationBase) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, frames.ActivationBase{Activation: frames.ActivationSequence(pairs[i]), Base: frames.EventCut(pairs[i+1])})
		}
		return out
	}
	for _, tt := range []struct {
		name       string
		shown      cutSeen
		activation frames.ActivationSequence
		base       frames.EventCut
		bases      []frames.ActivationBase
		lost       bool
	}{
		{"nothing shown yet", cutSeen{}, 5, 10, bases(4, 3, 5, 10), false},
		{"an activation later", cutSeen{4, 10}, 5, 10, bases(4, 3, 5, 10), false},
		{"an activation later, behind the head", cutSeen{4, 7}, 5, 30, bases(4, 3, 5, 10), false},
		{"shown more than the next activation began with", cutSeen{4, 11}, 5, 30, bases(4, 3, 5, 10), true},
		{"several activations later", cutSeen{2, 3}, 5, 30, bases(2, 1, 4, 3, 5, 10), false},
		{"several later, and shown more", cutSeen{2, 4}, 5, 30, bases(2, 1, 4, 3, 5, 10), true},
		{"an activation that is not listed", cutSeen{3, 1}, 5, 30, bases(2, 1, 4, 3, 5, 10), true},
		{"an activation from before the list", cutSeen{1, 1}, 5, 30, bases(2, 1, 4, 3, 5, 10), true},
		{"the same activation", cutSeen{5, 30}, 5, 30, bases(4, 3, 5, 10), false},
		{"the same activation, gone back", cutSeen{5, 31}, 5, 30, bases(4, 3, 5, 10), true},
		{"no list", cutSeen{4, 10}, 5, 10, nil, false},
		{"no list, gone back", cutSeen{4, 11}, 5, 10, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			begin := &frames.SnapshotBegin{Guard: frames.AuthorityGuard{Activation: tt.activation}, Base: tt.base, Bases: tt.bases}
			require.Equal(t, tt.lost, lostHistory(tt.shown, begin) != nil)
		})
	}
}

func TestLostHistoryMakesUnresolvedOperationsIndeterminate(t *testing.T) {
	w := newWorld(t)
	c := w.dial(func(p *peer) {
		p.snapshot(&shown{base: 20, bases: []frames.ActivationBase{{Activation: 3, Base: 5}}})
		p.recv()
	})
	s, err := c.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	cmd := created(t, operation(1), "{}")
	_, err = c.Command(t.Context(), cmd)
	require.ErrorAs(t, err, new(*OutcomeUnknownError))

	w.restart() // from a backup in which event 20 does not exist
	c = w.dial(func(p *peer) {
		p.snapshot(&shown{base: 11, bases: []frames.ActivationBase{{Activation: 3, Base: 5}, {Activation: 4, Base: 10}}})
		p.recv()
	})
	s, err = c.Snapshot(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Equal(t, &LostHistory{Activation: 3, Cut: 20, Found: 4, Base: 11}, s.Lost)
	require.Equal(t, s.Lost, c.State().LostHistory())
	require.True(t, c.State().Unresolved()[0].Indeterminate)
	for _, call := range []func() error{
		func() error { _, err := c.Command(t.Context(), cmd); return err },
		func() error { _, err := c.Retry(t.Context(), cmd); return err },
	} {
		err := call()
		require.ErrorAs(t, err, new(*IndeterminateError))
		require.ErrorIs(t, err, ErrNotSent)
	}
	require.Equal(t, cutSeen{Activation: 4, Sequence: 11}, c.State().cut(), "and the new history counts from here")
}

// TestSnapshotFile keeps one, damages every byte of it and cuts it everywhere.
func TestSnapshotFile(t *testing.T) {
	w := newWorld(t)
	records := objectives(t, 3, 5)
	c := w.dial(func(p *peer) {
		p.snapshot(&shown{base: 4, records: records})
		p.snapshot(&shown{base: 5, records: append(records[:2:2], objectives(t, 4, 5)[3])})
	})
	last := map[Stage]Progress{}
	c.opts.Progress = func(p Progress) { last[p.Stage] = p }
	dir := t.TempDir()
	save := func(name string) string {
		s, err := c.Snapshot(t.Context())
		require.NoError(t, err)
		defer s.Close()
		path := filepath.Join(dir, name)
		require.NoError(t, c.SaveSnapshot(path, s))
		return path
	}
	a, b := save("a"), save("b")
	st, err := os.Stat(a)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	open := func(path string) *SnapshotFile {
		f, err := OpenSnapshotFile(path)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		f.Progress = c.opts.Progress
		require.NoError(t, f.Verify())
		require.Equal(t, Progress{StageVerify, uint64(f.size), uint64(f.size)}, last[StageVerify])
		return f
	}
	fa, fb := open(a), open(b)
	require.Equal(t, Progress{Stage: StageSnapshot, Done: 3}, last[StageSnapshot])
	require.Equal(t, Progress{StageSave, uint64(fb.size), uint64(fb.size)}, last[StageSave])
	require.Equal(t, uint64(3), fa.Header.Records)
	require.Equal(t, w.epoch, fa.Header.Guard.Epoch)
	same, _, err := SameRecords(fa, fa)
	require.NoError(t, err)
	require.True(t, same)
	same, first, err := SameRecords(fa, fb)
	require.NoError(t, err)
	require.False(t, same)
	require.Equal(t, uint64(2), first)

	raw, err := os.ReadFile(a)
	require.NoError(t, err)
	bad := filepath.Join(dir, "bad")
	check := func(data []byte, what string, at int) {
		require.NoError(t, os.WriteFile(bad, data, 0o600))
		f, err := OpenSnapshotFile(bad)
		if err == nil {
			err = f.Verify()
			f.Close()
		}
		var se *SnapshotFileError
		require.ErrorAs(t, err, &se, "%s at byte %d was not noticed", what, at)
	}
	for i := range raw {
		flipped := append([]byte{}, raw...)
		flipped[i] ^= 0x10
		check(flipped, "a flipped bit", i)
		check(raw[:i], "a cut", i)
	}
	check(append(append([]byte{}, raw...), 0), "a byte too many", len(raw))
	check(append(append([]byte{}, raw...), raw[snapshotHead:]...), "records twice", len(raw))
}
