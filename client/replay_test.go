package client

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
)

// replayOf is a replay that a script serves, with its faults.
type replayOf struct {
	cut    frames.EventCut
	events []frames.ReplayEvent
	per    int
	begin  func(*frames.ReplayBegin)
	page   func(*frames.ReplayPage)
	end    func(*frames.ReplayEnd)
	before func(stage string) // BEGIN has been sent, END is about to be, or APPLIED was read
	void   bool               // there is no APPLIED
}

// serve answers OPEN_REPLAY to REPLAY_APPLIED; ack says whether the last is accepted.
func (r *replayOf) serve(f *feed, ack bool) {
	p := f.peer
	open := take[*frames.OpenReplay](p)
	var pages [][]frames.ReplayEvent
	for left := r.events; len(left) > 0; {
		n := len(left)
		if r.per > 0 {
			n = min(n, r.per)
		}
		pages, left = append(pages, left[:n]), left[n:]
	}
	begin := &frames.ReplayBegin{RequestID: open.RequestID, ReplayID: frames.ReplayID{6}, SubscriptionID: open.SubscriptionID, Cut: r.cut}
	if len(pages) > 0 {
		begin.FirstCursor, begin.FirstEvent = []byte{0}, r.events[0].Sequence
	}
	if r.begin != nil {
		r.begin(begin)
	}
	p.send(begin)
	r.at("begun")
	rid := open.RequestID
	for i, events := range pages {
		n := take[*frames.ReplayNext](p)
		rid = n.RequestID
		page := &frames.ReplayPage{RequestID: rid, ReplayID: n.ReplayID, Cursor: n.Cursor, Index: uint32(i), Events: events}
		if i+1 < len(pages) {
			page.NextCursor = []byte{byte(i + 1)}
		}
		if r.page != nil {
			r.page(page)
		}
		p.send(page)
	}
	d := frames.NewReplayDigest(p.guard, open.SubscriptionID, open.After, r.cut, uint64(len(r.events)))
	for i := range r.events {
		if err := d.Add(&r.events[i]); err != nil {
			panic(err)
		}
	}
	end := &frames.ReplayEnd{RequestID: rid, ReplayID: begin.ReplayID, PageCount: uint32(len(pages)), EventCount: uint64(len(r.events)), Digest: d.Sum()}
	if r.end != nil {
		r.end(end)
	}
	r.at("ending")
	p.send(end)
	if r.void {
		return
	}
	applied := take[*frames.ReplayApplied](p)
	r.at("applied")
	if !ack {
		p.send(&frames.CoordError{RequestID: applied.RequestID, Code: frames.CodeCursorInvalid})
		return
	}
	f.last = frames.EventSequence(r.cut)
	p.send(&frames.Ack{RequestID: applied.RequestID})
}

func (r *replayOf) at(stage string) {
	if r.before != nil {
		r.before(stage)
	}
}

// missed are the events after event 5 of the scripts below.
func missed(n int) (out []frames.ReplayEvent) {
	for i := range n {
		out = append(out, change(frames.EventSequence(7+2*i), byte(i%3), frames.ObjectRevision(i/3+1)))
	}
	return out
}

// TestC13_ReplayResumes heals gaps of every size, the first before any event.
func TestC13_ReplayResumes(t *testing.T) {
	for _, tt := range []struct {
		name   string
		n, per int
	}{{"nothing was missed", 0, 0}, {"one page", 3, 0}, {"many pages", 20, 3}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			events := missed(tt.n)
			c := w.verified(func(p *peer) {
				f := p.feed()
				f.gap(frames.GapQueueOverflow)
				(&replayOf{cut: 50, events: events, per: tt.per}).serve(f, true)
				p.send(f.live(change(51, 9, 1)))
				p.recv()
			})
			s, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
			require.NoError(t, err)
			require.ErrorIs(t, s.Replay(t.Context()), ErrUnreadGap)
			require.Equal(t, frames.EventCut(0), next[*Gap](t, s).Last)
			require.NoError(t, s.Replay(t.Context()))
			require.ErrorIs(t, s.Replay(t.Context()), ErrUnreadGap, "it is healed")
			for _, want := range events {
				e := next[*Event](t, s)
				require.Equal(t, want.Sequence, e.Sequence)
				require.Equal(t, want.Payload, e.Payload)
				require.Zero(t, e.Delivery)
			}
			require.Eventually(t, s.waiting, time.Minute, time.Millisecond, "what came live waits behind the replay")
			e := next[*Event](t, s)
			require.Equal(t, frames.EventSequence(51), e.Sequence)
			require.Equal(t, frames.DeliverySequence(1), e.Delivery, "deliveries go on from the prior cut")
		})
	}
}

// A replay that cannot be read back to its end was shown as far as it was read, and no
// further: whoever resumes behind it misses nothing.
func TestC13_AReplayThatCannotBeReadBack(t *testing.T) {
	w := newWorld(t)
	c := w.verified(func(p *peer) {
		f := p.feed()
		f.gap(frames.GapQueueOverflow)
		(&replayOf{cut: 50, events: missed(3)}).serve(f, true)
		p.recv()
	})
	s, err := c.Subscribe(t.Context(), 0, SubscribeOptions{})
	require.NoError(t, err)
	next[*Gap](t, s)
	require.NoError(t, s.Replay(t.Context()))
	shown := frames.EventCut(next[*Event](t, s).Sequence)
	s.replayed.ahead, s.replayed.failed = nil, syscall.EIO
	_, err = s.Next(t.Context())
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, shown, s.Cut())
}

// TestC11_ReplayThatContradictsItself closes the connection and shows nothing.
func TestC11_ReplayThatContradictsItself(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault func(r *replayOf)
	}{
		{"another subscription", func(r *replayOf) { r.begin = func(b *frames.ReplayBegin) { b.SubscriptionID[0]++ } }},
		{"an end before its beginning", func(r *replayOf) { r.begin = func(b *frames.ReplayBegin) { b.Cut = 4 } }},
		{"another first event", func(r *replayOf) { r.begin = func(b *frames.ReplayBegin) { b.FirstEvent++ } }},
		{"no first event", func(r *replayOf) { r.begin = func(b *frames.ReplayBegin) { b.FirstEvent = 0 } }},
		{"another cut than digested", func(r *replayOf) { r.begin = func(b *frames.ReplayBegin) { b.Cut++ } }},
		{"bad digest", func(r *replayOf) { r.end = func(e *frames.ReplayEnd) { e.Digest[3] ^= 1 } }},
		{"too many events counted", func(r *replayOf) { r.end = func(e *frames.ReplayEnd) { e.EventCount++ } }},
		{"too few pages counted", func(r *replayOf) { r.end = func(e *frames.ReplayEnd) { e.PageCount-- } }},
		{"the end of another replay", func(r *replayOf) { r.end = func(e *frames.ReplayEnd) { e.ReplayID[0]++ } }},
		{"a page of another replay", func(r *replayOf) { r.page = func(p *frames.ReplayPage) { p.ReplayID[0]++ } }},
		{"a page for another cursor", func(r *replayOf) { r.page = func(p *frames.ReplayPage) { p.Cursor = []byte("x") } }},
		{"a page left out", func(r *replayOf) { r.page = func(p *frames.ReplayPage) { p.Index++ } }},
		{"events left out", func(r *replayOf) {
			r.page = func(p *frames.ReplayPage) {
				if p.Index == 1 {
					p.Events = p.Events[1:]
				}
			}
		}},
		{"events out of order", func(r *replayOf) {
			r.page = func(p *frames.ReplayPage) {
				if p.Index == 1 {
					p.Events = r.events[:2]
				}
			}
		}},
		{"an event behind its end", func(r *replayOf) { r.cut = 12 }},
		{"an event at its beginning", func(r *replayOf) { r.events[0].Sequence = 5 }},
		{"an event at another revision", func(r *replayOf) {
			r.page = func(p *frames.ReplayPage) {
				p.Events = append([]frames.ReplayEvent{}, p.Events...)
				p.Events[1].Revision += 9
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			r := &replayOf{cut: 50, events: missed(6), per: 3}
			tt.fault(r)
			c := w.verified(func(p *peer) {
				f := p.feed()
				f.gap(frames.GapQueueOverflow)
				r.serve(f, true)
			})
			s, err := c.Subscribe(t.Context(), 5, SubscribeOptions{})
			require.NoError(t, err)
			next[*Gap](t, s)
			err = s.Replay(t.Context())
			require.ErrorAs(t, err, new(*ReplayError))
			require.ErrorIs(t, c.Err(), ErrProtocol)
			updates, _ := rest(t, s)
			require.Empty(t, updates)
			require.Equal(t, frames.EventCut(5), s.Cut())
		})
	}
}

// TestReplayCutAtEveryFrame loses the connection within a replay: nothing of it is shown
// before it is whole.
func TestReplayCutAtEveryFrame(t *testing.T) {
	for at := 1; ; at++ {
		w := newWorld(t)
		n := 0
		count := func() {
			if n++; n == at {
				panic(errScript)
			}
		}
		c := w.verified(func(p *peer) {
			f := p.feed()
			f.gap(frames.GapQueueOverflow)
			r := &replayOf{cut: 50, events: missed(6), per: 2}
			r.begin = func(*frames.ReplayBegin) { count() }
			r.page = func(*frames.ReplayPage) { count() }
			r.end = func(*frames.ReplayEnd) { count() }
			r.before = func(stage string) {
				if stage == "applied" {
					count()
				}
			}
			r.serve(f, true)
			p.recv()
		})
		s, err := c.Subscribe(t.Context(), 5, SubscribeOptions{})
		require.NoError(t, err)
		next[*Gap](t, s)
		if err := s.Replay(t.Context()); err == nil {
			require.Equal(t, 7, at, "BEGIN, three pages, END and the ACK can each be lost")
			return
		}
		updates, err := rest(t, s)
		require.Error(t, err)
		require.Empty(t, updates)
	}
}

// TestReplayThatIsOvertaken meets a new gap at each stage [D-61]: what was verified is
// shown, the new gap is told, and the next replay leaves out what was shown.
func TestReplayThatIsOvertaken(t *testing.T) {
	for _, stage := range []string{"begun", "ending", "applied", "accepted"} {
		t.Run(stage, func(t *testing.T) {
			w := newWorld(t)
			all := missed(6)
			c := w.verified(func(p *peer) {
				f := p.feed()
				f.gap(frames.GapQueueOverflow)
				r := &replayOf{cut: 12, events: all[:3], void: stage == "ending"}
				r.before = func(s string) {
					switch {
					case s == "applied" && stage == "accepted":
						f.last = 12 // it was accepted, and the gap overtakes the ACK
						f.gap(frames.GapInternal)
					case s == stage:
						f.gap(frames.GapQueueOverflow)
					}
				}
				if stage == "begun" {
					begun := r.before
					r.before = func(s string) {
						begun(s)
						if s == "begun" {
							next := take[*frames.ReplayNext](p)
							p.send(&frames.CoordError{RequestID: next.RequestID, Code: frames.CodeCursorInvalid})
							panic("void")
						}
					}
				}
				func() {
					defer func() {
						if r := recover(); r != nil && r != "void" {
							panic(r)
						}
					}()
					r.serve(f, stage == "accepted")
				}()
				rest := all
				if stage == "accepted" {
					rest = all[3:]
				}
				(&replayOf{cut: 40, events: rest}).serve(f, true)
				p.send(f.live(change(41, 9, 1)))
				p.recv()
			})
			s, err := c.Subscribe(t.Context(), 5, SubscribeOptions{})
			require.NoError(t, err)
			next[*Gap](t, s)
			err = s.Replay(t.Context())
			if stage == "begun" {
				require.ErrorAs(t, err, new(*RefusedError))
			} else {
				require.NoError(t, err)
				for _, want := range all[:3] {
					require.Equal(t, want.Sequence, next[*Event](t, s).Sequence)
				}
			}
			next[*Gap](t, s)
			require.NoError(t, s.Replay(t.Context()))
			from := all[3:]
			if stage == "begun" {
				from = all
			}
			for _, want := range from {
				require.Equal(t, want.Sequence, next[*Event](t, s).Sequence)
			}
			require.Equal(t, frames.EventSequence(41), next[*Event](t, s).Sequence)
		})
	}
}

// TestReplayRefusedThenReplaced heals what the log no longer holds.
func TestReplayRefusedThenReplaced(t *testing.T) {
	w := newWorld(t)
	m := newModel(w)
	for range 5 {
		m.write()
	}
	c, err := Dial(t.Context(), w.pins, w.options(m.serve))
	require.NoError(t, err)
	snap, s, err := c.SnapshotAndSubscribe(t.Context(), SubscribeOptions{})
	require.NoError(t, err)
	require.NoError(t, snap.Close())
	require.Equal(t, m.head(), s.Cut())
	_, err = s.Replace(t.Context())
	require.ErrorIs(t, err, ErrUnreadGap)
	m.setFault(func(n int, mc *modelConn) bool {
		m.setFault(nil)
		m.mu.Lock()
		m.kept = len(m.log)
		m.mu.Unlock()
		mc.gap(frames.GapQueueOverflow)
		return false
	})
	m.write()
	next[*Gap](t, s)
	err = s.Replay(t.Context())
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, frames.CodeCursorInvalid, refused.Code)
	require.Equal(t, frames.GapRetention, next[*Gap](t, s).Reason)
	snap, err = s.Replace(t.Context())
	require.NoError(t, err)
	require.NoError(t, snap.Close())
	m.write()
	e := next[*Event](t, s)
	require.Equal(t, frames.DeliverySequence(1), e.Delivery, "a new subscription begins anew")
	require.Equal(t, frames.EventSequence(m.head()), e.Sequence)
	require.NoError(t, c.Close())
	require.True(t, errors.Is(c.Err(), ErrClosed))
}
