//go:build linux

package owner

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// modelAttempt is all that the model knows of one attempt.
type modelAttempt struct {
	frame   *DispatchEffect
	outcome frames.EffectState // final, but for DISPATCHED: in hand at a crash
	same    int                // index of the attempt whose outcome it has, or -1
}

// modelBinding is all that the model knows of a process.
type modelBinding struct {
	id     frames.BindingID
	inc    frames.IncarnationID
	last   uint64
	acked  uint64
	closed bool
	live   bool
}

// ownerModel drives one owner directory through incarnations. Processes are fakes whose first
// argument is a number of their own, so that each start is counted.
type ownerModel struct {
	t    *rapid.T
	root string
	dirs int
	dir  string
	clk  *clock.Manual

	o     *Owner
	fake  *fakeLauncher
	claim *claim
	epoch uint64

	starts   map[string]int
	attempts []*modelAttempt
	bindings map[frames.BindingID]*modelBinding
	serial   uint64
}

func (m *ownerModel) id() (raw [16]byte) {
	m.serial++
	binary.BigEndian.PutUint64(raw[8:], m.serial)
	return raw
}

func (m *ownerModel) open() {
	m.fake = newFakeLauncher()
	m.fake.started = func(argv []string) { m.starts[argv[1]]++ }
	inc := frames.IncarnationID(m.id())
	own, err := Open(m.dir, Options{
		Fingerprint: ownerPrint, Incarnation: inc, Groups: []frames.GroupID{1}, WitnessID: testWitness,
		WitnessPublicKey: witnessKey.Public(), BootID: bootOne, Clock: m.clk, launch: m.fake,
	})
	require.NoError(m.t, err)
	own.j.db.NoSync = true
	m.o = own
	m.raise()
}

// raise takes the next authority.
func (m *ownerModel) raise() {
	m.epoch++
	now := m.clk.Now()
	cert := frames.Certificate{WitnessID: testWitness, CoordinatorID: coordA, Epoch: frames.AuthorityEpoch(m.epoch),
		Activation: frames.ActivationSequence(m.epoch), IncarnationID: frames.IncarnationID{1}, IssuedAt: now.Unix(), ExpiresAt: now.Unix() + 60,
		WitnessKeyID: handshake.FingerprintOf(witnessKey.Public())}
	m.claim = newClaim(&cert, now)
	require.NoError(m.t, m.o.claimAuthority(context.Background(), nobody{}, m.claim))
}

// nobody is a holder without a connection.
type nobody struct{}

func (nobody) fenced() {}
func (nobody) Done() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}

// spawnFrame is a SPAWN of a fresh process.
func (m *ownerModel) spawnFrame(program string) *DispatchEffect {
	doc, err := (&Document{Argv: []string{program, fmt.Sprint(m.serial)}}).Encode()
	require.NoError(m.t, err)
	payload, err := codec.EncodeImage(nil, &frames.SpawnPayload{WorkSessionID: m.id(), ExecutorSchema: 1, Document: doc})
	require.NoError(m.t, err)
	f := &DispatchEffect{
		Attempt: m.id(), OperationID: m.id(), Kind: frames.EffectSpawn, Payload: payload,
		Target: frames.EffectTarget{PendingBindingID: m.id(), Owner: ownerPrint, OwnerIncarnation: m.o.Incarnation(), Group: 1},
	}
	f.Digest, err = frames.EffectDigest(f.Kind, &f.Target, f.Payload)
	require.NoError(m.t, err)
	return f
}

// want is the outcome that an attempt must have.
func (m *ownerModel) want(a *modelAttempt) frames.EffectState {
	for a.same >= 0 {
		a = m.attempts[a.same]
	}
	return a.outcome
}

func (m *ownerModel) dispatch(f *DispatchEffect) frames.EffectState {
	out, err := m.o.dispatch(context.Background(), m.claim, f)
	require.NoError(m.t, err)
	return out.state
}

// pick draws an attempt, or skips.
func (m *ownerModel) pick(t *rapid.T, ok func(*modelAttempt) bool) (int, *modelAttempt) {
	var list []int
	for i, a := range m.attempts {
		if ok(a) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		t.Skip("no such attempt")
	}
	i := rapid.SampledFrom(list).Draw(t, "attempt")
	return i, m.attempts[i]
}

func whichever(*modelAttempt) bool { return true }

func (m *ownerModel) pickBinding(t *rapid.T, ok func(*modelBinding) bool) *modelBinding {
	var list []*modelBinding
	for i := range m.attempts { // in a fixed order
		if b := m.bindings[frames.BindingID(m.attempts[i].frame.Target.PendingBindingID)]; b != nil && m.attempts[i].same < 0 && ok(b) {
			list = append(list, b)
		}
	}
	if len(list) == 0 {
		t.Skip("no such binding")
	}
	return list[rapid.IntRange(0, len(list)-1).Draw(t, "binding")]
}

// row waits until the journal has what the model expects of a binding.
func (m *ownerModel) row(b *modelBinding) bindingRow {
	var row bindingRow
	require.Eventually(m.t, func() bool {
		var err error
		row, err = m.o.holds(coordA, b.id)
		return err == nil && (!b.closed || row.State == bindingClosed)
	}, waitLimit, time.Millisecond)
	return row
}

func (m *ownerModel) spawn(t *rapid.T) {
	program := rapid.SampledFrom([]string{"ok", "ok", "missing", ""}).Draw(t, "program")
	f := m.spawnFrame(program)
	a := &modelAttempt{frame: f, outcome: frames.EffectRejected, same: -1}
	if program == "ok" {
		a.outcome = frames.EffectSucceeded
		m.bindings[frames.BindingID(f.Target.PendingBindingID)] = &modelBinding{
			id: frames.BindingID(f.Target.PendingBindingID), inc: m.o.Incarnation(), last: 1, live: true}
	}
	m.attempts = append(m.attempts, a)
	require.Equal(t, a.outcome, m.dispatch(f))
}

func (m *ownerModel) repeat(t *rapid.T) {
	_, a := m.pick(t, whichever)
	want := m.want(a)
	if want == NeverSeen {
		want = frames.EffectRejected
	}
	require.Equal(t, want, m.dispatch(a.frame))
}

func (m *ownerModel) conflict(t *rapid.T) {
	_, a := m.pick(t, func(a *modelAttempt) bool { return a.same < 0 }) // an alias is not journaled itself
	f := m.spawnFrame("ok")
	f.Attempt = a.frame.Attempt
	_, err := m.o.dispatch(context.Background(), m.claim, f)
	require.Equal(t, frames.CodeOperationConflict, frames.CodeOf(err))
}

func (m *ownerModel) remint(t *rapid.T) {
	i, a := m.pick(t, func(a *modelAttempt) bool { return a.outcome != NeverSeen && a.same < 0 })
	f := *a.frame
	f.Attempt = m.id()
	if rapid.Bool().Draw(t, "other effect") {
		g := m.spawnFrame("ok")
		g.OperationID = f.OperationID
		m.attempts = append(m.attempts, &modelAttempt{frame: g, outcome: frames.EffectIndeterminate, same: -1})
		require.Equal(t, frames.EffectIndeterminate, m.dispatch(g))
		return
	}
	if a.outcome == frames.EffectIndeterminate && m.usedByOther(i) {
		t.Skip("its ids are another attempt's")
	}
	m.attempts = append(m.attempts, &modelAttempt{frame: &f, same: i})
	require.Equal(t, m.want(a), m.dispatch(&f))
}

// usedByOther says whether an earlier attempt has the same operation.
func (m *ownerModel) usedByOther(i int) bool {
	for _, b := range m.attempts[:i] {
		if b.frame.OperationID == m.attempts[i].frame.OperationID {
			return true
		}
	}
	return false
}

func (m *ownerModel) lookUp(t *rapid.T) {
	var a *modelAttempt
	if len(m.attempts) == 0 || rapid.Bool().Draw(t, "unknown") {
		a = &modelAttempt{frame: m.spawnFrame("ok"), outcome: NeverSeen, same: -1}
		m.attempts = append(m.attempts, a)
	} else {
		_, a = m.pick(t, whichever)
	}
	out, err := m.o.lookUp(context.Background(), m.claim, a.frame.Attempt, a.frame.Digest)
	require.NoError(t, err)
	require.Equal(t, m.want(a), out.state)
}

func (m *ownerModel) write(t *rapid.T) {
	b := m.pickBinding(t, func(b *modelBinding) bool { return b.live })
	row := m.row(b)
	_, err := m.fake.child(row.Group).w.Write(make([]byte, rangeBytes)) // one fact: the clock stands
	require.NoError(t, err)
	b.last++
	require.Eventually(t, func() bool { return m.row(b).Last == b.last }, waitLimit, time.Millisecond)
}

func (m *ownerModel) end(t *rapid.T) {
	b := m.pickBinding(t, func(b *modelBinding) bool { return b.live })
	m.fake.child(m.row(b).Group).end(frames.Closed{Known: true, Status: 0})
	m.ended(b)
	m.row(b)
}

func (m *ownerModel) ended(b *modelBinding) { b.live, b.closed, b.last = false, true, b.last+1 }

func (m *ownerModel) ack(t *rapid.T) {
	b := m.pickBinding(t, func(*modelBinding) bool { return true })
	through := rapid.Uint64Range(0, b.last+1).Draw(t, "through")
	require.NoError(t, m.o.ackFacts(m.claim, b.id, through))
	b.acked = max(b.acked, min(through, b.last))
}

func (m *ownerModel) stale(t *rapid.T) {
	old := m.claim
	m.raise()
	f := m.spawnFrame("ok")
	_, err := m.o.dispatch(context.Background(), old, f)
	require.ErrorIs(t, err, errFenced)
	_, err = m.o.lookUp(context.Background(), old, f.Attempt, f.Digest)
	require.ErrorIs(t, err, errFenced)
	for _, b := range m.bindings {
		require.ErrorIs(t, m.o.ackFacts(old, b.id, AckAll), errFenced)
	}
}

// stop ends the owner in order: every process gets its CLOSED.
func (m *ownerModel) stop(t *rapid.T) {
	require.NoError(t, m.o.Close())
	for _, b := range m.bindings {
		if b.live {
			m.ended(b)
		}
	}
	m.open()
}

// crash goes on with what is durable now, in the middle of a start or not.
func (m *ownerModel) crash(t *rapid.T) {
	old, fake := m.o, m.fake
	var hung *DispatchEffect
	gate, done := make(chan struct{}), make(chan struct{})
	if rapid.Bool().Draw(t, "in the middle of a start") {
		hung = m.spawnFrame("ok")
		fake.beforeHold = func() { <-gate }
		fake.started = func([]string) {} // what a dead process would have started later counts for nothing
		before := fake.holds.Load()
		go func() {
			defer close(done)
			old.dispatch(context.Background(), m.claim, hung) //nolint:errcheck // nobody hears of it
		}()
		require.Eventually(t, func() bool { return fake.holds.Load() == before+1 }, waitLimit, time.Millisecond)
		m.attempts = append(m.attempts, &modelAttempt{frame: hung, outcome: frames.EffectIndeterminate, same: -1})
	} else {
		close(done)
	}
	m.dirs++
	dir := filepath.Join(m.root, fmt.Sprint(m.dirs))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.CopyFS(filepath.Join(dir, outputDir), os.DirFS(filepath.Join(m.dir, outputDir))))
	require.NoError(t, os.Chmod(filepath.Join(dir, outputDir), 0o700))
	data, err := os.ReadFile(filepath.Join(m.dir, journalFile))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, journalFile), data, 0o600))
	close(gate)
	<-done
	require.NoError(t, old.Close())
	m.dir = dir
	var former []identity
	for _, b := range m.bindings {
		if b.live {
			b.live = false
			former = append(former, identity{})
		}
	}
	m.open()
	require.Len(t, m.fake.ended, len(former), "those that ran are ended")
}

// check holds the owner to the model.
func (m *ownerModel) check(t *rapid.T) {
	for n, starts := range m.starts {
		if starts > 1 {
			t.Fatalf("process %s was started %d times", n, starts)
		}
	}
	var wait []frames.BindingID
	for _, b := range m.bindings {
		row := m.row(b)
		require.Equal(t, b.last, row.Last)
		require.Equal(t, b.acked, row.Acked)
		p, err := m.o.readFacts(b.id, 0, 1000)
		require.NoError(t, err)
		require.Equal(t, b.inc != m.o.Incarnation(), p.ended)
		if p.ended {
			require.Equal(t, b.last, p.last)
		}
		var want []uint64
		for seq := b.acked + 1; seq <= b.last; seq++ {
			want = append(want, seq)
		}
		if b.closed && b.acked == b.last {
			want = []uint64{b.last}
		}
		var got []uint64
		for _, f := range p.facts {
			got = append(got, uint64(f.Source.Sequence))
			require.Equal(t, b.inc, f.Source.OwnerIncarnation)
			require.Equal(t, b.closed && uint64(f.Source.Sequence) == b.last, f.Kind == frames.FactClosed)
		}
		require.Equal(t, want, got)
		if b.live || b.acked < b.last {
			wait = append(wait, b.id)
		}
	}
	list, err := m.o.bindings(coordA)
	require.NoError(t, err)
	require.ElementsMatch(t, wait, list)
}

// TestJournalModel: at most one start per process, outcomes that never change, and facts that
// are there until they are acknowledged, over repeats, conflicts, restarts and crashes.
func TestJournalModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root, err := os.MkdirTemp("", "ownermodel")
		require.NoError(t, err)
		defer os.RemoveAll(root)
		m := &ownerModel{t: t, root: root, dir: filepath.Join(root, "0"), starts: map[string]int{},
			bindings: map[frames.BindingID]*modelBinding{}, clk: clock.NewManual(clock.System().Now())}
		require.NoError(t, os.Mkdir(m.dir, 0o700))
		require.NoError(t, Create(m.dir, ownerPrint))
		m.open()
		defer func() { require.NoError(t, m.o.Close()) }()
		t.Repeat(map[string]func(*rapid.T){
			"spawn": m.spawn, "repeat": m.repeat, "conflict": m.conflict, "remint": m.remint, "lookUp": m.lookUp,
			"write": m.write, "end": m.end, "ack": m.ack, "stale": m.stale, "stop": m.stop, "crash": m.crash,
			"": m.check,
		})
	})
}
