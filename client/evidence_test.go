package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
)

var (
	ledgerCoordinator = frames.CoordinatorID{1}
	ledgerBinding     = frames.BindingID{2}
)

// fact is the admission of one fact.
func fact(t require.TestingT, sequence uint64, kind frames.SourceFactKind, payload codec.Value) (*Event, *frames.TerminalSourceFact) {
	raw, err := codec.EncodeImage(nil, payload)
	require.NoError(t, err)
	f := &frames.TerminalSourceFact{Source: frames.TerminalSourceRef{BindingID: ledgerBinding, Owner: frames.Fingerprint{3},
		OwnerIncarnation: frames.IncarnationID{4}, Sequence: frames.SourceSequence(sequence)}, Kind: kind, Schema: frames.FactSchema, Payload: raw}
	image, err := codec.EncodeImage(nil, f)
	require.NoError(t, err)
	return &Event{Sequence: frames.EventSequence(100 + sequence), Kind: frames.EventSourceFactAdmitted,
		Object: frames.ObjectRef{Kind: frames.KindBinding, ID: frames.ObjectID(ledgerBinding)}, Revision: frames.ObjectRevision(1 + sequence), Payload: image}, f
}

func outputRange(first uint64, data []byte) *frames.OutputRange {
	return &frames.OutputRange{First: first, Last: first + uint64(len(data)) - 1, ByteCount: uint64(len(data)), Content: sha256.Sum256(data)}
}

// TestC16_LedgerAgreesWithTheSeal draws facts and output and compares with the seal that the
// server keeps; then changes one byte of the output.
func TestC16_LedgerAgreesWithTheSeal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, seal := NewLedger(ledgerCoordinator, ledgerBinding), frames.NewEvidenceSeal(ledgerCoordinator, ledgerBinding)
		var output []byte
		sequence := uint64(0)
		add := func(kind frames.SourceFactKind, payload codec.Value) {
			sequence++
			e, f := fact(t, sequence, kind, payload)
			require.NoError(t, l.Take(e))
			require.NoError(t, seal.Add(f))
		}
		add(frames.FactOpened, &frames.Opened{})
		for range rapid.IntRange(0, 8).Draw(t, "ranges") {
			data := rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "data")
			add(frames.FactOutputRange, outputRange(uint64(len(output)+1), data))
			output = append(output, data...)
			if rapid.Bool().Draw(t, "bell") {
				add(frames.FactAttention, &frames.Attention{Kind: frames.AttentionBell})
			}
		}
		status := rapid.Int32Range(-64, 255).Draw(t, "status")
		known := rapid.Bool().Draw(t, "known")
		add(frames.FactClosed, &frames.Closed{Known: known, Status: status})

		require.True(t, l.Whole())
		require.Equal(t, seal.Sum(), l.Seal())
		require.Equal(t, seal.Count(), l.Facts)
		require.Equal(t, uint64(len(output)), l.OutputBytes())
		require.True(t, l.Closed)
		require.Equal(t, known, l.HasStatus)
		if known {
			require.Equal(t, status, l.Status)
		}

		pass := func(output []byte) *OutputCheck {
			var shown bytes.Buffer
			c := l.Check(&shown)
			for rest := output; len(rest) > 0; {
				n := 1 + rand.IntN(len(rest))
				_, err := c.Write(rest[:n])
				require.NoError(t, err)
				rest = rest[n:]
			}
			require.True(t, bytes.Equal(output, shown.Bytes()))
			return c
		}
		c := pass(output)
		require.Empty(t, c.Differ)
		require.Equal(t, uint64(len(output)), c.Agreed)
		require.Equal(t, len(l.Ranges), c.Ranges)
		if len(output) > 0 {
			at := rapid.IntRange(0, len(output)-1).Draw(t, "changed")
			changed := bytes.Clone(output)
			changed[at] ^= 1
			c := pass(changed)
			require.Len(t, c.Differ, 1)
			require.LessOrEqual(t, c.Differ[0].First, uint64(at+1))
			require.GreaterOrEqual(t, c.Differ[0].Last, uint64(at+1))

			cut := pass(output[:at]) // as a size cap leaves it: the last range is not judged
			require.Empty(t, cut.Differ)
			require.LessOrEqual(t, cut.Agreed, uint64(at))
		}
	})
}

func TestLedgerSeesWhatIsMissing(t *testing.T) {
	closed := &frames.Closed{Known: true}
	for _, tt := range []struct {
		name      string
		sequences []uint64
		whole     bool
	}{
		{"none", nil, false}, {"all", []uint64{1, 2, 3}, true}, {"the first", []uint64{2, 3}, false},
		{"one between", []uint64{1, 3}, false}, {"one twice", []uint64{1, 1}, false},
		{"one twice, which hides that one is left out", []uint64{1, 1, 3}, false}, {"two exchanged", []uint64{2, 1, 3}, false},
		{"two exchanged behind the first", []uint64{1, 3, 2, 4}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewLedger(ledgerCoordinator, ledgerBinding)
			for _, s := range tt.sequences {
				e, _ := fact(t, s, frames.FactClosed, closed)
				require.NoError(t, l.Take(e))
			}
			require.Equal(t, tt.whole, l.Whole())
		})
	}
	l := NewLedger(ledgerCoordinator, ledgerBinding)
	e, _ := fact(t, 1, frames.FactClosed, closed)
	foreign := *e
	foreign.Object.ID = frames.ObjectID{9}
	require.NoError(t, l.Take(&foreign))
	require.Zero(t, l.Facts)
	gap := *e
	gap.Kind = frames.EventSourceGap
	require.NoError(t, l.Take(&gap))
	require.Equal(t, 1, l.Gaps)
	for cut := range len(e.Payload) {
		bad := *e
		bad.Payload = e.Payload[:cut]
		require.ErrorIs(t, l.Take(&bad), errFactImage, "%d bytes", cut)
	}
	for _, at := range []int{0, 15} { // the binding that the image itself names
		bad := *e
		bad.Payload = bytes.Clone(e.Payload)
		bad.Payload[at] ^= 1
		require.ErrorIs(t, l.Take(&bad), errFactImage)
	}
	opened, _ := fact(t, 1, frames.FactOpened, &frames.Opened{})
	opened.Payload = append(opened.Payload, 0) // behind what its length says
	require.ErrorIs(t, l.Take(opened), errFactImage)
	require.Zero(t, l.Facts, "nothing of it is in the seal")
	for _, payload := range [][]byte{{2}, {0, 0}, {1, 0, 0, 0, 3, 0}, {1}} {
		odd := bytes.Clone(e.Payload[:len(e.Payload)-5]) // CLOSED without its payload
		odd[len(odd)-1] = byte(len(payload))
		bad := *e
		bad.Payload = append(odd, payload...)
		require.ErrorIs(t, l.Take(&bad), errFactImage, "%x", payload)
	}
	e, _ = fact(t, 1, frames.FactOutputRange, &frames.OutputRange{First: 5, Last: 4, ByteCount: 0})
	require.ErrorContains(t, l.Take(e), "OUTPUT_RANGE 5..4")
}

// TestLedgerChecksRangesWithHoles holds output against ranges that do not follow on each other, one
// of them out of place: what lies between them agrees with nothing and differs from nothing.
func TestLedgerChecksRangesWithHoles(t *testing.T) {
	output := []byte("0123456789")
	for _, step := range []int{1, 3, len(output)} {
		l := NewLedger(ledgerCoordinator, ledgerBinding)
		for _, r := range [][2]int{{3, 4}, {1, 2}, {7, 8}} {
			l.Ranges = append(l.Ranges, OutputRange{uint64(r[0]), uint64(r[1]), sha256.Sum256(output[r[0]-1 : r[1]])})
		}
		c := l.Check(io.Discard)
		for at := 0; at < len(output); at += step {
			_, err := c.Write(output[at:min(at+step, len(output))])
			require.NoError(t, err)
		}
		require.EqualValues(t, 10, c.Read)
		require.EqualValues(t, 4, c.Agreed)
		require.Equal(t, 2, c.Ranges)
		require.Empty(t, c.Differ)
	}
}

// TestHistoryReadsWhatIsRetained reads logs of which more and more is gone, whole and in order.
func TestHistoryReadsWhatIsRetained(t *testing.T) {
	for _, kept := range []int{0, 1, 7, 30, 39} {
		w := newWorld(t)
		m := newModel(w)
		for range 40 {
			m.write()
		}
		m.kept = kept
		opts := w.options(m.serve)
		opts.Offered = frames.CapSignals
		want := m.log[kept:]
		var got []frames.EventSequence
		var last Progress
		opts.Progress = func(p Progress) { last = p }
		after, err := ReadHistory(t.Context(), w.pins, opts, func(e *Event) (bool, error) {
			got = append(got, e.Sequence)
			return e.Sequence == m.log[39].Sequence, nil
		})
		require.NoError(t, err)
		require.Len(t, got, len(want), "kept from %d", kept)
		for i := range want {
			require.Equal(t, want[i].Sequence, got[i])
		}
		require.Equal(t, StageHistory, last.Stage)
		require.Equal(t, last.Total, last.Done, "all that there was has been passed")
		if kept == 0 {
			require.Zero(t, after)
		} else {
			require.GreaterOrEqual(t, after, frames.EventCut(m.log[kept-1].Sequence))
			require.Less(t, after, frames.EventCut(m.log[kept].Sequence))
		}
	}
}

// quietly is a clock on which the wait for another event is over as soon as none is left.
type quietly struct {
	*clock.Manual
	over func() bool
}

func (q quietly) NewTimer(d time.Duration) clock.Timer {
	if (d == historyQuiet || d == restQuiet) && q.over() {
		d = 0
	}
	return q.Manual.NewTimer(d)
}

// TestHistoryEndsWhereATrimmedLogHasNoMore waits for an event that is gone.
func TestHistoryEndsWhereATrimmedLogHasNoMore(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	for range 10 {
		m.write()
	}
	m.kept = 4
	opts := w.options(m.serve)
	opts.Offered = frames.CapSignals
	seen := 0
	opts.Clock = quietly{w.clock, func() bool { return seen == 6 }}
	after, err := ReadHistory(t.Context(), w.pins, opts, func(*Event) (bool, error) { seen++; return false, nil })
	require.NoError(t, err)
	require.NotZero(t, after)
	require.Equal(t, 6, seen)
}

// TestHistoryIsReadToRest reads a whole log without knowing which of its events is the last.
func TestHistoryIsReadToRest(t *testing.T) {
	for _, kept := range []int{0, 4} {
		w := newWorld(t)
		m := newModel(w)
		for range 10 {
			m.write()
		}
		m.kept = kept
		opts := w.options(m.serve)
		opts.Offered = frames.CapSignals
		seen := 0
		opts.Clock = quietly{w.clock, func() bool { return seen == 10-kept }}
		_, err := ReadHistoryToRest(t.Context(), w.pins, opts, func() bool { return seen > 5 }, func(*Event) (bool, error) { seen++; return false, nil })
		require.NoError(t, err)
		require.Equal(t, 10-kept, seen)
	}
}

// TestHistoryHasWhatIsReadFromTheLogBehindAnAnswer: a coordinator that has to read its log for an event
// finds that out in one write, and may answer once more in the next before the event follows.
func TestHistoryHasWhatIsReadFromTheLogBehindAnAnswer(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	for range 10 {
		m.write()
	}
	answers, sent := 0, 0
	m.setFault(func(_ int, c *modelConn) bool {
		if c.sending == nil { // an event
			if sent == 9 && answers < 3 {
				return true
			}
			sent++
		}
		if _, pong := c.sending.(*frames.Pong); pong {
			if answers++; answers == 3 {
				c.pump()
			}
		}
		return false
	})
	opts := w.options(m.serve)
	opts.Offered = frames.CapSignals
	seen := 0
	opts.Clock = quietly{w.clock, func() bool { return seen >= 9 }}
	_, err := ReadHistoryToRest(t.Context(), w.pins, opts, func() bool { return seen > 5 }, func(*Event) (bool, error) { seen++; return false, nil })
	require.NoError(t, err)
	require.Equal(t, 10, seen)
}

// TestHistoryIsNotReadToItsEndByASilence: that nothing comes from a coordinator that does not answer
// either says nothing of the log.
func TestHistoryIsNotReadToItsEndByASilence(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	for range 10 {
		m.write()
	}
	m.kept = 4
	unanswered := errors.New("nobody answers")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var seen atomic.Int32
	m.setFault(func(_ int, c *modelConn) bool {
		_, pong := c.sending.(*frames.Pong)
		if pong = pong && seen.Load() == 6; pong {
			cancel(unanswered) // as when the time for all of it is over
		}
		return pong
	})
	opts := w.options(m.serve)
	opts.Offered = frames.CapSignals
	opts.Clock = quietly{w.clock, func() bool { return seen.Load() == 6 }}
	_, err := ReadHistory(ctx, w.pins, opts, func(*Event) (bool, error) { seen.Add(1); return false, nil })
	require.Error(t, err)
	require.ErrorIs(t, context.Cause(ctx), unanswered)
}

func TestHistoryRefusals(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	m.write()
	opts := w.options(m.serve)
	opts.Offered = frames.CapAdministration
	_, err := ReadHistory(t.Context(), w.pins, opts, nil)
	require.ErrorIs(t, err, ErrAdministration)
	opts.Offered = 0
	enough := errors.New("the visitor's own")
	_, err = ReadHistory(t.Context(), w.pins, opts, func(*Event) (bool, error) { return false, enough })
	require.ErrorIs(t, err, enough)
}

func TestFindOwner(t *testing.T) {
	a, b := Owner{Name: "a"}, Owner{Name: "b"}
	for _, tt := range []struct {
		owners []Owner
		name   string
		want   string
		text   string
	}{
		{nil, "", "", "no [[owner]]"}, {[]Owner{a}, "", "a", ""}, {[]Owner{a, b}, "b", "b", ""},
		{[]Owner{a, b}, "", "", "choose one of"}, {[]Owner{a}, "c", "", `no owner "c"`},
	} {
		o, err := (&Context{Path: "p", Owners: tt.owners}).FindOwner(tt.name)
		require.Equal(t, tt.want, o.Name)
		if tt.text != "" {
			var ce *ContextError
			require.ErrorAs(t, err, &ce)
			require.ErrorContains(t, err, tt.text)
		} else {
			require.NoError(t, err)
		}
	}
}

// TestHistoryLooksAgainWhenTheLogIsTrimmedMeanwhile trims once more between the search for the
// oldest event and the reading from there.
func TestHistoryLooksAgainWhenTheLogIsTrimmedMeanwhile(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	for range 40 {
		m.write()
	}
	m.kept = 10
	// The second SUBSCRIBE of the first connection is the reading.
	reads := 0
	m.setFault(func(_ int, c *modelConn) bool {
		if _, sub := c.sending.(*frames.Subscribed); sub && len(c.subs) == 2 {
			reads++
			m.mu.Lock()
			m.kept = 20
			m.mu.Unlock()
		}
		return false
	})
	opts := w.options(m.serve)
	opts.Offered = frames.CapSignals
	seen := 0
	after, err := ReadHistory(t.Context(), w.pins, opts, func(e *Event) (bool, error) {
		seen++
		return e.Sequence == m.log[39].Sequence, nil
	})
	require.NoError(t, err)
	require.Equal(t, 1, reads)
	require.Equal(t, 20, seen)
	require.GreaterOrEqual(t, after, frames.EventCut(m.log[19].Sequence))
}
