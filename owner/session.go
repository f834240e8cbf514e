package owner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"coordinator/frames"
	"coordinator/handshake/link"
)

const (
	// maxRequests bounds what one connection may have outstanding, and maxReads its reads of
	// output among them. More are RESOURCE_EXHAUSTED.
	maxRequests = 128
	maxReads    = 16
	// factPage is how many facts are read from the journal at once.
	factPage = 64
)

// A session is one proved connection of the owner link.
type session struct {
	o *Owner
	c *link.Conn

	claim   *claim // owned by the reader; nil before the first AUTHORITY
	holding bool   // owned by the reader; claimAuthority was called
	feeding bool   // owned by the reader; feed runs

	ready chan struct{} // one slot: some stream may have facts to send

	mu       sync.Mutex
	requests int                           // guarded by mu
	reads    int                           // guarded by mu
	streams  map[frames.BindingID]*stream  // guarded by mu
	due      map[frames.BindingID]struct{} // guarded by mu; streams to look at
}

// A stream sends one binding's facts as far as its credit goes.
type stream struct {
	after  uint64 // guarded by the session's mu; the last that was sent
	credit uint64 // guarded by the session's mu
	moved  uint64 // guarded by the session's mu; counts OPEN_FACTS
}

func newSession(o *Owner, c *link.Conn) *session {
	return &session{o: o, c: c, ready: make(chan struct{}, 1),
		streams: map[frames.BindingID]*stream{}, due: map[frames.BindingID]struct{}{}}
}

// acts says whether the connection's scope is more than reading output. It then needs an
// authority.
func (s *session) acts() bool { return s.c.Scope()&(ScopeEffects|ScopeFacts) != 0 }

// Accepts says which frames may come: of one that acts, nothing before its AUTHORITY; of one
// that only reads, no AUTHORITY and nothing that depends on one without a reply.
func (s *session) Accepts(t frames.Type) bool {
	switch t {
	case TypeAuthority:
		return s.acts()
	case TypeFactAck:
		return s.claim != nil && s.c.Scope()&ScopeFacts != 0
	case TypeDispatchEffect, TypeGetEffect, TypeOpenFacts, TypeReadOutput:
		return s.claim != nil || !s.acts()
	}
	return false
}

// Handle carries out one frame. What may take longer goes on beside the reader.
func (s *session) Handle(ctx context.Context, f frames.Frame) error {
	if gone := s.c.CheckGrant(); gone != nil {
		gone.Request = requestID(f)
		return gone
	}
	switch f := f.(type) {
	case *Authority:
		return s.outcome(0, s.authority(ctx, &f.Certificate))
	case *FactAck:
		return s.outcome(0, s.factAck(f))
	case *DispatchEffect:
		return s.effect(f.RequestID, &f.Guard, f.Attempt, func(ctx context.Context) (outcome, error) {
			return s.o.dispatch(ctx, s.claim, f)
		})
	case *GetEffect:
		return s.effect(f.RequestID, &f.Guard, f.Attempt, func(ctx context.Context) (outcome, error) {
			return s.o.lookUp(ctx, s.claim, f.Attempt, f.Digest)
		})
	case *OpenFacts:
		return s.outcome(f.RequestID, s.openFacts(f))
	case *ReadOutput:
		return s.outcome(f.RequestID, s.readOutput(f))
	}
	panic(fmt.Sprintf("owner: accepted frame type %#02x has no case", uint8(f.Type())))
}

func requestID(f frames.Frame) frames.RequestID {
	switch f := f.(type) {
	case *DispatchEffect:
		return f.RequestID
	case *GetEffect:
		return f.RequestID
	case *OpenFacts:
		return f.RequestID
	case *ReadOutput:
		return f.RequestID
	}
	return 0
}

// outcome turns an error of a request into what the connection does about it: a refusal ends
// the request or, when its code is fatal, the connection; what a fenced coordinator sent is
// dropped; the owner's own trouble is INTERNAL and its text stays here.
func (s *session) outcome(id frames.RequestID, err error) error {
	var refusal *frames.Refusal
	switch {
	case err == nil, errors.Is(err, errFenced):
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &refusal) && (id == 0 || refusal.Code.Fatal()):
		return &link.FatalError{Request: id, Code: refusal.Code, Text: refusal.Message}
	case errors.As(err, &refusal):
		return s.c.Send(&frames.CoordError{RequestID: id, Code: refusal.Code, Message: refusal.Message})
	}
	return &link.FatalError{Request: id, Code: frames.CodeInternal, Text: "the owner cannot answer", Cause: err}
}

// guarded checks scope and guard of a request. The guard must equal the certificate that the
// connection has shown; its id is the hello's then ([D-60]).
func (s *session) guarded(scope uint64, g *frames.AuthorityGuard) error {
	switch {
	case s.c.Scope()&scope == 0:
		return frames.Refuse(frames.CodeScopeDenied, "the key has not the scope for this request")
	case *g != s.claim.guard:
		return frames.Refuse(frames.CodeStaleAuthority, "the guard is not that of the certificate that this connection has shown")
	case !s.claim.valid(s.o.opt.Clock.Now()):
		return frames.Refuse(frames.CodeStaleAuthority, "the certificate has run out")
	}
	return nil
}

// authority takes the first certificate of a connection, or a renewal of it.
func (s *session) authority(ctx context.Context, cert *frames.Certificate) error {
	now := s.o.opt.Clock.Now()
	if err := s.o.verify(cert, s.c.Coordinator(), now); err != nil {
		return err
	}
	cl := newClaim(cert, now)
	if s.claim != nil {
		if cl.authority != s.claim.authority {
			return frames.Refuse(frames.CodeStaleAuthority, "another activation needs another connection")
		}
		s.claim.extend(cert, now)
		return nil
	}
	s.holding = true
	if err := s.o.claimAuthority(ctx, s, cl); err != nil {
		return err
	}
	s.claim = cl
	if s.c.Scope()&ScopeFacts == 0 {
		return nil
	}
	list, err := s.o.bindings(cl.coordinator)
	if err != nil {
		return err
	}
	for first := true; first || len(list) > 0; first = false {
		n := min(len(list), maxBindingList)
		if err := s.c.SendBulk(ctx, &Bindings{Bindings: list[:n]}); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// fenced ends the connection for a higher authority.
func (s *session) fenced() {
	s.c.End(&link.FatalError{Code: frames.CodeStaleAuthority, Text: "a later activation has taken over"})
}

// Done is closed when the connection has ended.
func (s *session) Done() <-chan struct{} { return s.c.Done() }

// Ended gives up what the connection held.
func (s *session) Ended() {
	if s.holding {
		s.o.leave(s, s.c.Coordinator())
	}
	for id := range s.streams { // the connection's goroutines are gone
		s.o.unwatch(id, s)
	}
}

// begin counts a request; finish takes it back.
func (s *session) begin(read bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests >= maxRequests || read && s.reads >= maxReads {
		return frames.Refuse(frames.CodeResourceExhausted, "too many requests are outstanding on this connection")
	}
	s.requests++
	if read {
		s.reads++
	}
	return nil
}

func (s *session) finish(read bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests--
	if read {
		s.reads--
	}
}

// effect runs one request about an effect beside the reader and sends its result.
func (s *session) effect(id frames.RequestID, g *frames.AuthorityGuard, attempt frames.EffectAttemptID, do func(context.Context) (outcome, error)) error {
	if err := s.guardedOrUnclaimed(ScopeEffects, g); err != nil {
		return s.outcome(id, err)
	}
	if err := s.begin(false); err != nil {
		return s.outcome(id, err)
	}
	s.c.Go(func(ctx context.Context) error {
		out, err := do(ctx)
		if err != nil {
			s.finish(false)
			return s.outcome(id, err)
		}
		r := &EffectResult{RequestID: id, Attempt: attempt, State: out.state}
		if out.resource != nil {
			r.HasResource, r.Resource = true, *out.resource
		}
		if out.message != "" {
			r.Message = &out.message
		}
		err = s.c.SendBulk(ctx, r)
		s.finish(false)
		return err
	})
	return nil
}

// guardedOrUnclaimed is guarded for frames that also a connection without an authority may
// send, to be told that its scope is too small.
func (s *session) guardedOrUnclaimed(scope uint64, g *frames.AuthorityGuard) error {
	if s.claim == nil {
		return frames.Refuse(frames.CodeScopeDenied, "the key has not the scope for this request")
	}
	return s.guarded(scope, g)
}

// openFacts starts or moves a stream.
func (s *session) openFacts(f *OpenFacts) error {
	if err := s.guardedOrUnclaimed(ScopeFacts, &f.Guard); err != nil {
		return err
	}
	if err := s.o.admitted(s.claim); err != nil {
		return err
	}
	if _, err := s.o.holds(s.claim.coordinator, f.BindingID); err != nil {
		return err
	}
	if err := s.c.Send(&frames.Ack{RequestID: f.RequestID}); err != nil {
		return err
	}
	s.mu.Lock()
	st := s.streams[f.BindingID]
	if st == nil {
		st = new(stream)
		s.streams[f.BindingID] = st
	}
	st.after, st.credit = f.After, uint64(f.Credit)
	st.moved++
	s.mu.Unlock()
	s.o.watch(f.BindingID, s)
	if !s.feeding {
		s.feeding = true
		s.c.Go(s.feed)
	}
	s.factsCame(f.BindingID)
	return nil
}

// factAck takes an acknowledgement and its credit.
func (s *session) factAck(f *FactAck) error {
	if err := s.o.ackFacts(s.claim, f.BindingID, f.Through); err != nil {
		return err
	}
	if f.Through == AckAll {
		s.drop(f.BindingID, nil, 0)
		return nil
	}
	s.mu.Lock()
	if st := s.streams[f.BindingID]; st != nil {
		st.credit += uint64(f.Add)
	}
	s.mu.Unlock()
	s.factsCame(f.BindingID)
	return nil
}

// drop ends a stream, and forgets it: a connection may see more bindings than it has memory
// for. With st it does so unless OPEN_FACTS has moved that stream meanwhile, and reports
// whether it did.
func (s *session) drop(id frames.BindingID, st *stream, moved uint64) bool {
	s.mu.Lock()
	if st != nil && st.moved != moved {
		s.mu.Unlock()
		return false
	}
	if st = s.streams[id]; st != nil {
		st.moved++ // what is being sent of it stops
		delete(s.streams, id)
	}
	s.mu.Unlock()
	s.o.unwatch(id, s)
	return true
}

// factsCame has feed look at a binding's stream. It is called with the owner's mu held or
// without.
func (s *session) factsCame(id frames.BindingID) {
	s.mu.Lock()
	if s.streams[id] != nil {
		s.due[id] = struct{}{}
	}
	s.mu.Unlock()
	notify(s.ready)
}

// feed sends facts until the connection ends.
func (s *session) feed(ctx context.Context) error {
	for {
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		due := s.due
		s.due = map[frames.BindingID]struct{}{}
		s.mu.Unlock()
		for id := range due {
			if err := s.feedOne(ctx, id); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return s.outcome(0, err)
			}
		}
	}
}

// feedOne sends one page of a stream; what is left is due again, so that no stream keeps the
// others waiting.
func (s *session) feedOne(ctx context.Context, id frames.BindingID) error {
	s.mu.Lock()
	st := s.streams[id]
	if st == nil {
		s.mu.Unlock()
		return nil
	}
	after, moved, room := st.after, st.moved, min(st.credit, factPage)
	s.mu.Unlock()
	p, err := s.o.readFacts(id, after, int(room))
	if err != nil {
		return err
	}
	for i := range p.facts {
		seq := uint64(p.facts[i].Source.Sequence)
		s.mu.Lock()
		stale := st.moved != moved
		if !stale {
			st.after, st.credit = seq, st.credit-1
		}
		s.mu.Unlock()
		if stale {
			return nil // OPEN_FACTS has made it due again
		}
		if err := s.c.SendBulk(ctx, &SourceFact{Fact: p.facts[i]}); err != nil {
			return err
		}
	}
	n := len(p.facts)
	switch {
	case !p.ended && n > 0 && p.facts[n-1].Kind == frames.FactClosed:
		s.drop(id, st, moved) // nothing follows
		return nil
	case n == factPage:
		s.factsCame(id)
		return nil
	case !p.ended:
		return nil
	}
	if !s.drop(id, st, moved) {
		return nil
	}
	return s.c.SendBulk(ctx, &FactsEnd{BindingID: id, Last: p.last})
}

// readOutput serves one READ_OUTPUT beside the reader. A connection that reads only names the
// coordinator that it reads for in its hello.
func (s *session) readOutput(f *ReadOutput) error {
	switch {
	case s.c.Scope()&ScopeOutput == 0:
		return frames.Refuse(frames.CodeScopeDenied, "the key has not the scope for this request")
	case s.claim != nil:
		if err := s.o.admitted(s.claim); err != nil {
			return err
		}
	}
	if err := s.begin(true); err != nil {
		return err
	}
	s.c.Go(func(ctx context.Context) error {
		defer s.finish(true)
		r, err := s.o.openOutput(s.c.Coordinator(), f.BindingID)
		if err != nil {
			return s.outcome(f.RequestID, err)
		}
		defer r.close()
		err = r.pour(ctx, f, func(chunk *OutputChunk) error { return s.c.SendBulk(ctx, chunk) })
		if ctx.Err() != nil {
			return nil
		}
		return s.outcome(f.RequestID, err)
	})
	return nil
}
