package main

import (
	"bytes"
	"slices"
	"sync"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
)

// fakeBase is the event head that a fake begins with.
const fakeBase = 5

// A fakeLog is the event log of a fake and who follows it. Its records are the fake's.
type fakeLog struct {
	mu sync.Mutex
	// retained are the events that happened. Those up to and with removed are gone.
	retained []frames.CoordEvent
	removed  frames.EventCut
	subs     []*fakeSub
	made     byte // subscriptions
}

// A fakeSub is one subscription of one connection.
type fakeSub struct {
	c        *fakeConn
	id       frames.SubscriptionID
	live     bool
	pos      frames.EventCut
	delivery frames.DeliverySequence
	credit   int64 // in events
}

func (l *fakeLog) headLocked() frames.EventCut { return fakeBase + frames.EventCut(len(l.retained)) }

// happen makes an event that leaves a record behind, or removes it.
func (f *fake) happen(kind frames.EventKind, r frames.SnapshotRecord) {
	image, err := codec.EncodeImage(nil, &r)
	if kind == frames.EventObjectRemoved {
		ref := r.Ref()
		image, err = codec.EncodeImage(nil, &ref)
	}
	require.NoError(f.t, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	seq := frames.EventSequence(f.headLocked()) + 1
	f.retained = append(f.retained, frames.CoordEvent{Sequence: seq, EventID: frames.EventID{byte(seq)}, Kind: kind, Object: r.Ref(), Revision: r.Revision, Schema: 1, Payload: image})
	f.records = slices.DeleteFunc(slices.Clone(f.records), func(old frames.SnapshotRecord) bool { return old.Ref() == r.Ref() })
	if kind != frames.EventObjectRemoved {
		r.Payload = bytes.Clone(r.Payload)
		f.records = append(f.records, r)
		slices.SortFunc(f.records, func(a, b frames.SnapshotRecord) int { return a.Ref().Compare(b.Ref()) })
	}
	for _, s := range f.subs {
		f.deliverLocked(s)
	}
}

// deliverLocked sends what a subscription has not had.
func (l *fakeLog) deliverLocked(s *fakeSub) {
	for _, e := range l.retained {
		if !s.live || s.credit == 0 || e.Sequence <= frames.EventSequence(s.pos) {
			continue
		}
		s.credit--
		s.delivery++
		s.pos = frames.EventCut(e.Sequence)
		e.SubscriptionID, e.Delivery = s.id, s.delivery
		s.c.send(&e)
	}
}

func (l *fakeLog) reserve(c *fakeConn, base frames.EventCut) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs = append(l.subs, &fakeSub{c: c, id: frames.SubscriptionID{2}, pos: base})
}

func (l *fakeLog) applied(c *fakeConn, fr *frames.SnapshotApplied) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.send(&frames.Ack{RequestID: fr.RequestID})
	for _, s := range l.subs {
		if s.c == c {
			s.live, s.credit = true, int64(fr.CreditCount)
			l.deliverLocked(s)
		}
	}
}

func (l *fakeLog) subscribe(c *fakeConn, fr *frames.Subscribe) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made++
	s := &fakeSub{c: c, id: frames.SubscriptionID{3, l.made}, live: true, pos: fr.After, credit: int64(fr.CreditCount)}
	c.send(&frames.Subscribed{RequestID: fr.RequestID, SubscriptionID: s.id, NextDelivery: 1})
	if fr.After < l.removed {
		c.send(&frames.Gap{SubscriptionID: s.id, LastEvent: fr.After, Reason: frames.GapRetention})
		return
	}
	l.subs = append(l.subs, s)
	l.deliverLocked(s)
}

func (l *fakeLog) credited(c *fakeConn, fr *frames.Credit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.subs {
		if s.c == c && s.id == fr.SubscriptionID {
			s.credit += int64(fr.AddCount)
			l.deliverLocked(s)
		}
	}
}

// leave forgets a connection.
func (l *fakeLog) leave(c *fakeConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subs = slices.DeleteFunc(l.subs, func(s *fakeSub) bool { return s.c == c })
}

// followers are how many subscriptions are live.
func (l *fakeLog) followers() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.subs {
		if s.live {
			n++
		}
	}
	return n
}

// cut ends every connection, as a restart does.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.subs {
		s.c.nc.Close()
	}
}
