package work

import (
	"strings"
	"unicode/utf8"

	"coordinator/codec"
	"coordinator/frames"
)

// clipText cuts a diagnostic to what a record may carry, at a UTF-8 boundary.
func clipText(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= frames.MaxText {
		return s
	}
	n := frames.MaxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// raise opens a signal. known is the binding whose admission remembers it as open; zero when
// none does.
func (t *txn) raise(kind frames.SignalKind, session frames.WorkSessionID, known frames.BindingID, message string) (frames.SignalID, error) {
	id, err := t.fresh()
	if err != nil {
		return frames.SignalID{}, err
	}
	signal := frames.Signal{WorkSessionID: session, Kind: kind, State: frames.SignalOpen, Message: clipText(message)}
	ref := signalRef(id)
	if err := t.putRecord(frames.EventSignalRaised, true, ref, 1, &signal, &signalMeta{Binding: known}); err != nil {
		return id, err
	}
	return id, t.listUnder(session, ref)
}

// resolve closes an open signal that its binding remembers.
func (t *txn) resolve(id frames.SignalID) error {
	var signal frames.Signal
	var meta signalMeta
	stored, found, err := t.load(signalRef(id), &signal, &meta)
	if err != nil || !found || signal.State != frames.SignalOpen {
		return err
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return err
	}
	signal.State = frames.SignalResolved
	return t.putRecord(frames.EventSignalResolved, false, signalRef(id), rev, &signal, &signalMeta{})
}

// judgeSignal is ACK_SIGNAL and SUPPRESS_SIGNAL.
type judgeSignal struct {
	p     frames.SignalCommand
	to    frames.SignalState
	from  []frames.SignalState
	event frames.EventKind
}

func parseAckSignal(payload []byte, _ Viewer) (action, error) {
	a := &judgeSignal{
		to: frames.SignalAcknowledged, from: []frames.SignalState{frames.SignalOpen}, event: frames.EventSignalAcknowledged,
	}
	return a, codec.Decode(&a.p, payload)
}

func parseSuppressSignal(payload []byte, _ Viewer) (action, error) {
	a := &judgeSignal{
		to: frames.SignalSuppressed, from: []frames.SignalState{frames.SignalOpen, frames.SignalAcknowledged},
		event: frames.EventSignalSuppressed,
	}
	return a, codec.Decode(&a.p, payload)
}

func (a *judgeSignal) refs() []frames.ObjectRef { return []frames.ObjectRef{signalRef(a.p.SignalID)} }

func (a *judgeSignal) apply(t *txn) (Outcome, error) {
	ref := signalRef(a.p.SignalID)
	var signal frames.Signal
	var meta signalMeta
	stored, found, err := t.load(ref, &signal, &meta)
	if err != nil {
		return Outcome{}, err
	}
	if !found {
		return Outcome{}, frames.Refuse(frames.CodeNotFound, "no such signal")
	}
	allowed := false
	for _, s := range a.from {
		allowed = allowed || signal.State == s
	}
	if !allowed {
		return Outcome{}, frames.Refuse(frames.CodeRevisionConflict, "the signal is %v", signal.State)
	}
	rev, err := nextRevision(stored.Record.Revision)
	if err != nil {
		return Outcome{}, err
	}
	signal.State = a.to
	if err := t.putRecord(a.event, false, ref, rev, &signal, &signalMeta{}); err != nil {
		return Outcome{}, err
	}
	if err := t.forget(meta.Binding, a.p.SignalID); err != nil {
		return Outcome{}, err
	}
	result, err := objectResult(ref)
	if err != nil {
		return Outcome{}, err
	}
	return t.finish(result)
}

// forget makes a binding's admission no longer count a signal as open.
func (t *txn) forget(id frames.BindingID, signal frames.SignalID) error {
	if id == (frames.BindingID{}) {
		return nil
	}
	b, found, err := t.binding(id)
	if err != nil || !found || !b.active() {
		return err
	}
	switch signal {
	case b.meta.Blocked:
		b.meta.Blocked = frames.SignalID{}
	case b.meta.Failed:
		b.meta.Failed = frames.SignalID{}
	default:
		return nil
	}
	return t.rewriteBinding(b)
}
