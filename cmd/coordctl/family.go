package main

import (
	"context"

	"coordinator/client"
	"coordinator/cmd/internal/runs"
	"coordinator/frames"
)

// familyIn finds a run and what belongs to it.
func familyIn(snap *client.Snapshot, prefix string) (*runs.Family, error) {
	r, err := findIn(snap, frames.KindRun, prefix)
	if err != nil {
		return nil, err
	}
	return runs.FamilyIn(snap, frames.RunID(r.ID))
}

// family takes a snapshot and finds a run in it.
func (s *session) family(ctx context.Context, prefix string) (*runs.Family, error) {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer snap.Close()
	return familyIn(snap, prefix)
}

// loadFamily is family on a connection of its own, which does not see ADMIN records.
func (a *app) loadFamily(ctx context.Context, text string) (f *runs.Family, err error) {
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

// historian is how the event log is read.
func (a *app) historian() (*client.Context, client.Options, error) {
	opts := client.Options{Name: "coordctl history", Offered: readCaps, Progress: a.tell}
	c, err := client.LoadContext(a.contextPath)
	if err == nil {
		opts.Key, err = a.key()
	}
	return c, opts, err
}

// ledger is what the event log says about the binding of a family.
func (a *app) ledger(ctx context.Context, f *runs.Family, binding frames.BindingID) (l *client.Ledger, after frames.EventCut, err error) {
	c, opts, err := a.historian()
	if err != nil {
		return nil, 0, err
	}
	defer a.bar().End()
	return f.Ledger(ctx, c, opts, binding)
}

// ownerOf is the context's owner that a binding names.
func (a *app) ownerOf(b frames.Binding) (*client.Context, client.Owner, error) {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return nil, client.Owner{}, err
	}
	o, err := runs.OwnerNamed(c, b.Binding.Owner)
	return c, o, err
}

// readOutput copies what is stored of a binding's output.
func (a *app) readOutput(ctx context.Context, b frames.Binding, sink func([]byte) error) error {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	key, err := a.key()
	if err != nil {
		return err
	}
	return runs.ReadOutput(ctx, c, key, b, "coordctl", 0, 0, sink)
}
