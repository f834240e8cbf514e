package owner

import (
	"errors"

	"coordinator/frames"
	"coordinator/internal/failpoint"
)

// spawn starts a process: held until what identifies it is durable, then released, then
// SUCCEEDED and OPENED in one transaction. It returns an error only when the journal failed;
// the process is then gone.
func (o *Owner) spawn(f *DispatchEffect, a *admission) error {
	o.starts <- struct{}{}
	defer func() { <-o.starts }()
	id := frames.BindingID(f.Target.PendingBindingID)
	reject := func(err error) error {
		o.meters.Rejected.Add(1)
		o.log.Warn("process was not started", "binding", id.String(), "cause", err)
		return o.settle(f.Attempt, outcome{state: frames.EffectRejected, message: err.Error()}, func(t *txn) {
			if _, ok := t.binding(id); ok {
				t.remove(bucketBindings, id[:])
			}
		})
	}
	h, err := o.launch.hold(a.doc.size())
	if err != nil {
		return reject(errors.New("the owner could not make a process or a terminal"))
	}
	failpoint.Hit("owner-forked")
	out, err := createOutput(o.dir, id, o.opt.MaxOutput)
	if err != nil {
		h.abandon()
		return reject(errors.New("the owner could not make an output file"))
	}
	o.mu.Lock()
	o.resource++
	resource := frames.ResourceID{ID: o.resource}
	o.mu.Unlock()
	row := bindingRow{
		Coordinator: a.fresh.coordinator, Session: a.spawn.WorkSessionID, Incarnation: o.opt.Incarnation, Attempt: f.Attempt,
		Resource: resource, Group: h.id().group, StartTime: h.id().start, BootID: o.opt.BootID, State: bindingHeld,
	}
	if err := o.j.update(func(t *txn) error { t.putBinding(id, &row); return nil }); err != nil {
		h.abandon()
		return errors.Join(err, out.finish())
	}
	failpoint.Hit("owner-held")
	c, err := h.release(command{argv: a.doc.Argv, env: a.doc.environment(o.opt.Environ), cwd: o.cwd(a.doc)})
	if err != nil {
		ferr := out.finish()
		return errors.Join(reject(err), ferr, o.removeOutput([]frames.BindingID{id}))
	}
	failpoint.Hit("owner-released")
	return o.open(f.Attempt, id, o.newBinding(id, c, out, a.doc.grace()), resource)
}

func (o *Owner) cwd(d *Document) string {
	if d.Cwd != "" {
		return d.Cwd
	}
	return o.opt.Home
}

// open makes a started process live.
func (o *Owner) open(attempt frames.EffectAttemptID, id frames.BindingID, b *binding, resource frames.ResourceID) error {
	o.mu.Lock()
	o.live[id] = b
	o.inHand[attempt].place = false // the process has it from here on
	o.mu.Unlock()
	given := false
	err := o.settle(attempt, outcome{state: frames.EffectSucceeded, resource: &resource}, func(t *txn) {
		row, ok := t.binding(id)
		if !ok {
			panic("owner: a live process without a binding")
		}
		row.State = bindingLive
		given = row.Acked == AckAll
		t.addFacts(id, &row, fact(frames.FactOpened, &frames.Opened{}))
		t.putBinding(id, &row)
	})
	o.wg.Go(b.run) // this effect still counts in wg
	if err != nil || given {
		b.kill() //nolint:errcheck // it has ended by itself then
		return err
	}
	o.meters.Started.Add(1)
	b.log.Info("process started", "attempt", attempt.String())
	o.factsCame(id)
	return nil
}
