package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/codec"
	"coordinator/frames"
)

const (
	// followCaps are what a follower offers beside what it shows: gaps healed by replay,
	// and removals as events.
	followCaps = frames.CapEventReplay | frames.CapArchive
	// watchPause caps the pause before a watcher looks for the coordinator again.
	watchPause = 2 * time.Second
	// watchBacklog is how many changes wait for a terminal or a pipe that takes its time.
	watchBacklog = 1 << 16
)

func (a *app) watchCommand() *cobra.Command {
	var limit int
	var signals bool
	c := &cobra.Command{
		Use:   "watch [KIND [ID] | --signals]",
		Short: "Show every change as it happens, until Ctrl-C",
		Long: `Show every change as it happens, until Ctrl-C: those of one kind or object, or all but
those of operations and administration, which are shown when they are asked for.

A gap in the view is a line of its own, and so is how it was healed: by the events that
were missed, or by a snapshot, whose differences from what was shown follow. So do those of
changes that came faster than they could be written. A coordinator that restarts is waited
for. --timeout bounds the time to the first snapshot only. With
-o json each line is one object, and with -o yaml a document; "type" says of what. A template
(-o jsonpath=…) is filled in for each of them; gaps and their ends are then told on standard
error.`,
		Example: `  coordctl watch
  coordctl watch run 2d88da09
  coordctl watch --signals
  coordctl watch objective --limit 10 -o json`,
		ValidArgsFunction: completeKinds,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return usage("%s takes at most a kind and an id: %s", cmd.CommandPath(), cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return usage("--limit is %d; it must not be negative", limit)
			}
			if signals {
				if len(args) > 0 {
					return usage("--signals takes no kind: it shows signals alone")
				}
				return a.watchSignals(cmd.Context(), limit, "", false)
			}
			return a.watch(cmd.Context(), args, limit, false)
		},
	}
	c.Flags().IntVar(&limit, "limit", 0, "end after `N` events; 0 never ends")
	c.Flags().BoolVar(&signals, "signals", false, "show the signals that are open, and then what becomes of them and of new ones")
	return c
}

// errEnough ends a watch that has shown what was asked for.
var errEnough = errors.New("enough")

// watch follows what args name. rows says to show records as `get` does, not events.
func (a *app) watch(parent context.Context, args []string, limit int, rows bool) error {
	return a.watchWith(parent, args, &watcher{a: a, left: limit, rows: rows})
}

// watchSignals shows what wants attention: the open signals, as rows, and all that follows. run is
// the prefix of a run's id and narrows them to its; all shows those too that are not open.
func (a *app) watchSignals(parent context.Context, limit int, run string, all bool) error {
	return a.watchWith(parent, []string{"signal"}, &watcher{a: a, left: limit, rows: true, open: !all, of: run})
}

func (a *app) watchWith(parent context.Context, args []string, w *watcher) error {
	caps := quietCaps
	if len(args) > 0 {
		kind, err := parseKind(args[0])
		if err != nil {
			return err
		}
		w.kind, caps = kind, capsFor(kind)
	}
	if len(args) > 1 {
		prefix, err := checkPrefix(args[1])
		if err != nil {
			return err
		}
		w.prefix = prefix
	}
	f := &tracking{a: a, name: "coordctl watch", caps: caps, patience: a.wait}
	return f.left(f.run(parent, w.notice))
}

// A watcher prints what a replica tells.
type watcher struct {
	a      *app
	kind   frames.ObjectKind // zero: all
	prefix string            // of the id; empty: all
	rows   bool
	open   bool               // of the signals there are at first, only those that are open
	of     string             // the prefix of a run's id: of the signals, only its
	run    frames.RunID       // that run
	left   int                // events until it ends; zero never does
	events []frames.EventKind // of the events, only these; none: all

	said  string                              // the last line about a missing connection
	gaps  *client.Gap                         // the last one shown
	lost  *client.LostHistory                 // the last one shown
	shown map[frames.ObjectRef]*client.Record // what is wanted, as it was shown last
}

// notice shows what the replica's feed gives.
func (w *watcher) notice(r *client.Replica, n client.Notice) error {
	switch n := n.(type) {
	case *client.ReplicaState:
		return w.state(n)
	case *client.Reread:
		return w.reread(n)
	case *client.Change:
		if w.of != "" && w.shown[n.Event.Object] == nil && !w.ofRun(r.View(), cmp.Or(n.New, n.Old)) {
			return nil
		}
		w.keep(n.Event.Object, n.New)
		return w.show(n.Event)
	}
	return nil
}

// state shows a gap, how it was healed, and lost history, each once.
func (w *watcher) state(s *client.ReplicaState) error {
	switch {
	case s.Phase == client.ReplicaLostHistory:
		return w.historyLost(s.Lost)
	case s.Phase == client.ReplicaStale && s.Gap != nil && s.Gap != w.gaps:
		w.gaps = s.Gap
		return w.show(s.Gap)
	case s.Gap == nil && s.Healed != nil && w.gaps != nil:
		w.gaps = nil
		return w.show(s.Healed)
	}
	return nil
}

// keep remembers what was shown of an object, if it is one that is.
func (w *watcher) keep(ref frames.ObjectRef, r *client.Record) {
	switch {
	case !w.wants(ref):
	case r == nil:
		delete(w.shown, ref)
	default:
		w.shown[ref] = r
	}
}

// show shows a gap, its end or an event.
func (w *watcher) show(u client.Update) error {
	switch u := u.(type) {
	case *client.Healed:
		w.said = ""
		return w.healed(u)
	case *client.Gap:
		return w.gap(u)
	case *client.Event:
		return w.event(u)
	}
	return nil
}

// wants reports whether an object is among those that are shown.
func (w *watcher) wants(ref frames.ObjectRef) bool {
	return (w.kind == 0 || ref.Kind == w.kind) && strings.HasPrefix(ref.ID.String(), w.prefix)
}

// line prints one line: o where values were asked for, else text.
func (w *watcher) line(o object, format string, args ...any) error {
	if w.a.structured() {
		return w.a.emitItem(o)
	}
	_, err := fmt.Fprintln(w.a.stdout, printable(fmt.Sprintf(format, args...)))
	return err
}

// aside is line for what is told about the view itself. A template would leave it out, so that
// it goes to standard error then.
func (w *watcher) aside(o object, format string, args ...any) error {
	return w.paintedAside(func(_ term.Paint, s string) string { return s }, o, format, args...)
}

// alarm is aside for what should be noticed.
func (w *watcher) alarm(o object, format string, args ...any) error {
	return w.paintedAside(term.Paint.Warning, o, format, args...)
}

func (w *watcher) paintedAside(paint func(term.Paint, string) string, o object, format string, args ...any) error {
	out := w.a.stdout
	switch {
	case w.a.output.Picks():
		out = w.a.stderr
	case w.a.structured():
		return w.a.emitItem(o)
	}
	_, err := fmt.Fprintln(out, paint(w.a.paint(out), printable(fmt.Sprintf(format, args...))))
	return err
}

// stateWord is a state in a line.
func (w *watcher) stateWord(state string) string { return w.a.paint(w.a.stdout).State(orDash(state)) }

// gap prints a gap. What keeps the connection from coming back is said when it changes.
func (w *watcher) gap(g *client.Gap) error {
	o := object{{"type", "GAP"}}
	if g.Cause == nil {
		o = append(o, member{"reason", g.Reason.String()}, member{"last_contiguous_event", g.Last})
		if g.Observed != 0 {
			o = append(o, member{"observed_event", g.Observed})
		}
		next := "healing"
		if g.Reason == frames.GapEpochChanged || g.Reason == frames.GapGrantRevoked {
			next = "the coordinator ends the connection"
		}
		return w.alarm(o, "-- gap: %v; %s", g, next)
	}
	why := w.a.explainCause(g.Cause).what
	if g.Attempt > 0 && why == w.said {
		return nil
	}
	w.said = why
	o = append(o, member{"reason", "DISCONNECTED"}, member{"last_contiguous_event", g.Last}, member{"message", why}, member{"attempt", g.Attempt})
	return w.alarm(o, "-- gap: no connection after event %d: %s; trying again", g.Last, why)
}

func (w *watcher) healed(h *client.Healed) error {
	by, text := "RESUME", "the coordinator goes on from there"
	if h.Replayed {
		by, text = "REPLAY", "the log was replayed"
	}
	o := object{{"type", "HEALED"}, {"by", by}, {"last_contiguous_event", h.Last}, {"authority_epoch", h.Guard.Epoch}, {"activation_sequence", h.Guard.Activation}}
	return w.aside(o, "-- healed after event %d (epoch %d): %s; nothing is missing", h.Last, h.Guard.Epoch, text)
}

// reread prints a view that takes the place of what was shown: as a line, and what differs.
// `get` shows its records at the beginning too.
func (w *watcher) reread(n *client.Reread) error {
	first, v := w.shown == nil, n.View
	if err := w.renewed(n, first); err != nil {
		return err
	}
	if first && w.rows && !w.a.structured() {
		if err := w.a.writeRow(w.kind, w.a.heads(w.kind)); err != nil {
			return err
		}
	}
	if err := w.findRun(v); err != nil {
		return err
	}
	before, count := w.shown, 0
	w.shown = map[frames.ObjectRef]*client.Record{}
	for r := range v.All() {
		if w.of != "" && !w.ofRun(v, r) {
			continue
		}
		was := before[r.Ref()] // the replica keeps what has not changed
		w.keep(r.Ref(), r)
		if !w.wants(r.Ref()) || first && !w.rows || was == r {
			continue
		}
		record := r.Snapshot()
		if w.open && first && !isOpen(record) {
			continue
		}
		count++
		if err := w.record(record); err != nil {
			return err
		}
	}
	if first && w.rows && w.prefix != "" && count == 0 {
		return &client.RefusedError{Code: frames.CodeNotFound, Message: fmt.Sprintf("no %v of id %s is visible to this key", w.kind, w.prefix)}
	}
	return w.gone(before)
}

// findRun finds the run that the signals are narrowed to, if they are.
func (w *watcher) findRun(v *client.View) error {
	if w.of == "" || w.run != (frames.RunID{}) {
		return nil
	}
	r, err := lookUp(v, frames.KindRun, w.of)
	if err == nil {
		w.run = frames.RunID(r.ID())
	}
	return err
}

// ofRun reports whether a record belongs to a work session of the run.
func (w *watcher) ofRun(v *client.View, r *client.Record) bool {
	parent, ok := r.Parent()
	if !ok || parent.Kind != frames.KindWorkSession {
		return false
	}
	s := v.WorkSession(frames.WorkSessionID(parent.ID))
	return s != nil && s.RunID == w.run
}

// gone prints what was shown and is no more.
func (w *watcher) gone(before map[frames.ObjectRef]*client.Record) error {
	var refs []frames.ObjectRef
	for ref := range before {
		if w.shown[ref] == nil {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, frames.ObjectRef.Compare)
	for _, ref := range refs {
		if err := w.removed(ref, before[ref].Revision()); err != nil {
			return err
		}
	}
	return nil
}

// historyLost says once that what was shown is no longer in the coordinator's history.
func (w *watcher) historyLost(l *client.LostHistory) error {
	if l == nil || l == w.lost {
		return nil
	}
	w.lost = l
	o := object{{"type", "HISTORY_LOST"}, {"last_contiguous_event", l.Cut}, {"activation_sequence", l.Activation},
		{"found_activation_sequence", l.Found}, {"base_event_sequence", l.Base}}
	return w.alarm(o, "-- HISTORY_LOST: %v", l)
}

// renewed tells of a view that takes the place of the one before.
func (w *watcher) renewed(n *client.Reread, first bool) error {
	w.said, w.gaps = "", nil
	if err := w.historyLost(n.State.Lost); err != nil {
		return err
	}
	return w.heading(n, first)
}

// heading is the line before a view; none before the first one of which records are shown.
func (w *watcher) heading(n *client.Reread, first bool) error {
	v := n.View
	if first && w.rows {
		return nil
	}
	if n.Reason == client.RereadMissed {
		o := object{{"type", "BEHIND"}, {"missed", n.Missed}, {"event_sequence", v.Cut}, {"record_count", v.Len()}}
		return w.alarm(o, "-- behind: %d changes came faster than they were written; what they left behind follows, as of event %d", n.Missed, v.Cut)
	}
	what := "watching"
	if !first {
		what = "healed by a snapshot"
	}
	o := object{{"type", "SNAPSHOT"}, {"base_event_sequence", v.Cut}, {"record_count", v.Len()}, {"authority_epoch", v.Guard.Epoch}, {"activation_sequence", v.Guard.Activation}}
	return w.aside(o, "-- %s: %d records at event %d (epoch %d)", what, v.Len(), v.Cut, v.Guard.Epoch)
}

// isOpen reports whether a record is a signal that nobody has dealt with.
func isOpen(r frames.SnapshotRecord) bool {
	p, err := r.DecodePayload()
	if err != nil {
		return true // and what is wrong with it is told when it is shown
	}
	sig, ok := p.(*frames.Signal)
	return ok && sig.State == frames.SignalOpen
}

// record prints a record as it now is.
func (w *watcher) record(r frames.SnapshotRecord) error {
	o, state, detail, err := recordObject(r)
	if err != nil {
		return err
	}
	if w.a.structured() {
		if !w.rows {
			o = append(object{{"type", "RECORD"}}, o...)
		}
		return w.a.emitItem(o)
	}
	if w.rows {
		cells, err := w.a.cells(r)
		if err != nil {
			return err
		}
		return w.a.writeRow(r.Kind, cells)
	}
	_, err = fmt.Fprintf(w.a.stdout, "   %v is now at revision %d  %s  %s\n", r.Ref(), r.Revision, w.stateWord(state), w.a.short(detail))
	return err
}

func (w *watcher) removed(ref frames.ObjectRef, was frames.ObjectRevision) error {
	if w.rows && !w.a.structured() {
		cells := []string{ref.ID.String(), decimal(was), "(removed)", "-"}
		for range w.a.columns(ref.Kind) {
			cells = append(cells, "-")
		}
		return w.a.writeRow(ref.Kind, cells)
	}
	return w.line(object{{"type", "REMOVED"}, {"object", refObject(ref)}, {"revision", was}}, "   %v is gone; it was at revision %d", ref, was)
}

// event prints one event that is wanted.
func (w *watcher) event(e *client.Event) error {
	if !w.wants(e.Object) || len(w.events) > 0 && !slices.Contains(w.events, e.Kind) {
		return nil
	}
	if err := w.printEvent(e); err != nil {
		return err
	}
	if w.left--; w.left == 0 {
		return errEnough
	}
	return nil
}

func (w *watcher) printEvent(e *client.Event) error {
	r, carries, err := e.Record()
	switch {
	case err != nil:
		return err
	case w.rows && carries:
		return w.record(r)
	case w.rows && e.Kind == frames.EventObjectRemoved:
		return w.removed(e.Object, e.Revision)
	}
	name, payload, state, detail := member{"payload", nil}, object(nil), "", ""
	switch {
	case carries:
		if payload, state, detail, err = recordObject(r); err != nil {
			return err
		}
		name.name = "record"
	default:
		if payload, detail, err = factObject(e); err != nil {
			return err
		}
	}
	o := object{{"type", "COORD_EVENT"}, {"event_sequence", e.Sequence}, {"event_id", e.ID.String()}, {"event_kind", e.Kind.String()},
		{"object", refObject(e.Object)}, {"object_revision", e.Revision}, {"schema", e.Schema}}
	if payload != nil {
		name.value = payload
		o = append(o, name)
	}
	if w.a.structured() {
		return w.a.emitItem(o)
	}
	_, err = fmt.Fprintf(w.a.stdout, "%-8d %-24v %v revision %d  %s  %s\n", e.Sequence, e.Kind, e.Object.ID, e.Revision, w.stateWord(state), w.a.short(detail))
	return err
}

func refObject(ref frames.ObjectRef) object {
	return object{{"kind", ref.Kind.String()}, {"id", ref.ID.String()}}
}

// factObject lays out the payload of an event that carries no record.
func factObject(e *client.Event) (o object, detail string, err error) {
	if detail, err = runs.FactDetail(e); err != nil {
		return nil, "", err
	}
	switch e.Kind {
	case frames.EventSourceFactAdmitted:
		var f frames.TerminalSourceFact
		if err := codec.DecodeImage(&f, e.Payload); err != nil {
			return nil, "", fmt.Errorf("event %d: %w", e.Sequence, err)
		}
		return object{{"binding_id", f.Source.BindingID.String()}, {"owner_authority_fingerprint", f.Source.Owner.String()},
			{"owner_incarnation", f.Source.OwnerIncarnation.String()}, {"source_sequence", f.Source.Sequence}, {"kind", runs.FactName(f.Kind)}, {"schema", f.Schema},
			payloadMembers("payload", f.Payload)}, detail, nil
	case frames.EventSourceGap:
		var g frames.SourceGap
		if err := codec.DecodeImage(&g, e.Payload); err != nil {
			return nil, "", fmt.Errorf("event %d: %w", e.Sequence, err)
		}
		return object{{"binding_id", g.BindingID.String()}, {"expected", g.Expected}, {"observed", g.Observed}, {"reason", runs.GapReason(g.Reason)}},
			detail, nil
	}
	return nil, "", nil
}
