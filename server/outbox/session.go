package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"coordinator/frames"
	"coordinator/server/authority"
	"coordinator/server/work"
)

// errLinkEnded is the cause when the owner, or the way to it, ended the link.
var errLinkEnded = errors.New("the link ended")

// A session is one link from its hello to its end.
type session struct {
	p    *peer
	link Link
	inc  frames.IncarnationID // constant once the link is up

	mu       sync.Mutex
	accepted bool                            // guarded by mu: the owner has taken the authority
	inbox    inbox                           // guarded by mu
	working  map[frames.EffectAttemptID]bool // guarded by mu: attempts that a worker has
}

// session makes one link and serves it. up says that the owner had taken the authority: one
// that refuses it, or ends the link before, is not dialled again at once.
func (p *peer) session(ctx context.Context) (up bool, err error) {
	s := &session{p: p, inbox: newInbox(), working: make(map[frames.EffectAttemptID]bool)}
	err = s.serve(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted, err
}

// serve is the life of one link.
func (s *session) serve(ctx context.Context) (err error) {
	p := s.p
	s.link, err = p.own.Dial(ctx, Handlers{Bindings: s.onBindings, Fact: s.onFact, FactsEnd: s.onFactsEnd})
	if err != nil {
		return err
	}
	defer s.link.Close() //nolint:errcheck // it is over
	s.mu.Lock()          // the link's reader may be in onBindings
	s.inc = s.link.Incarnation()
	s.mu.Unlock()
	if err := s.mayAct(ctx); err != nil {
		return err
	}
	shown := p.b.o.Fence.Current()
	if err := s.link.Authority(ctx, shown); err != nil {
		return err
	}
	p.connect(s.link)
	defer p.disconnect()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.renew(ctx, shown) })
	g.Go(func() error { return s.runEffects(ctx) })
	g.Go(func() error { return s.runFacts(ctx) })
	g.Go(func() error { // frees the others
		select {
		case <-s.link.Done():
			return fmt.Errorf("%w: %w", errLinkEnded, s.link.Err())
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return g.Wait()
}

// renew shows the owner every renewed certificate, before the old one ends [D-49].
func (s *session) renew(ctx context.Context, shown frames.Certificate) error {
	for {
		changed := s.p.b.o.Fence.Changed()
		if now := s.p.b.o.Fence.Current(); now != shown {
			if err := s.mayAct(ctx); err != nil {
				return err
			}
			if err := s.link.Authority(ctx, now); err != nil {
				return err
			}
			shown = now
			continue
		}
		if err := s.p.b.o.Fence.Check(); errors.Is(err, authority.ErrFenced) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// mayAct passes the fence, waiting while the clocks have diverged [D-9] [D-48].
func (s *session) mayAct(ctx context.Context) error {
	for {
		changed := s.p.b.o.Fence.Changed()
		err := s.p.b.o.Fence.Check()
		if !errors.Is(err, authority.ErrDiverged) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change makes one decision of the domain durable.
func (s *session) change(ctx context.Context, refs []frames.ObjectRef, fn func(work.View, work.Env) (work.Outcome, error)) error {
	return s.p.b.o.Writer.Change(ctx, refs, fn)
}
