package stream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/server/quota"
	"coordinator/server/store"
)

// TestEverythingAtOnce runs the room as the server does: one writer, one counter and
// the goroutines of many connections. Every client heals itself and checks that it
// misses nothing.
func TestEverythingAtOnce(t *testing.T) {
	b := newBenchIn(t, t.TempDir(), 64<<10, 32<<10)
	b.quota(func(l *quota.Limits) {
		l[quota.OfConnection][quota.UnsentFrames] = 64
		l[quota.OfPrincipal][quota.UnsentFrames] = 256
	})
	b.viewer.Capabilities &^= frames.CapAdministration
	var writing sync.Mutex // the test has no writer of its own
	b.m.o.Do = func(_ context.Context, f func(*store.Store) error) error {
		writing.Lock()
		defer writing.Unlock()
		return f(b.store)
	}
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- b.m.Run(ctx) }()
	const clients, writes = 8, 1500
	var group sync.WaitGroup
	problems := make(chan error, clients)
	for i := range clients {
		s := b.session()
		group.Go(func() {
			c := &racer{b: b, s: s, rng: rand.New(rand.NewPCG(uint64(i), 1))}
			if err := c.follow(writes); err != nil {
				problems <- fmt.Errorf("client %d: %w", i, err)
			}
			s.Close() // while others go on
		})
	}
	for range writes {
		writing.Lock()
		b.put(newID[frames.ObjectID](t), 1, 40)
		writing.Unlock()
	}
	group.Wait()
	cancel()
	require.NoError(t, <-running)
	close(problems)
	for err := range problems {
		t.Error(err)
	}
	for _, r := range []quota.Resource{quota.Leases, quota.PinnedBytes, quota.Subscriptions, quota.UnsentFrames, quota.UnsentBytes} {
		_, used := b.quotas.Use(quota.Principal(b.viewer.Principal), r)
		require.Zero(t, used, r)
	}
	require.Zero(t, b.m.Open())
	require.Empty(t, b.m.groups)
	stats, err := b.store.Stats()
	require.NoError(t, err)
	require.Zero(t, stats.OpenReplays)
}

// A racer follows one subscription.
type racer struct {
	b   *bench
	s   *Session
	rng *rand.Rand

	last frames.EventSequence // the newest that was had
}

// follow reads until it has every event up to through, healing each GAP.
func (c *racer) follow(through frames.EventSequence) error {
	r, err := c.s.Subscribe(&frames.Subscribe{RequestID: 1, CreditCount: 10, CreditBytes: plentyBytes / 2})
	if err != nil {
		return err
	}
	r.Sent()
	id := r.Frames[0].(*frames.Subscribed).SubscriptionID
	for c.last < through {
		gap, err := c.read(id)
		if err != nil {
			return err
		}
		if gap == nil {
			continue
		}
		if frames.EventSequence(gap.LastEvent) > c.last {
			return fmt.Errorf("GAP behind %d, but %d is the last event", gap.LastEvent, c.last)
		}
		if err := c.heal(id, gap); err != nil {
			return err
		}
	}
	return nil
}

// take checks that events come without a hole.
func (c *racer) take(seq frames.EventSequence) error {
	if seq != c.last+1 {
		return fmt.Errorf("event %d follows %d", seq, c.last)
	}
	c.last = seq
	return nil
}

// read pulls once and grants what was used, or plenty, or nothing.
func (c *racer) read(id frames.SubscriptionID) (gap *frames.Gap, err error) {
	c.s.Fetch(64, 16<<10)
	var raw []byte
	c.s.Gaps(func(frame []byte) { raw = append(raw, frame...) })
	c.s.Pull(Batch{Frames: 1 + c.rng.IntN(64), Bytes: 16 << 10, Emit: func(head, tail []byte) { raw = append(append(raw, head...), tail...) }})
	for _, f := range c.b.decode(raw) {
		switch f := f.(type) {
		case *frames.Gap:
			gap = f
		case *frames.CoordEvent:
			if err := c.take(f.Sequence); err != nil {
				return nil, err
			}
		}
	}
	c.s.mu.Lock()
	count := c.s.find(id).count
	c.s.mu.Unlock()
	c.s.Stalled(c.rng.IntN(8) == 0)
	return gap, c.s.Credit(&frames.Credit{SubscriptionID: id, AddCount: min(uint32(c.rng.IntN(40)), plentyEvents-count)})
}

// heal replays until a replay is not overtaken.
func (c *racer) heal(id frames.SubscriptionID, gap *frames.Gap) error {
	r, err := c.s.OpenReplay(&frames.OpenReplay{RequestID: 1, SubscriptionID: id, After: gap.LastEvent})
	if frames.CodeOf(err) == frames.CodeCursorInvalid {
		return nil // overtaken while it was opened: another GAP comes
	}
	if err != nil {
		return err
	}
	r.Sent()
	begin := r.Frames[0].(*frames.ReplayBegin)
	for cursor := begin.FirstCursor; cursor != nil; {
		r, err := c.s.ReplayNext(&frames.ReplayNext{RequestID: 1, ReplayID: begin.ReplayID, Cursor: cursor})
		if frames.CodeOf(err) == frames.CodeCursorInvalid {
			return nil // overtaken: another GAP comes
		}
		if err != nil {
			return err
		}
		page, err := pageOf(r)
		if err != nil {
			return err
		}
		if r.Then != nil {
			r.Then()
		}
		for i := range page.Events {
			if seq := page.Events[i].Sequence; seq > c.last {
				if err := c.take(seq); err != nil {
					return err
				}
			}
		}
		cursor = page.NextCursor
	}
	r, err = c.s.ReplayApplied(&frames.ReplayApplied{
		RequestID: 1, ReplayID: begin.ReplayID, SubscriptionID: id, CreditCount: 50, CreditBytes: plentyBytes / 2,
	})
	if frames.CodeOf(err) == frames.CodeCursorInvalid {
		return nil
	}
	if err == nil && r.Sent != nil { // nil when it gapped again meanwhile
		r.Sent()
	}
	return err
}

func pageOf(r Reply) (*frames.ReplayPage, error) {
	f, err := frames.Decode(frames.TypeReplayPage, r.Page[codec.HeaderSize:])
	if err != nil {
		return nil, err
	}
	return f.(*frames.ReplayPage), nil
}
