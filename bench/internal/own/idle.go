package own

import (
	"context"
	"fmt"
	"time"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/frames"
)

const (
	idleConns         = 256
	idleSubscriptions = 2048
	// settleReps is how many looks in a row must find no less memory before it counts. Together
	// they take longer than the coordinator waits after a load until it gives memory back.
	settleReps = 30
	settleStep = 200 * time.Millisecond
)

// idleQuotas lets one principal have all that the server as shipped has.
func idleQuotas() map[string]int {
	return map[string]int{"connections": idleConns + writers, "subscriptions": idleSubscriptions + idleConns, "leases": idleConns}
}

// idle measures what connections and subscriptions cost that do nothing: memory and CPU.
func idle(ctx context.Context, e *measure.Env) error {
	quotas := idleQuotas()
	r, err := startRig(ctx, e, quotas)
	if err != nil {
		return err
	}
	defer r.stop()
	// One of everything first, so that what is made once is there.
	warm, closeWarm, err := r.dialAll(ctx, r.unix, writers, client.Options{})
	if err != nil {
		return err
	}
	defer closeWarm()
	if err := subscribeIdle(ctx, warm, 1); err != nil {
		return err
	}
	before, err := r.settled(ctx)
	if err != nil {
		return err
	}
	conns, closeAll, err := r.dialAll(ctx, r.unix, idleConns, client.Options{Offered: frames.CapWithoutOperations})
	if err != nil {
		return err
	}
	defer closeAll()
	connected, err := r.settled(ctx)
	if err != nil {
		return err
	}
	if err := subscribeIdle(ctx, conns, idleSubscriptions/idleConns); err != nil {
		return err
	}
	subscribed, err := r.settled(ctx)
	if err != nil {
		return err
	}
	e.Rec.Add("own.idle.connection", "KiB", float64(connected-before)/idleConns/1024)
	e.Rec.Add("own.idle.subscription", "KiB", float64(subscribed-connected)/idleSubscriptions/1024)
	e.Rec.Note("own.idle.connection", quotaText(quotas))
	for range 3 {
		a := e.Probe(r.pid())
		measure.Sleep(ctx, e.Window(1500))
		b := e.Probe(r.pid())
		e.Rec.Add("own.idle.cpu", "% of a core", 100*(b.Server-a.Server).Seconds()/b.At.Sub(a.At).Seconds())
	}
	return ctx.Err()
}

func subscribeIdle(ctx context.Context, conns []*client.Conn, each int) error {
	for _, c := range conns {
		for range each {
			if _, err := c.Subscribe(ctx, 0, client.SubscribeOptions{CreditCount: 1}); err != nil {
				return fmt.Errorf("subscribe: %w", err)
			}
		}
	}
	return nil
}

// settled is the coordinator's memory once it does not shrink any more.
func (r *rig) settled(ctx context.Context) (int64, error) {
	least, same := int64(0), 0
	for same < settleReps {
		measure.Sleep(ctx, settleStep)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		now, err := measure.RSSAnon(r.pid())
		if err != nil {
			return 0, err
		}
		if same++; least == 0 || now < least {
			least, same = now, 0
		}
	}
	return least, nil
}
