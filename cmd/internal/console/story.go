package console

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"coordinator/client"
	"coordinator/cmd/internal/overview"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
	"coordinator/internal/text"
)

const (
	// storyWait is how long the event log may be read for one run.
	storyWait = 20 * time.Second
	// maxReads is how many read the event log, or output, at once.
	maxReads = 4
	// maxStories is how many runs' stories are kept, and storyAge how long that of a run is which
	// goes on.
	maxStories = 8
	storyAge   = time.Second
	// maxTimeline bounds the events that are told of one run; the latest are.
	maxTimeline = 20_000
)

// A story is what the event log says of a run. It never changes.
type story struct {
	family  *runs.Family
	events  []*overview.Activity // the last maxTimeline
	left    int                  // events before them
	ledgers map[frames.BindingID]*client.Ledger
	after   frames.EventCut // above zero: what lies at or below is gone
	guard   frames.AuthorityGuard
	read    time.Time
}

// stories keeps the last ones, since a page that shows output asks for one again and again.
type stories struct {
	room chan struct{} // holds an element for each that reads

	mu    sync.Mutex
	kept  map[frames.RunID]*story // guarded by mu
	order []frames.RunID          // guarded by mu; keys of kept, the oldest first
}

func newStories() *stories {
	return &stories{room: make(chan struct{}, maxReads), kept: map[frames.RunID]*story{}}
}

// enter waits for room to read. The caller leaves.
func (k *stories) enter(ctx context.Context) *problem {
	select {
	case k.room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &problem{http.StatusServiceUnavailable, codeBusy, "others read the event log or output", "try again"}
	}
}

func (k *stories) leave() { <-k.room }

// of gives the kept story of a family that has not changed since, nil when there is none.
func (k *stories) of(f *runs.Family, guard frames.AuthorityGuard, now time.Time) *story {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.kept[f.ID]
	switch {
	case s == nil || s.guard != guard || !maps.Equal(s.family.Members, f.Members):
		return nil
	case !ended(f) && now.Sub(s.read) > storyAge:
		return nil
	}
	return s
}

func (k *stories) keep(s *story) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept[s.family.ID] == nil {
		if len(k.order) == maxStories {
			delete(k.kept, k.order[0])
			k.order = k.order[1:]
		}
		k.order = append(k.order, s.family.ID)
	}
	k.kept[s.family.ID] = s
}

// ended reports whether no fact of a run comes any more.
func ended(f *runs.Family) bool {
	for _, b := range f.Bindings {
		if b.State == frames.StateActive {
			return false
		}
	}
	return f.Run.State.Terminal()
}

// family is the run of a path, as the view now has it.
func (s *Server) family(r *http.Request) (*runs.Family, *client.View, *problem) {
	id, p := pathID[frames.RunID](r, "id")
	if p != nil {
		return nil, nil, p
	}
	v, p := s.view()
	if p != nil {
		return nil, nil, p
	}
	f, err := runs.FamilyOf(v, id)
	switch {
	case err != nil:
		return nil, nil, &problem{http.StatusBadGateway, codeUnavailable, text.Inert(err.Error()), "use the coordctl that belongs to the coordinator"}
	case f == nil:
		return nil, nil, absent("run", id.String())
	}
	return f, v, nil
}

// story reads what the event log says of a run, unless that is known. The caller has entered.
func (s *Server) story(ctx context.Context, f *runs.Family, v *client.View) (*story, *problem) {
	if known := s.stories.of(f, v.Guard, s.opts.Clock.Now().Wall); known != nil {
		return known, nil
	}
	out := &story{family: f, ledgers: map[frames.BindingID]*client.Ledger{}, guard: v.Guard, read: s.opts.Clock.Now().Wall}
	for _, b := range f.Bindings {
		out.ledgers[b.Binding.BindingID] = client.NewLedger(s.opts.Context.CoordinatorID, b.Binding.BindingID)
	}
	if !ended(f) {
		f.Through = frames.EventSequence(v.Cut)
	}
	opts := s.options("console history")
	opts.Offered &^= frames.CapObjectiveLifecycle
	var err error
	out.after, err = f.Timeline(ctx, s.opts.Context, opts, out.take)
	if err != nil {
		if ctx.Err() != nil {
			return nil, &problem{http.StatusBadGateway, codeUnavailable, "the event log is long: it could not be read in time", "see the run with coordctl describe run, which takes its time"}
		}
		return nil, unavailable(err)
	}
	s.stories.keep(out)
	return out, nil
}

// take takes one event.
func (t *story) take(e runs.TimelineEvent) error {
	for _, l := range t.ledgers {
		if err := l.Take(e.Event); err != nil {
			return err
		}
	}
	if len(t.events) == 2*maxTimeline {
		t.left += maxTimeline
		t.events = append([]*overview.Activity(nil), t.events[maxTimeline:]...)
	}
	t.events = append(t.events, &overview.Activity{Sequence: e.Sequence, Kind: e.Kind.String(), Object: &overview.Object{Kind: e.Object.Kind.String(), ID: e.Object.ID.String()},
		Revision: e.Event.Revision, Text: text.Inert(e.Text)})
	return nil
}

// A streamStory is what the event log says of one binding's output.
type streamStory struct {
	Stream   string         `json:"stream"`
	Facts    string         `json:"facts"`
	First    string         `json:"first_fact,omitempty"`
	Last     string         `json:"last_fact,omitempty"`
	Gaps     int            `json:"gaps"`
	Bytes    string         `json:"output_bytes"`
	Ranges   int            `json:"output_ranges"`
	Closed   bool           `json:"closed"`
	Sealed   bool           `json:"sealed"`
	Findings []runs.Finding `json:"findings"`
}

// A timelineEvent is an EVENT of doc.go without a time, which no event bears.
type timelineEvent struct {
	Sequence frames.EventSequence  `json:"event_sequence,string"`
	Kind     string                `json:"kind"`
	Object   *overview.Object      `json:"object"`
	Revision frames.ObjectRevision `json:"revision,string"`
	Text     string                `json:"text"`
}

type timelineAnswer struct {
	Events  []timelineEvent `json:"events"`
	Omitted int             `json:"omitted"`
	Removed string          `json:"removed_events_through"`
	Streams []streamStory   `json:"streams"`
}

// told is the story of a run once there is room for one more that is read; leave gives the room
// back when nothing of it is used any more.
func (s *Server) told(ctx context.Context, f *runs.Family, v *client.View) (t *story, leave func(), p *problem) {
	if p := s.stories.enter(ctx); p != nil {
		return nil, nil, p
	}
	if t, p = s.story(ctx, f, v); p != nil {
		s.stories.leave()
		return nil, nil, p
	}
	return t, s.stories.leave, nil
}

// timeline answers GET /api/run/{id}/timeline.
func (s *Server) timeline(w http.ResponseWriter, r *http.Request) (any, *problem) {
	ctx, cancel := s.within(w, r, storyWait)
	defer cancel()
	f, v, p := s.family(r)
	if p != nil {
		return nil, p
	}
	t, leave, p := s.told(ctx, f, v)
	if p != nil {
		return nil, p
	}
	defer leave()
	skip := max(0, len(t.events)-maxTimeline)
	out := timelineAnswer{Events: []timelineEvent{}, Omitted: t.left + skip, Removed: decimal(t.after), Streams: []streamStory{}}
	for _, e := range t.events[skip:] {
		out.Events = append(out.Events, timelineEvent{e.Sequence, e.Kind, e.Object, e.Revision, e.Text})
	}
	for _, b := range t.family.Bindings {
		out.Streams = append(out.Streams, t.stream(b))
	}
	return out, nil
}

func (t *story) stream(b frames.Binding) streamStory {
	id := b.Binding.BindingID
	l := t.ledgers[id]
	_, sealed := t.family.Evidence[id]
	out := streamStory{Stream: id.String(), Facts: decimal(l.Facts), Gaps: l.Gaps, Bytes: decimal(l.OutputBytes()), Ranges: len(l.Ranges), Closed: l.Closed, Sealed: sealed,
		Findings: t.findings(b)}
	if l.Facts > 0 {
		out.First, out.Last = decimal(l.First), decimal(l.Last)
	}
	return out
}

// findings compares the records of a run with its facts, once its process has ended.
func (t *story) findings(b frames.Binding) []runs.Finding {
	if b.State == frames.StateActive {
		return []runs.Finding{{What: "seal", Verdict: runs.Unchecked, Detail: "the process runs: its evidence is sealed when it has ended"}}
	}
	return t.family.Compare(b, t.ledgers[b.Binding.BindingID], t.after)
}

// streamOf is the binding of a path, of a run.
func streamOf(r *http.Request, f *runs.Family) (frames.Binding, *problem) {
	id, p := pathID[frames.BindingID](r, "stream")
	if p != nil {
		return frames.Binding{}, p
	}
	for _, b := range f.Bindings {
		if b.Binding.BindingID == id {
			return b, nil
		}
	}
	return frames.Binding{}, absent("output stream", id.String())
}

// ownerProblem words a failure to read output.
func (s *Server) ownerProblem(err error) *problem {
	p := &problem{http.StatusBadGateway, codeUnavailable, text.Inert(err.Error()), "see whether the process owner runs, and whether this key may read its output there"}
	if errors.As(err, new(*client.ContextError)) {
		p.Next = "add the owner to the context file"
	}
	return p
}
