package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
)

const watchHelp = "go on, with what has changed, until Ctrl-C"

// addWatch adds --watch to a command.
func addWatch(c *cobra.Command, watch *bool, help string) {
	c.Flags().BoolVarP(watch, "watch", "w", false, help)
}

// A shown is what a command makes of a view: a value, and how it is written for people.
type shown struct {
	value object
	write func(io.Writer, term.Paint) error
}

// A viewing shows what is made of the view, and again whenever that has become another: for people
// the lines that differ, with + and -, else the whole value. Gaps are told as a watcher does.
type viewing struct {
	w *watcher
	// look makes what is shown of a view. Nil stands for nothing new. It also says whether this is the
	// last of it: errEnough, or an error to end with once it has been shown.
	look func(*client.Replica, *client.View) (s *shown, last, err error)
	// touches reports whether a change may make another of it.
	touches func(*client.Change) bool
	// states says that it depends on how the replica stands, too.
	states bool
	// waits says that the last of it is waited for.
	waits bool

	began  bool
	before []string // the lines, or the value, that were shown last
}

// view follows the records for what v makes of them.
func (a *app) view(parent context.Context, caps frames.Capability, v *viewing) error {
	v.w = &watcher{a: a, rows: true}
	t := &tracking{a: a, name: "coordctl watch", caps: caps, patience: a.wait, waits: v.waits}
	return t.left(t.run(parent, v.notice))
}

func (v *viewing) notice(r *client.Replica, n client.Notice) error {
	switch n := n.(type) {
	case *client.ReplicaState:
		if err := v.w.state(n); err != nil || !v.states {
			return err
		}
	case *client.Reread:
		if err := v.w.renewed(n, !v.began); err != nil {
			return err
		}
	case *client.Change:
		if !v.touches(n) {
			return nil
		}
	}
	view := r.View()
	s, last, err := v.look(r, view)
	if err != nil {
		return err
	}
	if s != nil {
		if err := v.show(s, view.Cut); err != nil {
			return err
		}
	}
	return last
}

// show prints what differs from what was shown before.
func (v *viewing) show(s *shown, at frames.EventCut) error {
	a, first := v.w.a, !v.began
	v.began = true
	if a.structured() {
		raw, err := s.value.MarshalJSON()
		if err != nil || !first && v.before[0] == string(raw) {
			return err
		}
		v.before = []string{string(raw)}
		return a.emitItem(s.value)
	}
	var b bytes.Buffer
	if err := s.write(&b, term.Paint{}); err != nil {
		return err
	}
	before, now := v.before, strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	v.before = now
	if first {
		return s.write(a.stdout, a.paint(a.stdout))
	}
	gone, come := apart(before, now)
	if len(gone)+len(come) == 0 {
		return nil
	}
	var out strings.Builder
	fmt.Fprintf(&out, "-- as of event %d\n", at)
	for _, line := range gone {
		fmt.Fprintf(&out, "- %s\n", line)
	}
	for _, line := range come {
		fmt.Fprintf(&out, "+ %s\n", line)
	}
	_, err := io.WriteString(a.stdout, out.String())
	return err
}

// apart gives the lines of one text that are not in the other, and the other way round, whatever
// the width of their columns.
func apart(before, now []string) (gone, come []string) {
	count := map[string]int{}
	narrow := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	for _, line := range before {
		count[narrow(line)]++
	}
	for _, line := range now {
		if count[narrow(line)]--; count[narrow(line)] < 0 {
			come = append(come, line)
		}
	}
	for _, line := range before { // of those that are left over
		if count[narrow(line)] > 0 {
			count[narrow(line)]--
			gone = append(gone, line)
		}
	}
	return gone, come
}

// lookUp finds the one record of kind whose id begins with prefix.
func lookUp(v *client.View, kind frames.ObjectKind, prefix string) (*client.Record, error) {
	var found *client.Record
	n := 0
	for r := range v.Kind(kind) {
		if strings.HasPrefix(r.ID().String(), prefix) {
			n++
			found = r
		}
	}
	return found, one(n, kind, prefix)
}

// describeOn shows a description again whenever it changes, until its record is gone.
func (a *app) describeOn(parent context.Context, kind frames.ObjectKind, prefix string, caps frames.Capability) error {
	v := &viewing{}
	var ref frames.ObjectRef
	v.look = func(_ *client.Replica, view *client.View) (*shown, error, error) {
		if ref.Kind == 0 {
			r, err := lookUp(view, kind, prefix)
			if err != nil {
				return nil, nil, err
			}
			ref = r.Ref()
		}
		r := view.Get(ref.Kind, ref.ID)
		if r == nil {
			return nil, errEnough, v.w.line(object{{"type", "REMOVED"}, {"object", refObject(ref)}}, "   %v is gone", ref)
		}
		d, err := description(r.Snapshot(), func(visit func(frames.SnapshotRecord) error) error {
			for other := range view.All() {
				if err := visit(other.Snapshot()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
		return &shown{value: d.object(), write: d.write}, nil, nil
	}
	v.touches = func(c *client.Change) bool { return c.Event.Object == ref || names(c.Old, ref) || names(c.New, ref) }
	return a.view(parent, caps, v)
}

// names reports whether a record is among what a description of an object lists.
func names(r *client.Record, ref frames.ObjectRef) bool {
	if r == nil {
		return false
	}
	p, err := r.Decode()
	if err != nil {
		return true // and what is wrong with it is told when it is shown
	}
	if op, ok := p.(*frames.Operation); ok {
		return runs.Concerns(op.Result, ref)
	}
	for _, parent := range runs.Parents(p) {
		if parent == ref {
			return true
		}
	}
	return false
}

// statusOn shows the status again whenever it changes. What passes by itself, the certificate's
// end, is left out.
func (a *app) statusOn(parent context.Context, counts bool) error {
	caps := quietCaps
	if counts {
		caps = readCaps
	}
	v := &viewing{states: true, touches: func(*client.Change) bool { return counts }}
	v.look = func(r *client.Replica, view *client.View) (*shown, error, error) {
		i, connected := r.Info()
		if !connected {
			return nil, nil, nil // which a gap has told
		}
		state, err := a.state()
		if err != nil {
			return nil, nil, err
		}
		o := a.statusObject(i, state, false)
		if counts {
			o = append(o, recordCounts(func(k frames.ObjectKind) uint64 { return uint64(view.Count(k)) }))
		}
		return &shown{o, func(w io.Writer, paint term.Paint) error { return writeMembers(w, paint, o) }}, nil, nil
	}
	return a.view(parent, caps, v)
}

// opOn shows an operation again whenever it changes, to its end, which is that of `op get`.
func (a *app) opOn(parent context.Context, prefix string) error {
	var ref frames.ObjectRef
	v := &viewing{waits: true, touches: func(c *client.Change) bool { return c.Event.Object == ref }}
	v.look = func(_ *client.Replica, view *client.View) (*shown, error, error) {
		result := frames.OperationResult{State: frames.OperationUnknown}
		switch r, err := lookUp(view, frames.KindOperation, prefix); {
		case err == nil:
			ref = r.Ref()
			p, err := r.Decode()
			if err != nil {
				return nil, nil, err
			}
			result = p.(*frames.Operation).Result
		case len(prefix) < 32 && ref.Kind == 0:
			return nil, nil, err
		case ref.Kind == 0:
			id, err := frames.ParseID[frames.ObjectID](prefix)
			if err != nil {
				return nil, nil, usage("%v", err)
			}
			ref = frames.ObjectRef{Kind: frames.KindOperation, ID: id}
		}
		op := frames.OperationID(ref.ID)
		o := append(object{{"operation_id", op.String()}}, resultObject(result)...)
		s := &shown{o, func(w io.Writer, paint term.Paint) error { return writeMembers(w, paint, o) }}
		switch result.State {
		case frames.OperationPending:
			return s, nil, nil
		case frames.OperationSucceeded, frames.OperationTombstoned:
			return s, errEnough, nil
		}
		return s, &resultError{op, result}, nil
	}
	return a.view(parent, readCaps, v)
}
