package own

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/frames"
)

// readRecords is how many records a snapshot carries and how many events a replay.
const readRecords = 100_000

// reading measures verified snapshots over both transports and verified replay.
func reading(ctx context.Context, e *measure.Env) error {
	r, err := startRig(ctx, e, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	n := e.Amount(readRecords, 2000)
	if err := r.fill(ctx, n, n); err != nil {
		return err
	}
	for range 5 {
		if err := r.snapshot(ctx, e, r.unix, "own.snapshot", n); err != nil {
			return err
		}
		if err := r.snapshot(ctx, e, r.quic, "own.snapshot.quic", n); err != nil {
			return err
		}
		if err := r.replay(ctx, e, n); err != nil {
			return err
		}
	}
	return nil
}

// snapshot takes one verified snapshot of n objectives, and records its rate in bytes of
// record images, each of which both ends hash.
func (r *rig) snapshot(ctx context.Context, e *measure.Env, where *client.Context, name string, n int) error {
	c, err := r.dial(ctx, where, client.Options{Offered: frames.CapWithoutOperations})
	if err != nil {
		return err
	}
	defer c.Close()
	before := e.Probe(r.pid())
	s, err := c.Snapshot(ctx)
	if err != nil {
		return err
	}
	after := e.Probe(r.pid())
	defer s.Close()
	if s.Records < uint64(n) {
		return fmt.Errorf("%s: %d records of %d", name, s.Records, n)
	}
	size := 0
	if err := s.EachImage(func(image []byte) error { size += len(image); return nil }); err != nil {
		return err
	}
	took := after.At.Sub(before.At).Seconds()
	e.Rec.Add(name, "MB/s", float64(size)/1e6/took)
	e.Rec.Add(name+".records", "records/s", float64(s.Records)/took)
	e.Rec.Add(name+".record_size", "B", float64(size)/float64(s.Records))
	e.Rec.Add(name+".server_cpu", "µs/record", (after.Server-before.Server).Seconds()*1e6/float64(s.Records))
	e.Rec.Add(name+".client_cpu", "µs/record", (after.Self-before.Self).Seconds()*1e6/float64(s.Records))
	return nil
}

// replay reads n events from the beginning of the log, verified before the first is shown:
// from the subscription, whose gap a replay heals, to the last event.
func (r *rig) replay(ctx context.Context, e *measure.Env, n int) error {
	c, err := r.dial(ctx, r.unix, client.Options{Offered: frames.CapWithoutOperations | frames.CapEventReplay})
	if err != nil {
		return err
	}
	defer c.Close()
	began := time.Now()
	sub, err := c.Subscribe(ctx, 0, client.SubscribeOptions{})
	if err != nil {
		return err
	}
	byReplay := 0
	for got := 0; got < n; {
		u, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		switch u := u.(type) {
		case *client.Event:
			if got++; u.Delivery == 0 {
				byReplay++
			}
		case *client.Gap:
			if err := sub.Replay(ctx); err != nil {
				return fmt.Errorf("%v: %w", u, err)
			}
		}
	}
	took := time.Since(began).Seconds()
	if byReplay < n/2 {
		return errors.New("own.replay: the events came live and not by replay")
	}
	e.Rec.Add("own.replay", "events/s", float64(n)/took)
	return nil
}
