package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/suggest"
	"coordinator/frames"
	"coordinator/internal/clock"
)

// eventsFlags are the flags of `events`.
type eventsFlags struct {
	since, until string
	kinds        []string
	follow       bool
	limit        int
}

func (a *app) eventsCommand() *cobra.Command {
	var f eventsFlags
	c := &cobra.Command{
		Use:   "events [KIND [ID]]",
		Short: "Show what has happened, from the event log",
		Long: `Show what has happened, from the event log: of one kind of record or one object, or of all but
operations, which are shown when they are asked for.

Events bear a sequence and no time of day; their order is the log's. --since and --until take

  120       the number of an event
  2/120     the same as an epoch and a number; that it lies in this coordinator's history,
            and not in one that a restored backup has replaced, is checked
  now       --since: the last event there is, to follow what comes behind it

and show what lies behind the one, up to and with the other. Without them all is shown.

What retention has removed is a line of its own, with the first and the last number. At the end
the last event that was looked at is said, in the form that --since takes. With -f it goes on with
each event as it happens, until Ctrl-C or --until, through restarts and gaps, which are told. Where
this key does not see the event of --until, the next one that it sees is the end.

With -o json each line is one object, "type" says of what: "COORD_EVENT", "GAP" with the reason
RETENTION for what was removed, "END", and with -f those of coordctl watch. With a template
(-o jsonpath=…), what is not an event goes to standard error.`,
		Example: `  coordctl events
  coordctl events run 2d88da09 --since 120
  coordctl events --kind RUN_CHANGED --kind EVIDENCE_SEALED -o json
  coordctl events --since 2/120 --until 400
  coordctl events --since now -f -o 'jsonpath={.event_sequence} {.event_kind}'`,
		ValidArgsFunction: completeKinds,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 2 {
				return usage("%s takes at most a kind and an id: %s", cmd.CommandPath(), cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.events(cmd.Context(), args, f) },
	}
	c.Flags().StringVar(&f.since, "since", "0", "show what lies behind `EVENT`: a number, EPOCH/NUMBER or now")
	c.Flags().StringVar(&f.until, "until", "", "end with `EVENT`: a number or EPOCH/NUMBER")
	c.Flags().StringArrayVar(&f.kinds, "kind", nil, "only events of this `KIND`, such as RUN_CHANGED; given several times, of any of them")
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what happens, until Ctrl-C; --timeout then bounds the start")
	c.Flags().IntVar(&f.limit, "limit", 0, "end after `N` events; 0 shows all")
	c.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(eventKindNames(), cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // the flag is there
	return c
}

// eventKinds are the kinds of events, in the protocol's order (protocol.md §7.1, §12).
func eventKinds() (out []frames.EventKind) {
	for k := frames.EventObjectiveChanged; k.Known(); k++ {
		out = append(out, k)
	}
	return append(out, frames.EventObjectRemoved)
}

// eventKindNames are their names.
func eventKindNames() (out []string) {
	for _, k := range eventKinds() {
		out = append(out, k.String())
	}
	return out
}

// parseEventKind reads the name of a kind of events.
func parseEventKind(text string) (frames.EventKind, error) {
	names := eventKindNames()
	word := strings.ToUpper(strings.ReplaceAll(text, "-", "_"))
	if at := slices.Index(names, word); at >= 0 {
		return eventKinds()[at], nil
	}
	return 0, usage("--kind is %q; it is one of %s%s", text, strings.Join(names, ", "), suggest.Hint(word, names))
}

// parseCut reads an event, or an epoch and an event.
func parseCut(flag, text string) (epoch frames.AuthorityEpoch, cut frames.EventCut, err error) {
	before, number, both := strings.Cut(text, "/")
	if !both {
		number, before = before, "0"
	}
	e, err1 := strconv.ParseUint(before, 10, 64)
	n, err2 := strconv.ParseUint(number, 10, 64)
	switch {
	case err1 == nil && err2 == nil && (e > 0 || !both):
		return frames.AuthorityEpoch(e), frames.EventCut(n), nil
	case isTime(text):
		return 0, 0, usage("--%s is %q, and events bear no time of day: their order is the log's. Give the number of an event, or EPOCH/NUMBER", flag, text)
	}
	return 0, 0, usage("--%s is %q; it is the number of an event, or EPOCH/NUMBER", flag, text)
}

// isTime reports whether a text is a time or a span of it, as other programs take them.
func isTime(text string) bool {
	if _, err := time.ParseDuration(text); err == nil {
		return true
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly, time.TimeOnly, "2006-01-02T15:04:05", "15:04"} {
		if _, err := time.Parse(layout, text); err == nil {
			return true
		}
	}
	return false
}

// An eventReader is one `coordctl events`.
type eventReader struct {
	w    *watcher
	c    *client.Context
	opts client.Options
	now  bool // begin with what happens next

	// at is the event up to which all has been looked at, and epoch the authority under which.
	at    frames.EventCut
	epoch frames.AuthorityEpoch
	held  bool            // that epoch is what was met, not what was given
	until frames.EventCut // zero: without an end
	// untilEpoch, unless zero, is the authority of until; it is checked once.
	untilEpoch frames.AuthorityEpoch
}

func (a *app) events(parent context.Context, args []string, f eventsFlags) error {
	r, err := a.eventReader(args, f)
	if err != nil {
		return err
	}
	if f.follow {
		return r.follow(parent)
	}
	ctx, cancel := context.WithTimeoutCause(parent, a.timeout, errTimeout)
	defer cancel()
	if err = r.read(ctx, r.until); err != nil && !errors.Is(err, errEnough) {
		return r.explainCut(f.since, err)
	}
	return r.end()
}

// eventReader holds the command line to its form.
func (a *app) eventReader(args []string, f eventsFlags) (*eventReader, error) {
	if f.limit < 0 {
		return nil, usage("--limit is %d; it must not be negative", f.limit)
	}
	r := &eventReader{w: &watcher{a: a, left: f.limit}, now: f.since == "now"}
	caps := quietCaps
	var err error
	if len(args) > 0 {
		if r.w.kind, err = parseKind(args[0]); err != nil {
			return nil, err
		}
		if r.w.kind == frames.KindAdmin {
			return nil, usage("there are no events of ADMIN records; see them with: %s", a.line("get admin"))
		}
		caps = capsFor(r.w.kind)
	}
	if len(args) > 1 {
		if r.w.prefix, err = checkPrefix(args[1]); err != nil {
			return nil, err
		}
	}
	for _, text := range f.kinds {
		kind, err := parseEventKind(text)
		if err != nil {
			return nil, err
		}
		if r.w.events = append(r.w.events, kind); kind == frames.EventOperationChanged {
			caps = readCaps
		}
	}
	switch {
	case r.now && !f.follow:
		return nil, usage("--since now is for what happens next, with -f")
	case !r.now:
		if r.epoch, r.at, err = parseCut("since", f.since); err != nil {
			return nil, err
		}
	}
	if f.until != "" {
		if r.untilEpoch, r.until, err = parseCut("until", f.until); err != nil {
			return nil, err
		}
		if r.until <= r.at {
			return nil, usage("--until %s is not behind --since %s: nothing is between them", f.until, f.since)
		}
	}
	if r.c, err = client.LoadContext(a.contextPath); err != nil {
		return nil, err
	}
	r.opts = client.Options{Name: "coordctl events", Offered: caps | followCaps}
	r.opts.Key, err = a.key()
	return r, err
}

// explainCut words what is wrong with --since or --until.
func (r *eventReader) explainCut(since string, err error) error {
	var beyond *client.CutBeyondError
	switch {
	case !errors.As(err, &beyond):
		return err
	case r.untilEpoch != 0 && beyond.Epoch == r.untilEpoch && beyond.Cut == r.until:
		return usage("--until %d/%d: %v", r.untilEpoch, r.until, beyond)
	}
	return usage("--since %s: %v", since, beyond)
}

// read shows what lies behind at, up to and with through or what has happened until now.
func (r *eventReader) read(ctx context.Context, through frames.EventCut) error {
	span := client.EventRange{After: r.at, Epoch: r.epoch, Through: through}
	if through == r.until && !r.held {
		span.ThroughEpoch = r.untilEpoch
	}
	read, err := client.ReadEvents(ctx, r.c, r.opts, span, r.removed,
		func(e *client.Event) error {
			r.at = frames.EventCut(e.Sequence)
			return r.w.event(e)
		})
	if read.Guard.Epoch != 0 {
		r.epoch, r.held = read.Guard.Epoch, true
	}
	if err == nil {
		r.at = max(r.at, read.Through)
	}
	return err
}

// catchUp is read that goes on when a coordinator is there again, and where its history has gone
// another way than what was shown.
func (r *eventReader) catchUp(ctx context.Context, through frames.EventCut) error {
	for {
		err := r.read(ctx, through)
		var lost *client.CutLostError
		switch {
		case r.held && errors.As(err, &lost):
			o := object{{"type", "HISTORY_LOST"}, {"event_sequence", lost.Cut}, {"authority_epoch", lost.Epoch}, {"base_event_sequence", lost.Base}}
			if err := r.w.alarm(o, "-- HISTORY_LOST: %v", lost); err != nil {
				return err
			}
			r.at, r.epoch = lost.Base, 0
		case absent(err) || errors.Is(err, client.ErrExpired):
			if err := clock.Wait(ctx, clock.System(), retryDial); err != nil {
				return context.Cause(ctx)
			}
		default:
			return err
		}
	}
}

// removed tells what retention has removed.
func (r *eventReader) removed(first, last frames.EventSequence) error {
	r.at = frames.EventCut(last)
	o := object{{"type", "GAP"}, {"reason", frames.GapRetention.String()}, {"first_removed_event", first}, {"last_removed_event", last}}
	if first == last {
		return r.w.alarm(o, "-- gap: retention has removed event %d", first)
	}
	return r.w.alarm(o, "-- gap: retention has removed the events %d to %d", first, last)
}

// end tells the event up to which all was looked at.
func (r *eventReader) end() error {
	o := object{{"type", "END"}, {"event_sequence", r.at}, {"authority_epoch", r.epoch}}
	return r.w.aside(o, "-- to event %d/%d", r.epoch, r.at)
}

// follow shows what has happened, and goes on with what happens.
func (r *eventReader) follow(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	a, start, began := r.w.a, time.Now(), false
	first := time.AfterFunc(a.timeout, func() { cancel(errTimeout) })
	defer first.Stop()
	opts := client.FollowOptions{Options: r.opts, Backoff: client.Backoff{Max: watchPause}, Wait: true}
	for u, err := range client.Follow(ctx, r.c, opts) {
		switch u := u.(type) {
		case *client.Gap:
			if !began && (time.Since(start) >= a.wait || !absent(u.Cause)) {
				return u.Cause
			}
			if began {
				err = r.w.show(u)
			}
		case *client.Synced:
			began = true
			first.Stop()
			err = r.synced(ctx, u)
		case *client.Healed:
			r.epoch = u.Guard.Epoch
			err = r.w.show(u)
		case *client.Event:
			err = r.happened(u)
		}
		switch {
		case err == nil:
		case errors.Is(err, errEnough):
			return r.end()
		case began && errors.Is(context.Cause(ctx), errInterrupted): // whatever was under way
			return nil
		default:
			return err
		}
	}
	return nil
}

// synced shows what lies between what has been looked at and a snapshot: at the beginning, and where
// nothing less healed a gap.
func (r *eventReader) synced(ctx context.Context, s *client.Synced) error {
	if s.First && r.until > s.Base && r.untilEpoch != 0 && r.untilEpoch != s.Guard.Epoch {
		return usage("--until %d/%d: event %d has not happened, and those to come are of epoch %d", r.untilEpoch, r.until, r.until, s.Guard.Epoch)
	}
	if r.now {
		r.now, r.held, r.at, r.epoch = false, true, s.Base, s.Guard.Epoch
		if r.until != 0 && r.until <= r.at {
			return errEnough
		}
		return nil
	}
	if !s.First {
		o := object{{"type", "HEALED"}, {"by", "LOG"}, {"last_contiguous_event", r.at}, {"authority_epoch", s.Guard.Epoch}, {"activation_sequence", s.Guard.Activation}}
		if err := r.w.aside(o, "-- healed after event %d (epoch %d): what happened since follows from the log", r.at, s.Guard.Epoch); err != nil {
			return err
		}
		r.w.said = ""
	}
	through := s.Base
	if r.until != 0 {
		through = min(through, r.until)
	}
	since := r.at
	if err := r.catchUp(ctx, through); err != nil {
		return r.explainCut(fmt.Sprint(since), err)
	}
	if r.until != 0 && r.at >= r.until {
		return errEnough
	}
	return nil
}

// happened shows an event as it happens.
func (r *eventReader) happened(e *client.Event) error {
	if cut := frames.EventCut(e.Sequence); r.until == 0 || cut <= r.until {
		r.at = cut
		if err := r.w.event(e); err != nil {
			return err
		}
	}
	if r.until != 0 && frames.EventCut(e.Sequence) >= r.until {
		r.at = r.until
		return errEnough
	}
	return nil
}
