package store_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"coordinator/frames"
	"coordinator/server/store"
)

// A model is a store that cannot be wrong: a map and a list.
type model struct {
	rows   map[store.Key]store.Row
	events []modelEvent
	head   uint64
	state  store.State // of it: authority, bases, admin head
}

type modelEvent struct {
	seq       uint64
	class     frames.ObjectKind
	principal frames.KeyID
	size      int // of its image
	text      string
}

func (m *model) emit(class frames.ObjectKind, principal frames.KeyID, payload int, text string) {
	size := (&frames.ReplayEvent{}).Size() + payload
	m.events = append(m.events, modelEvent{m.head, class, principal, size, fmt.Sprint(m.head, " ", text)})
}

func (m *model) clone() *model {
	c := *m
	c.rows, c.events, c.state.Bases = maps.Clone(m.rows), slices.Clone(m.events), slices.Clone(m.state.Bases)
	return &c
}

func (m *model) sorted(visible store.Visible) (rows []store.Row) {
	keys := slices.SortedFunc(maps.Keys(m.rows), func(a, b store.Key) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		if r := m.rows[k]; visible(r.Record.Kind, r.Principal) {
			rows = append(rows, r)
		}
	}
	return rows
}

func eventText(ev store.Event) string {
	return fmt.Sprintf("%d %v %v rev=%d %x principal=%x", ev.Sequence, ev.Kind, ev.Object, ev.Revision, ev.Payload, ev.Principal[:1])
}

// A machine drives a store and its model side by side.
type machine struct {
	*bed
	m     *model
	next  *model // with the transaction under way
	cuts  []*store.Cut
	views []*model
	spans []span
	ids   uint64
}

var propertyKinds = []frames.ObjectKind{frames.KindObjective, frames.KindOperation, frames.KindAdmin, frames.KindArtifactManifest}

// change makes one random change to the transaction and to the model.
func (x *machine) change(t *rapid.T, tx *store.Tx) {
	kind := rapid.SampledFrom(propertyKinds).Draw(t, "kind")
	id := rapid.Uint64Range(1, 8).Draw(t, "id")
	r := ref(kind, id)
	prev, found, err := tx.Get(r)
	require.NoError(t, err)
	want, has := x.next.rows[store.KeyOf(r)]
	require.Equal(t, has, found, "%v", r)
	if has {
		require.Equal(t, dump([]store.Row{want}), dump([]store.Row{prev}))
	}
	action := rapid.SampledFrom([]string{"emit", "emit", "emit", "put", "remove", "hidden", "fact", "install"}).Draw(t, "change")
	row := makeRow(kind, id, uint64(want.Record.Revision)+1, rapid.StringN(0, 300, 300).Draw(t, "payload"), rapid.Bool().Draw(t, "live"))
	if kind == frames.KindOperation {
		row.Principal = frames.KeyID{byte(id%3) + 1}
		row.Annex = []byte{byte(id)}
	}
	if has {
		row.Principal = want.Principal
	}
	x.ids++
	switch action {
	case "emit":
		row.Seq = tx.Emit(frames.EventObjectiveChanged, eventID(x.ids), row)
		x.next.head++
		image := fmt.Sprintf("%04x%x%016x%04x%08x%x", uint16(kind), row.Record.ID[:], uint64(row.Record.Revision), 1, len(row.Record.Payload), row.Record.Payload)
		x.next.emit(kind, row.Principal, len(image)/2, fmt.Sprintf("%v %v rev=%d %s principal=%x", frames.EventObjectiveChanged, r, row.Record.Revision, image, row.Principal[:1]))
	case "put":
		tx.Put(row)
		row.Seq = frames.EventSequence(x.next.head)
	case "remove":
		tx.Remove(r)
		delete(x.next.rows, store.KeyOf(r))
		return
	case "hidden":
		tx.Hidden()
		x.next.head++
		return
	case "fact":
		tx.EmitEvent(frames.ReplayEvent{ID: eventID(x.ids), Kind: frames.EventSourceGap, Object: r, Revision: 4, Schema: 1, Payload: []byte("gap")})
		x.next.head++
		x.next.emit(kind, frames.KeyID{}, 3, fmt.Sprintf("%v %v rev=4 %x principal=00", frames.EventSourceGap, r, "gap"))
		return
	case "install":
		if x.next.state.Epoch > x.m.state.Epoch {
			return // one each commit
		}
		st := &x.next.state
		st.Epoch, st.Activation, st.TokenSHA256 = st.Epoch+2, st.Activation+1, [32]byte{byte(st.Epoch)}
		st.Bases = append(st.Bases, frames.ActivationBase{Activation: st.Activation, Base: frames.EventCut(x.m.head)})
		tx.Install(st.Epoch, st.Activation, st.TokenSHA256)
		return
	}
	require.EqualValues(t, x.next.head, row.Seq)
	x.next.rows[store.KeyOf(r)] = row
	if kind == frames.KindAdmin {
		x.next.state.AdminHead = frames.EventCut(x.next.head)
	}
}

// fill makes a random transaction; the model's next state goes with it.
func (x *machine) fill(t *rapid.T) *store.Tx {
	var refs []frames.ObjectRef
	for _, k := range propertyKinds {
		for id := uint64(1); id <= 8; id++ {
			refs = append(refs, ref(k, id))
		}
	}
	tx := x.begin(refs...)
	x.next = x.m.clone()
	for range rapid.IntRange(1, 6).Draw(t, "changes") {
		x.change(t, tx)
	}
	return tx
}

func (x *machine) matches(m *model) error {
	c := x.s.Cut()
	defer c.Close()
	st := x.s.State()
	if got, want := dump(pages(x.t, c, everything, 5)), dump(m.sorted(everything)); got != want {
		return fmt.Errorf("rows\n%swant\n%s", got, want)
	}
	m.state.Head = frames.EventCut(m.head)
	got := fmt.Sprint(st.Head, st.Epoch, st.Activation, st.TokenSHA256, st.AdminHead, st.Bases)
	if want := fmt.Sprint(m.state.Head, m.state.Epoch, m.state.Activation, m.state.TokenSHA256, m.state.AdminHead, m.state.Bases); got != want {
		return fmt.Errorf("state %s, want %s", got, want)
	}
	counts := make(map[frames.ObjectKind]uint64)
	ops := make(map[frames.KeyID]uint64)
	for _, r := range m.rows {
		counts[r.Record.Kind]++
		if r.Record.Kind == frames.KindOperation {
			ops[r.Principal]++
		}
	}
	if !maps.Equal(counts, st.Counts) {
		return fmt.Errorf("counts %v, want %v", st.Counts, counts)
	}
	for i := range byte(5) {
		if got, want := c.OperationsOf(frames.KeyID{i}), ops[frames.KeyID{i}]; got != want {
			return fmt.Errorf("principal %d has %d operations, want %d", i, got, want)
		}
	}
	return nil
}

// checkEvents compares what the log still has with the model's list.
func (x *machine) checkEvents(t *rapid.T) {
	first := x.s.FirstRetained()
	events, err := x.s.Events(frames.EventCut(first-1), 10_000, 1<<20)
	require.NoError(t, err)
	got := make([]string, len(events))
	for i, ev := range events {
		got[i] = eventText(ev)
	}
	require.LessOrEqual(t, len(got), len(x.m.events))
	want := make([]string, 0, len(got))
	for _, ev := range x.m.events[len(x.m.events)-len(got):] {
		want = append(want, ev.text)
	}
	require.Equal(t, want, got)
	if first == 1 {
		require.Len(t, got, len(x.m.events))
	}
}

// A span is an open replay and what it must give.
type span struct {
	r              *store.Replay
	after, through uint64
	events         []modelEvent
}

func (x *machine) openSpan(t *rapid.T) {
	after := rapid.Uint64Range(0, x.m.head).Draw(t, "after")
	through := rapid.Uint64Range(after, x.m.head).Draw(t, "through")
	r, err := x.s.Replay(frames.EventCut(after), frames.EventCut(through))
	if first := uint64(x.s.FirstRetained()); after+1 < first {
		var gone *store.RetentionError
		require.ErrorAs(t, err, &gone)
		require.Equal(t, first, gone.First)
		return
	}
	require.NoError(t, err)
	x.spans = append(x.spans, span{r, after, through, x.m.events})
}

// checkSpan reads an open replay, however old it is.
func (x *machine) checkSpan(t *rapid.T) {
	if len(x.spans) == 0 {
		t.Skip("no replay")
	}
	sp := rapid.SampledFrom(x.spans).Draw(t, "replay")
	mask := rapid.Uint8().Draw(t, "visible")
	visible := func(kind frames.ObjectKind, principal frames.KeyID) bool {
		return mask>>((uint(kind)+uint(principal[0]))%8)&1 == 1
	}
	var want []string
	var sum store.Totals
	for _, ev := range sp.events {
		if ev.seq <= sp.after || ev.seq > sp.through || !visible(ev.class, ev.principal) {
			continue
		}
		want = append(want, ev.text)
		if sum.Last = frames.EventSequence(ev.seq); sum.Events == 0 {
			sum.First = sum.Last
		}
		sum.Events++
		sum.Bytes += uint64(ev.size)
		sum.Largest = max(sum.Largest, ev.size-(&frames.ReplayEvent{}).Size())
	}
	got, err := sp.r.Count(visible)
	require.NoError(t, err)
	require.Equal(t, sum, got)
	events, err := readPages(sp.r, 0, visible, rapid.IntRange(1, 20).Draw(t, "events"), rapid.IntRange(1, 2000).Draw(t, "bytes"))
	require.NoError(t, err)
	require.Equal(t, want, texts(events))
}

func (x *machine) dropSpans() {
	for _, sp := range x.spans {
		sp.r.Close()
	}
	x.spans = nil
}

func (x *machine) dropCuts() {
	x.dropSpans()

	for _, c := range x.cuts {
		c.Close()
	}
	x.cuts, x.views = nil, nil
}

func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "store")
		require.NoError(t, err)
		defer os.RemoveAll(dir)
		b := newBed(t, dir)
		defer func() { b.s.Abandon() }()
		b.opts.EventBytes = rapid.SampledFrom([]uint64{0, 1, 3000}).Draw(t, "event bytes")
		b.s.SetEventBytes(b.opts.EventBytes)
		x := &machine{bed: b, m: &model{rows: make(map[store.Key]store.Row)}}
		x.m.rows[ptr(retention()).Key()] = retention()
		t.Repeat(map[string]func(*rapid.T){
			"commit": func(t *rapid.T) {
				x.commit(x.fill(t))
				x.m = x.next
			},
			"abandon transaction": func(t *rapid.T) { x.fill(t) },
			"checkpoint": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "steps") {
					_, err := x.s.CheckpointStep()
					require.NoError(t, err)
				}
			},
			"cut": func(t *rapid.T) {
				x.cuts, x.views = append(x.cuts, x.s.Cut()), append(x.views, x.m.clone())
			},
			"page": func(t *rapid.T) {
				if len(x.cuts) == 0 {
					t.Skip("no cut")
				}
				i := rapid.IntRange(0, len(x.cuts)-1).Draw(t, "cut")
				mask := rapid.Uint8().Draw(t, "visible")
				visible := func(kind frames.ObjectKind, principal frames.KeyID) bool {
					return mask>>(uint(kind)+uint(principal[0]))&1 == 1
				}
				got := pages(t, x.cuts[i], visible, rapid.IntRange(1, 20).Draw(t, "rows"))
				require.Equal(t, dump(x.views[i].sorted(visible)), dump(got))
				require.EqualValues(t, x.views[i].head, x.cuts[i].Seq())
			},
			"close cut": func(t *rapid.T) {
				if len(x.cuts) == 0 {
					t.Skip("no cut")
				}
				x.cuts[0].Close()
				x.cuts, x.views = x.cuts[1:], x.views[1:]
			},
			"reopen": func(t *rapid.T) {
				keep := rapid.Bool().Draw(t, "with cuts open")
				if !keep {
					x.dropCuts()
				}
				require.NoError(t, x.s.Close())
				x.dropCuts()
				x.open()
			},
			"crash": func(t *rapid.T) {
				x.crash(rapid.Uint64Range(0, 1<<20).Draw(t, "seed"))
				x.dropCuts()
				x.open()
			},
			"crash in commit": func(t *rapid.T) {
				tx := x.fill(t)
				if tx.Empty() {
					t.Skip("nothing to commit")
				}
				x.fs.StopAfter(rapid.IntRange(0, 6).Draw(t, "operations"))
				_, err := x.s.Commit(tx, testTime)
				if err != nil {
					require.ErrorIs(t, err, store.ErrOutcomeUnknown)
				}
				x.crash(rapid.Uint64Range(0, 1<<20).Draw(t, "seed"))
				x.dropCuts()
				x.open()
				if err == nil || x.matches(x.m) != nil {
					x.m = x.next
				}
			},
			"events":       x.checkEvents,
			"open replay":  x.openSpan,
			"replay":       x.checkSpan,
			"close replay": func(*rapid.T) { x.dropSpans() },
			"": func(t *rapid.T) {
				require.NoError(t, x.matches(x.m))
			},
		})
		x.dropCuts()
		require.NoError(t, x.s.Close())
		require.NoError(t, store.Verify(x.dir, x.opts))
	})
}

func ptr[T any](v T) *T { return &v }
