package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// An Outbox keeps the links. [Outbox.Publish], [Outbox.Connected] and [Outbox.Serves] may be
// called from any goroutine, before Run too.
type Outbox struct {
	o     Options
	peers map[frames.Fingerprint]*peer // fixed

	meters Meters

	mu      sync.Mutex
	lost    map[frames.EffectAttemptID]struct{} // guarded by mu: of owners that are not configured
	orphans map[frames.BindingID]struct{}       // guarded by mu: likewise, active
}

// New makes an outbox that does nothing until Run.
func New(o Options) *Outbox {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Outbox{
		o: o, peers: make(map[frames.Fingerprint]*peer),
		lost: make(map[frames.EffectAttemptID]struct{}), orphans: make(map[frames.BindingID]struct{}),
	}
	for _, w := range o.Owners {
		b.peers[w.Fingerprint] = newPeer(b, w)
	}
	return b
}

// Connected reports whether a proved link to the owner is up in exactly that incarnation.
func (b *Outbox) Connected(fp frames.Fingerprint, inc frames.IncarnationID) bool {
	p := b.peers[fp]
	return p != nil && p.serves(inc, nil)
}

// Serves is Connected, and that the owner serves the group.
func (b *Outbox) Serves(fp frames.Fingerprint, inc frames.IncarnationID, group frames.GroupID) bool {
	p := b.peers[fp]
	return p != nil && p.serves(inc, &group)
}

// Recover takes in what the store holds and finishes what needs no owner to be asked
// (protocol.md §4 [D-31] [D-34]). It comes once, before anything is bound and before Run; the
// writer must be running.
func (b *Outbox) Recover(ctx context.Context) error {
	err := b.load(ctx)
	if err == nil {
		err = b.settle(ctx)
	}
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// Run keeps the links until ctx ends, and returns with no goroutine left behind.
func (b *Outbox) Run(ctx context.Context) {
	var links sync.WaitGroup
	for _, p := range b.peers {
		links.Go(func() { p.run(ctx) })
	}
	links.Wait()
}

// load takes in what the store holds. What commits change meanwhile comes by Publish; both
// happen on the writer's goroutine, so nothing is missed and nothing undone.
func (b *Outbox) load(ctx context.Context) error {
	var bad error
	err := b.o.Writer.Scan(ctx, work.EffectKind, func(r store.Row) bool {
		bad = b.effect(r)
		return bad == nil
	})
	if err = errors.Join(err, bad); err != nil {
		return err
	}
	err = b.o.Writer.Scan(ctx, frames.KindBinding, func(r store.Row) bool {
		bad = b.opened(&r.Record)
		return bad == nil
	})
	return errors.Join(err, bad)
}

// settle is the part of recovery that asks no owner: effects that their run contradicts, and
// those whose owner was removed from the configuration [D-31] [D-34].
func (b *Outbox) settle(ctx context.Context) error {
	for _, id := range b.attempts() {
		err := b.o.Writer.Change(ctx, []frames.ObjectRef{work.EffectRef(id)}, func(v work.View, env work.Env) (work.Outcome, error) {
			return work.CheckEffect(v, id, env)
		})
		if err != nil {
			return err
		}
	}
	b.mu.Lock()
	lost, orphans := keys(b.lost), keys(b.orphans)
	b.mu.Unlock()
	for _, id := range lost {
		err := b.o.Writer.Change(ctx, nil, func(v work.View, env work.Env) (work.Outcome, error) {
			return work.LoseEffect(v, id, env)
		})
		if err != nil {
			return err
		}
	}
	for _, id := range orphans {
		b.o.Logger.Warn("binding lost: its owner is not configured any more", "binding", id)
		if err := b.lose(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func (b *Outbox) lose(ctx context.Context, id frames.BindingID) error {
	return b.o.Writer.Change(ctx, nil, func(v work.View, env work.Env) (work.Outcome, error) {
		return work.LoseBinding(v, id, env)
	})
}

// attempts are all that is in the outbox.
func (b *Outbox) attempts() []frames.EffectAttemptID {
	b.mu.Lock()
	out := keys(b.lost)
	b.mu.Unlock()
	for _, p := range b.peers {
		p.mu.Lock()
		out = append(out, keys(p.effects)...)
		p.mu.Unlock()
	}
	return out
}

func keys[K comparable, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// Publish takes in one commit, in commit order. It never waits.
func (b *Outbox) Publish(batch store.Batch) {
	for i := range batch.Internal {
		var err error
		switch c := &batch.Internal[i]; {
		case c.Row.Record.Kind == work.EffectKind && c.Removed:
			b.forget(frames.EffectAttemptID(c.Row.Record.ID))
		case c.Row.Record.Kind == work.EffectKind:
			err = b.effect(c.Row)
		case c.Row.Record.Kind == work.ClaimKind && !c.Removed:
			err = b.claim(c.Row)
		}
		if err != nil {
			b.o.Logger.Error("outbox: a row of this server cannot be read", "err", err)
		}
	}
	for i := range batch.Events {
		ev := &batch.Events[i]
		if ev.Kind != frames.EventBindingOpened && ev.Kind != frames.EventBindingEnded {
			continue
		}
		var record frames.SnapshotRecord
		err := codec.DecodeImage(&record, ev.Payload)
		if err == nil {
			err = b.opened(&record)
		}
		if err != nil {
			b.o.Logger.Error("outbox: a binding of this server cannot be read", "err", err)
		}
	}
}

// effect notes a row of the outbox.
func (b *Outbox) effect(r store.Row) error {
	e, err := work.DecodeEffect(r.Annex)
	if err != nil {
		return err
	}
	fp, _ := e.Owner()
	if p := b.peers[fp]; p != nil {
		p.putEffect(&e)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost[e.Attempt.ID] = struct{}{}
	return nil
}

func (b *Outbox) forget(id frames.EffectAttemptID) {
	for _, p := range b.peers {
		p.dropEffect(id)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.lost, id)
}

// claim notes a run that ended without a binding.
func (b *Outbox) claim(r store.Row) error {
	c, err := work.DecodeClaim(r.Annex)
	if err != nil || !c.Ended {
		return err
	}
	if p := b.peers[c.Owner]; p != nil {
		p.giveUp(frames.BindingID(r.Record.ID))
	}
	return nil
}

// opened notes a binding that has become active, or has ended.
func (b *Outbox) opened(r *frames.SnapshotRecord) error {
	var binding frames.Binding
	if err := codec.Decode(&binding, r.Payload); err != nil {
		return err
	}
	ref := &binding.Binding
	active := binding.State == frames.StateActive
	if p := b.peers[ref.Owner]; p != nil {
		p.putBinding(ref, active)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if active {
		b.orphans[ref.BindingID] = struct{}{}
	} else {
		delete(b.orphans, ref.BindingID)
	}
	return nil
}
