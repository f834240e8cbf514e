package outbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"coordinator/frames"
	"coordinator/internal/failpoint"
	"coordinator/owner"
	"coordinator/server/commit"
	"coordinator/server/work"
)

// An inbox is what the link's reader and the writer have left for the session.
type inbox struct {
	streams  map[frames.BindingID]*stream
	dirty    map[frames.BindingID]struct{} // streams with something to do
	deciding int                           // changes under way, at most factChanges
	reported []frames.BindingID            // by BINDINGS, to be judged
	decided  []decision
	broken   error // the owner does not keep to the link
}

// A stream is the facts of one binding on one link.
type stream struct {
	queue []*frames.TerminalSourceFact // at most the credit
	left  uint32                       // credit that the owner has
	busy  bool                         // a change is under way
	ended bool                         // nothing more will come [D-53]
	over  bool                         // given up
}

// A decision is facts that are durable, or that the writer did not take.
type decision struct {
	binding frames.BindingID
	through uint64
	n       uint32
	err     error
	notable []string // verdicts that somebody should know of
}

func newInbox() inbox {
	return inbox{streams: make(map[frames.BindingID]*stream), dirty: make(map[frames.BindingID]struct{})}
}

// Causes of a link's end that are the owner's fault.
var (
	errOverCredit = errors.New("the owner sent facts without credit")
	errBadFact    = errors.New("the owner sent a fact of bad form")
	errOverReport = errors.New("the owner reported more bindings than can be")
)

// onBindings also tells that the owner has taken the authority.
func (s *session) onBindings(ids []frames.BindingID) {
	s.mu.Lock()
	first, inc := !s.accepted, s.inc
	s.accepted = true
	if len(s.inbox.reported)+len(ids) > maxReported {
		s.inbox.broken = errOverReport
	} else {
		s.inbox.reported = append(s.inbox.reported, ids...)
	}
	s.mu.Unlock()
	signal(s.p.factWake)
	if first {
		s.p.b.meters.Links.Add(1)
		s.p.log.Info("owner link up", "incarnation", inc)
	}
}

func (s *session) onFact(f *frames.TerminalSourceFact) {
	_, bad := f.DecodePayload() // what the writer cannot decide on would stop it
	s.mu.Lock()
	defer s.mu.Unlock()
	id := f.Source.BindingID
	st := s.inbox.streams[id]
	switch {
	case st == nil: // it was on its way when the binding was given up
		return
	case bad != nil:
		s.inbox.broken = errBadFact
	case st.left == 0:
		s.inbox.broken = errOverCredit
	default:
		st.left--
		st.queue = append(st.queue, f)
		s.inbox.dirty[id] = struct{}{}
	}
	signal(s.p.factWake)
}

// onFactsEnd also stands for NOT_FOUND: either way nothing more will come.
func (s *session) onFactsEnd(id frames.BindingID, _ uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.inbox.streams[id]; st != nil {
		st.ended = true
		s.inbox.dirty[id] = struct{}{}
	}
	signal(s.p.factWake)
}

// runFacts opens the streams of active bindings, has their facts decided in order and
// acknowledges what is durable. It alone sends on the link what concerns facts, but for the
// openings.
func (s *session) runFacts(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opening := new(errgroup.Group)
	opening.SetLimit(openWorkers)
	err := s.pumpFacts(ctx, func(id frames.BindingID, inc frames.IncarnationID) {
		opening.Go(func() error { s.open(ctx, id, inc); return nil })
	})
	cancel() // an opening may wait for a reply that never comes
	return errors.Join(err, opening.Wait())
}

func (s *session) pumpFacts(ctx context.Context, open func(frames.BindingID, frames.IncarnationID)) error {
	for {
		fresh, over := s.p.takeBindings()
		for id, inc := range fresh {
			open(id, inc)
		}
		if err := s.acknowledge(ctx); err != nil {
			return err
		}
		if err := s.release(ctx, over); err != nil {
			return err
		}
		if err := s.decide(ctx); err != nil {
			return err
		}
		select {
		case <-s.p.factWake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// open asks for the facts of an active binding behind the last admitted one. An error ends the
// link through the wake of the pump.
func (s *session) open(ctx context.Context, id frames.BindingID, inc frames.IncarnationID) {
	if err := s.openStream(ctx, id, inc); err != nil {
		s.mu.Lock()
		s.inbox.broken = err
		s.mu.Unlock()
		signal(s.p.factWake)
	}
}

func (s *session) openStream(ctx context.Context, id frames.BindingID, inc frames.IncarnationID) error {
	status, err := s.status(ctx, id)
	if err != nil || status.State != work.BindingActive {
		return err
	}
	if err := s.mayAct(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if s.inbox.streams[id] != nil {
		s.mu.Unlock()
		return nil // it is open
	}
	s.inbox.streams[id] = &stream{left: factCredit}
	s.mu.Unlock()
	err = s.link.OpenFacts(ctx, s.p.b.o.Fence.Guard(), id, status.After, factCredit)
	var refused *owner.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Code == frames.CodeNotFound && inc == s.inc:
		// The very incarnation that opened it does not know it: nothing will come, and nobody
		// may guess. END_BINDING, or that owner's restart, ends it.
		s.p.log.Error("the owner does not hold an active binding of its own", "binding", id)
		return nil
	case errors.As(err, &refused) && refused.Code == frames.CodeNotFound:
		s.onFactsEnd(id, 0)
		return nil
	}
	return err
}

// status judges a binding on what is durable now.
func (s *session) status(ctx context.Context, id frames.BindingID) (st work.BindingStatus, err error) {
	err = s.p.b.o.Writer.Read(ctx, work.StatusRefs(id), func(v work.View) (err error) {
		st, err = work.StatusOf(v, id)
		return err
	})
	return st, err
}

// acknowledge sends FACT_ACK for what is durable, in the order of the decisions.
func (s *session) acknowledge(ctx context.Context) error {
	s.mu.Lock()
	decided, broken := s.inbox.decided, s.inbox.broken
	s.inbox.decided = nil
	s.mu.Unlock()
	for _, d := range decided {
		if d.err != nil {
			return d.err
		}
		for _, text := range d.notable {
			s.p.log.Warn("source fact not admitted", "binding", d.binding, "fact", text)
		}
		s.p.b.meters.Facts.Add(uint64(d.n))
		s.p.b.meters.Notable.Add(uint64(len(d.notable)))
		failpoint.Hit("facts-committed")
		if err := s.mayAct(ctx); err != nil {
			return err
		}
		s.mu.Lock()
		s.inbox.streams[d.binding].left += d.n // a stream stays while it is busy
		s.mu.Unlock()
		if err := s.link.FactAck(ctx, d.binding, d.through, d.n); err != nil {
			return err
		}
		failpoint.Hit("facts-acknowledged")
		s.mu.Lock()
		s.inbox.streams[d.binding].busy = false
		s.inbox.deciding--
		s.inbox.dirty[d.binding] = struct{}{}
		s.mu.Unlock()
	}
	return broken
}

// release gives up what the owner reports and nobody wants, and what has ended [D-45]. Each is
// judged when it is sent.
func (s *session) release(ctx context.Context, over []frames.BindingID) error {
	s.mu.Lock()
	over = append(over, s.inbox.reported...)
	s.inbox.reported = nil
	s.mu.Unlock()
	for _, id := range over {
		status, err := s.status(ctx, id)
		if err != nil {
			return err
		}
		if status.State != work.BindingForeign && status.State != work.BindingOver {
			continue
		}
		if status.State == work.BindingForeign {
			s.p.log.Warn("giving up a process that no run of this store has", "binding", id)
		}
		if err := s.mayAct(ctx); err != nil {
			return err
		}
		if err := s.link.FactAck(ctx, id, math.MaxUint64, 0); err != nil {
			return err
		}
		s.mu.Lock()
		if st := s.inbox.streams[id]; st != nil {
			st.over = true
			s.inbox.dirty[id] = struct{}{}
		}
		s.mu.Unlock()
	}
	return nil
}

// decide proposes what waits, one change at a time for each binding so that its facts keep
// their order, and ends the bindings of former incarnations that have nothing left.
func (s *session) decide(ctx context.Context) error {
	type portion struct {
		id    frames.BindingID
		facts []*frames.TerminalSourceFact
	}
	var some []portion
	var lost []frames.BindingID
	s.mu.Lock()
	for id := range s.inbox.dirty {
		switch st := s.inbox.streams[id]; {
		case st == nil || st.busy: // looked at again when it is not
		case st.over:
			delete(s.inbox.streams, id)
		case len(st.queue) > 0 && s.inbox.deciding == factChanges:
			continue // it stays dirty until there is room
		case len(st.queue) > 0:
			s.inbox.deciding++
			n := min(len(st.queue), factBatch)
			some = append(some, portion{id, slices.Clone(st.queue[:n])})
			st.queue = slices.Delete(st.queue, 0, n)
			st.busy = true
		case st.ended:
			lost = append(lost, id)
			delete(s.inbox.streams, id)
		}
		delete(s.inbox.dirty, id)
	}
	s.mu.Unlock()
	for _, t := range some {
		if err := s.propose(t.id, t.facts); err != nil {
			return err
		}
	}
	for _, id := range lost {
		if inc, ok := s.p.active(id); !ok || inc == s.inc {
			continue // it has ended, or its owner is there
		}
		s.p.log.Warn("binding lost: its owner has restarted", "binding", id)
		if err := s.p.b.lose(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// propose has facts of one binding decided. Its reply comes on the writer's goroutine.
func (s *session) propose(id frames.BindingID, facts []*frames.TerminalSourceFact) error {
	bytes := 0
	for _, f := range facts {
		bytes += len(f.Payload)
	}
	d := decision{binding: id, n: uint32(len(facts))}
	for _, f := range facts {
		d.through = max(d.through, uint64(f.Source.Sequence))
	}
	from := s.p.own.Fingerprint
	var verdicts []work.Verdict
	amendment := commit.Domain(work.StatusRefs(id), len(facts), bytes, func(v work.View, env work.Env) (out work.Outcome, err error) {
		out, verdicts, err = work.AdmitFacts(v, from, facts, env)
		return out, err
	})
	return s.p.b.o.Writer.Amend(amendment, func(err error) {
		for i, v := range verdicts {
			if err == nil && v != work.FactAdmitted && v != work.FactDuplicate {
				d.notable = append(d.notable, fmt.Sprintf("%d %v", facts[i].Source.Sequence, v))
			}
		}
		d.err = err
		s.mu.Lock()
		s.inbox.decided = append(s.inbox.decided, d)
		s.mu.Unlock()
		signal(s.p.factWake)
	})
}
