package outbox

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"

	"coordinator/frames"
	"coordinator/internal/failpoint"
	"coordinator/owner"
	"coordinator/server/work"
)

// runEffects settles attempts as they come, many at a time, until one of them, or the link,
// cannot go on.
func (s *session) runEffects(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(effectWorkers + 1)
	g.Go(func() error {
		for {
			e, ok := s.p.nextEffect()
			if !ok {
				select {
				case <-s.p.effectWake:
					continue
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if s.begin(e) {
				g.Go(func() error {
					defer s.end(e)
					return s.settle(ctx, e)
				})
			}
		}
	})
	return g.Wait()
}

// begin takes an attempt on, unless a worker has it, or this link has nothing to say of it: a
// KILL finishes with its binding once its owner's incarnation is gone [D-31].
func (s *session) begin(e *work.Effect) bool {
	if _, inc := e.Owner(); e.Attempt.Kind != frames.EffectSpawn && inc != s.inc {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.working[e.Attempt.ID] {
		return false
	}
	s.working[e.Attempt.ID] = true
	return true
}

func (s *session) end(e *work.Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.working, e.Attempt.ID)
}

// settle brings one attempt to its end. What is READY at the incarnation that it names is
// sent, once; everything else is looked up.
func (s *session) settle(ctx context.Context, e *work.Effect) error {
	id := e.Attempt.ID
	what := work.DispatchLookUp
	if _, inc := e.Owner(); inc == s.inc && e.Attempt.State == frames.EffectReady {
		var err error
		if what, err = s.mark(ctx, e); err != nil {
			return err
		}
	}
	failpoint.Hit("effect-marked")
	var finding work.Finding
	var err error
	switch what {
	case work.DispatchNothing:
		return nil
	case work.DispatchSend:
		finding, err = s.send(ctx, e)
	default:
		finding, err = s.lookUp(ctx, e)
	}
	if err != nil {
		return err
	}
	failpoint.Hit("effect-answered")
	err = s.change(ctx, []frames.ObjectRef{work.EffectRef(id)}, func(v work.View, env work.Env) (work.Outcome, error) {
		return work.ApplyFinding(v, id, finding, env)
	})
	if err == nil {
		s.p.b.meters.outcome(finding)
	}
	failpoint.Hit("effect-applied")
	return err
}

// mark makes DISPATCHED durable. The grant is judged in the same instant [D-46], and judged
// anew if it is another when that is written.
func (s *session) mark(ctx context.Context, e *work.Effect) (what work.Dispatch, err error) {
	id, principal, scopes := e.Attempt.ID, e.Principal, e.Scopes()
	judge := func() bool { return s.p.b.o.Authorised(principal, scopes) }
	judged := false // on the writer's goroutine
	err = s.p.b.o.Writer.ChangeWhile(ctx, []frames.ObjectRef{work.EffectRef(id)}, func() bool { return judge() == judged },
		func(v work.View, env work.Env) (out work.Outcome, err error) {
			judged = judge()
			out, what, err = work.MarkDispatched(v, id, !judged, env)
			return out, err
		})
	return what, err
}

// send dispatches the attempt. Without an answer it is for the next link to look up.
func (s *session) send(ctx context.Context, e *work.Effect) (work.Finding, error) {
	if err := s.mayAct(ctx); err != nil {
		return work.Finding{}, err
	}
	s.p.b.meters.Dispatched.Add(1)
	result, err := s.link.Dispatch(ctx, s.p.b.o.Fence.Guard(), &e.Attempt)
	var refused *owner.RefusedError
	if errors.As(err, &refused) && refused.Code != frames.CodeOperationConflict && !refused.Code.Fatal() {
		return s.lookUp(ctx, e)
	}
	return s.finding(e, result, err)
}

// lookUp asks what became of the attempt. It makes an owner that never saw it refuse it for
// good [D-51].
func (s *session) lookUp(ctx context.Context, e *work.Effect) (work.Finding, error) {
	if err := s.mayAct(ctx); err != nil {
		return work.Finding{}, err
	}
	s.p.b.meters.LookedUp.Add(1)
	result, err := s.link.GetEffect(ctx, s.p.b.o.Fence.Guard(), e.Attempt.ID, e.Attempt.Digest)
	return s.finding(e, result, err)
}

// finding is an owner's answer in the words of the domain. An error ends the link.
func (s *session) finding(e *work.Effect, r owner.Result, err error) (work.Finding, error) {
	unknown := work.Finding{State: frames.EffectIndeterminate, Reason: frames.TargetOutcomeUnknown, Message: r.Message}
	var refused *owner.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Code == frames.CodeOperationConflict:
		unknown.Reason = frames.TargetDedupeUnavailable
		return unknown, nil
	case errors.As(err, &refused) && refused.Code == frames.CodeNotFound: // of another coordinator [D-60]
		return unknown, nil
	case err != nil:
		return work.Finding{}, err
	case r.State == owner.NeverSeen:
		return work.Finding{Never: true, Message: r.Message}, nil
	case r.State == frames.EffectIndeterminate, r.State == frames.EffectSucceeded && e.Attempt.Kind == frames.EffectSpawn && !r.HasResource:
		return unknown, nil
	case r.State == frames.EffectSucceeded, r.State == frames.EffectRejected:
		return work.Finding{State: r.State, Resource: r.Resource, Message: r.Message}, nil
	}
	return work.Finding{}, fmt.Errorf("the owner answered state %d for an attempt", r.State)
}
