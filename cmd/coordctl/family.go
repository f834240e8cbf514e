package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// A family is a run and all that belongs to it, as one snapshot shows it.
type family struct {
	id       frames.RunID
	run      frames.Run
	members  map[frames.ObjectRef]frames.ObjectRevision // and their revisions
	bindings []frames.Binding
	evidence map[frames.BindingID]frames.Evidence
	manifest map[frames.ArtifactID]frames.ArtifactManifest
}

// has reports whether a record belongs to the run: by itself or through what it names.
func (f *family) has(ref frames.ObjectRef, p codec.Message) bool {
	if ref == refTo(frames.KindRun, f.id) {
		return true
	}
	if op, ok := p.(*frames.Operation); ok {
		for member := range f.members {
			if concerns(op.Result, member) {
				return true
			}
		}
		return false
	}
	if _, ok := p.(*frames.Run); ok {
		return false // another one, of the same objective
	}
	for _, parent := range parents(p) {
		if _, ok := f.members[parent]; ok {
			return true
		}
	}
	return false
}

// take takes a record that belongs to the run.
func (f *family) take(r frames.SnapshotRecord, p codec.Message) {
	f.members[r.Ref()] = r.Revision
	switch p := p.(type) {
	case *frames.Run:
		f.run = *p
	case *frames.Binding:
		f.bindings = append(f.bindings, *p)
	case *frames.Evidence:
		f.evidence[frames.BindingID(r.ID)] = *p
	case *frames.ArtifactManifest:
		f.manifest[p.ArtifactID] = *p
	}
}

// familyIn finds a run and what belongs to it. A snapshot is in order of kinds, and only
// operations and manifests name what may come behind them or lies several steps off, so that
// it is gone through until nothing more is found.
func familyIn(snap *client.Snapshot, prefix string) (*family, error) {
	r, err := findIn(snap, frames.KindRun, prefix)
	if err != nil {
		return nil, err
	}
	f := &family{id: frames.RunID(r.ID), members: map[frames.ObjectRef]frames.ObjectRevision{},
		evidence: map[frames.BindingID]frames.Evidence{}, manifest: map[frames.ArtifactID]frames.ArtifactManifest{}}
	for before := -1; before != len(f.members); {
		before = len(f.members)
		err := snap.Each(func(r frames.SnapshotRecord) error {
			if _, have := f.members[r.Ref()]; have {
				return nil
			}
			r.Payload = append([]byte(nil), r.Payload...)
			p, err := r.DecodePayload()
			if err != nil {
				return fmt.Errorf("%v: %w", r.Ref(), err)
			}
			if f.has(r.Ref(), p) {
				f.take(r, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// family takes a snapshot and finds a run in it.
func (s *session) family(ctx context.Context, prefix string) (*family, error) {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer snap.Close()
	return familyIn(snap, prefix)
}

// loadFamily is family on a connection of its own, which does not see ADMIN records.
func (a *app) loadFamily(ctx context.Context, text string) (f *family, err error) {
	prefix, err := checkPrefix(text)
	if err != nil {
		return nil, err
	}
	err = a.session(ctx, client.Options{Offered: readCaps}, false, func(ctx context.Context, s *session) error {
		f, err = s.family(ctx, prefix)
		return err
	})
	return f, err
}

// binding is the run's binding; the last, where it had several.
func (f *family) binding() (frames.Binding, error) {
	if len(f.bindings) == 0 {
		return frames.Binding{}, &client.RefusedError{Code: frames.CodeNotFound,
			Message: fmt.Sprintf("run %v is %v and has no process: none was started, or this key may not see it", f.id, f.run.State)}
	}
	for _, b := range f.bindings {
		if b.State == frames.StateActive {
			return b, nil
		}
	}
	return f.bindings[len(f.bindings)-1], nil
}

// history reads the event log up to where every member of the family has its revision, and
// visits each event with its record, nil for those that carry none. after is zero when the
// log is retained from its beginning; else what lies at or below is gone.
func (a *app) history(ctx context.Context, f *family, visit func(*client.Event, *frames.SnapshotRecord) error) (after frames.EventCut, err error) {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return 0, err
	}
	opts := client.Options{Name: "coordctl history", Offered: readCaps}
	if opts.Key, err = a.key(); err != nil {
		return 0, err
	}
	waiting := make(map[frames.ObjectRef]frames.ObjectRevision, len(f.members))
	for ref, revision := range f.members {
		waiting[ref] = revision
	}
	return client.ReadHistory(ctx, c, opts, func(e *client.Event) (bool, error) {
		r, carries, err := e.Record()
		if err != nil {
			return false, err
		}
		record := &r
		if !carries {
			record = nil
		}
		if err := visit(e, record); err != nil {
			return false, err
		}
		if want, ok := waiting[e.Object]; ok && e.Revision >= want {
			delete(waiting, e.Object)
		}
		return len(waiting) == 0, nil
	})
}

// ledger is what the event log says about the binding of a family.
func (a *app) ledger(ctx context.Context, f *family, binding frames.BindingID) (l *client.Ledger, after frames.EventCut, err error) {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return nil, 0, err
	}
	l = client.NewLedger(c.CoordinatorID, binding)
	after, err = a.history(ctx, f, func(e *client.Event, _ *frames.SnapshotRecord) error { return l.Take(e) })
	return l, after, err
}

// ownerOf is the context's owner that a binding names.
func (a *app) ownerOf(b frames.Binding) (*client.Context, client.Owner, error) {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return nil, client.Owner{}, err
	}
	o, err := ownerNamed(c, b.Binding.Owner)
	return c, o, err
}

// ownerNamed is the context's owner of that authority.
func ownerNamed(c *client.Context, authority frames.Fingerprint) (client.Owner, error) {
	for _, o := range c.Owners {
		if o.Authority == authority {
			return o, nil
		}
	}
	return client.Owner{}, &client.ContextError{Path: c.Path,
		Problem: fmt.Sprintf("the run was started at the owner %v, and no [[owner]] of that authority is named in it", authority)}
}

// readOutput copies what is stored of a binding's output.
func (a *app) readOutput(ctx context.Context, b frames.Binding, sink func([]byte) error) (err error) {
	c, o, err := a.ownerOf(b)
	if err != nil {
		return err
	}
	link, err := a.dialOwner(ctx, c, o)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := link.Close(); err == nil {
			err = cerr
		}
	}()
	err = link.ReadOutput(ctx, b.Binding.BindingID, 0, 0, false, func(_ uint64, data []byte) error { return sink(data) })
	if err != nil && !errors.As(err, new(*sinkError)) {
		err = &ownerError{o.Name, err}
	}
	return err
}

// plural is "1 thing" or "2 things".
func plural[N ~int | ~uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %s", n, strings.TrimSuffix(thing, "y")+map[bool]string{true: "ies", false: "s"}[strings.HasSuffix(thing, "y")])
}
