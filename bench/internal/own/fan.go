package own

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// A transport says over what a load runs: its name in figures, and the context to dial.
type transport struct {
	name  string
	where func(*rig) *client.Context
}

var (
	overUnix = transport{"own.fan", func(r *rig) *client.Context { return r.unix }}
	overQUIC = transport{"own.quicfan", func(r *rig) *client.Context { return r.quic }}
)

// fanObjectives is how many objectives the published updates go round, as the peers' keys.
const fanObjectives = 1000

// fanQuotas lets one principal have n subscribers beside the writers, each as far behind as
// one subscription may be.
func fanQuotas(n int) map[string]int {
	const perSubscription, bytesPerSubscription = 1024, 4 << 20
	return map[string]int{
		"connections": n + 2*writers, "subscriptions": max(n, 64),
		"unsent_frames": max(n*perSubscription, 65_536), "unsent_bytes": max(n*bytesPerSubscription, 256<<20),
	}
}

// fan fans updates of objectives out to n subscribers, each on a connection of its own. A
// subscriber that is told of a gap heals it by replay, and what comes by that counts.
func fan(over transport, n int) func(context.Context, *measure.Env) error {
	return func(ctx context.Context, e *measure.Env) error {
		quotas := fanQuotas(n)
		r, err := startRig(ctx, e, quotas)
		if err != nil {
			return err
		}
		defer r.stop()
		return r.fan(ctx, e, over, fmt.Sprintf("%s%d", over.name, n), n, quotas, e.FanBoth)
	}
}

// A fanLoad publishes to subscribers: [measure.Env.FanBoth], or a part of it.
type fanLoad func(ctx context.Context, name string, subs []*measure.Subscriber, pid int, publish func(int, []byte) error) error

func (r *rig) fan(ctx context.Context, e *measure.Env, over transport, name string, n int, quotas map[string]int, load fanLoad) error {
	publishers, closePublishers, err := r.dialAll(ctx, r.unix, writers, client.Options{})
	if err != nil {
		return err
	}
	defer closePublishers()
	objectives, err := makeObjectives(ctx, publishers[0])
	if err != nil {
		return err
	}
	audience, err := r.subscribe(ctx, over.where(r), n)
	if err != nil {
		return err
	}
	defer audience.stop()
	ws := newWorkers(publishers, 64)
	var next atomic.Uint64
	err = load(ctx, name, audience.subs, r.pid(), func(w int, event []byte) error {
		worker := ws[w]
		worker.objective = objectives[next.Add(1)%fanObjectives]
		return worker.update(ctx, event)
	})
	for _, load := range []string{".f1", ".f64"} {
		e.Rec.Note(name+load, quotaText(quotas))
	}
	return errors.Join(err, audience.failure())
}

// makeObjectives makes what the updates go round.
func makeObjectives(ctx context.Context, c *client.Conn) ([]frames.ObjectiveID, error) {
	w := newWorkers([]*client.Conn{c}, 1)[0]
	ids := make([]frames.ObjectiveID, fanObjectives)
	for i := range ids {
		if err := w.create(ctx, w.value); err != nil {
			return nil, err
		}
		ids[i] = w.objective
	}
	return ids, nil
}

// An audience is subscribers that take every event of objectives.
type audience struct {
	subs     []*measure.Subscriber
	conns    []*client.Conn
	closeAll func()
	cancel   context.CancelFunc
	taking   sync.WaitGroup
	failed   atomic.Pointer[error]
}

// subscribe attaches n subscribers behind what there is now.
func (r *rig) subscribe(ctx context.Context, where *client.Context, n int) (*audience, error) {
	a := &audience{subs: measure.NewSubscribers(n)}
	var err error
	a.conns, a.closeAll, err = r.dialAll(ctx, where, n, client.Options{Offered: frames.CapWithoutOperations | frames.CapEventReplay})
	if err != nil {
		return nil, err
	}
	s, err := a.conns[0].Snapshot(ctx)
	if err != nil {
		a.closeAll()
		return nil, err
	}
	base := s.Base
	s.Close() //nolint:errcheck // only its cut is needed
	ctx, a.cancel = context.WithCancel(ctx)
	for i, c := range a.conns {
		sub, err := c.Subscribe(ctx, base, client.SubscribeOptions{})
		if err != nil {
			a.stop()
			return nil, err
		}
		a.taking.Go(func() {
			if err := take(ctx, sub, a.subs[i]); ctx.Err() == nil {
				a.failed.CompareAndSwap(nil, &err)
			}
		})
	}
	return a, nil
}

func (a *audience) stop() {
	a.cancel()
	a.taking.Wait()
	a.closeAll()
}

// failure is why a subscriber ended before it was told to.
func (a *audience) failure() error {
	if err := a.failed.Load(); err != nil {
		return fmt.Errorf("a subscriber ended: %w", *err)
	}
	return nil
}

// take delivers to one subscriber until ctx ends or something fails.
func take(ctx context.Context, sub *client.Subscription, to *measure.Subscriber) error {
	var f finder
	for {
		u, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		switch u := u.(type) {
		case *client.Event:
			document, err := f.document(u)
			if err != nil {
				return err
			}
			to.Take(document, measure.Now(), uint64(u.Sequence))
		case *client.Gap:
			to.Gap()
			if err := sub.Replay(ctx); err != nil {
				return fmt.Errorf("%v: %w", u, err)
			}
		}
	}
}

// A finder finds the document of an objective in its event. The records of one load are
// laid out alike, so that only the first is decoded.
type finder struct{ size, offset int }

func (f *finder) document(e *client.Event) ([]byte, error) {
	if len(e.Payload) != f.size {
		record, _, err := e.Record()
		if err != nil {
			return nil, err
		}
		var o frames.Objective
		if err := codec.Decode(&o, record.Payload); err != nil {
			return nil, err
		}
		if f.size, f.offset = len(e.Payload), bytes.Index(e.Payload, o.Document); len(o.Document) != measure.ValueSize {
			return nil, fmt.Errorf("event %d carries a document of %d bytes", e.Sequence, len(o.Document))
		}
	}
	return e.Payload[f.offset:][:measure.ValueSize], nil
}
