package client

import (
	"errors"
	"fmt"

	"coordinator/frames"
)

// Causes that callers match with errors.Is.
var (
	// ErrNotSent says that not one byte of the request left: it certainly did not run.
	ErrNotSent = errors.New("not sent")
	// ErrClosed says that this side closed the connection.
	ErrClosed = errors.New("connection closed by this client")
	// ErrDisconnected says that the peer ended the connection.
	ErrDisconnected = errors.New("connection ended by the coordinator")
	// ErrExpired says that the activation certificate ran out before it was renewed;
	// whatever was read since counts as not received (protocol.md §4).
	ErrExpired = errors.New("activation certificate expired")
	// ErrSuperseded says that a higher authority was met on another connection; nothing
	// that this connection says is acted on any more (protocol.md §4).
	ErrSuperseded = errors.New("superseded by a higher authority")
	// ErrSnapshotFirst says that the authority is new to this client and one snapshot must
	// verify before any other request (protocol.md §4 [D-44]).
	ErrSnapshotFirst = errors.New("a snapshot must verify under this authority first")
	// ErrProtocol says that the peer broke the protocol; the connection is closed.
	ErrProtocol = errors.New("the coordinator broke the protocol")
	// ErrTransport says that the context names a transport which this build cannot dial.
	ErrTransport = errors.New("transport not available")
	// ErrJournalFull says that too many operations are unresolved to begin another.
	ErrJournalFull = errors.New("too many unresolved operations")
)

// A RefusedError is a COORD_ERROR that answers one request, or the hello: the request had
// no effect. Callers branch on Code; Message is for people.
type RefusedError struct {
	Code    frames.Code
	Message string
}

func (e *RefusedError) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Message
}

// An OutcomeUnknownError says that a command may have run: its bytes were written, or
// some of them, and no reply came. Look OperationID up, and resend only the same command
// under the same id (protocol.md §4 [D-44]). Cause says why no reply came.
type OutcomeUnknownError struct {
	OperationID frames.OperationID
	Cause       error
}

func (e *OutcomeUnknownError) Error() string {
	return fmt.Sprintf("operation %s may have run: %v", e.OperationID, e.Cause)
}

// Unwrap gives the reason why no reply came.
func (e *OutcomeUnknownError) Unwrap() error { return e.Cause }

// A notSentError wraps the reason why a request certainly did not leave. It matches
// [ErrNotSent].
type notSentError struct{ cause error }

func (e *notSentError) Error() string        { return "not sent: " + e.cause.Error() }
func (e *notSentError) Unwrap() error        { return e.cause }
func (e *notSentError) Is(target error) bool { return target == ErrNotSent }

// notSent marks cause as certainly not sent, once.
func notSent(cause error) error {
	if errors.Is(cause, ErrNotSent) {
		return cause
	}
	return &notSentError{cause}
}

// A PeerError says that the process behind the socket is not what the pins ask for. What
// names the pinned thing in the words of context.toml.
type PeerError struct {
	What   string
	Detail string
	Cause  error // may be nil
}

func (e *PeerError) Error() string { return e.What + ": " + e.Detail }

// Unwrap gives the underlying verification error, if there is one.
func (e *PeerError) Unwrap() error { return e.Cause }

// An AuthenticationError says that the coordinator refused this client's key, or cut its
// connection because the key was revoked, removed, narrowed or expired. The wire tells
// these apart only by when they happen (protocol.md §5.5): Revoked is true when this
// connection had been accepted, AcceptedBefore when an earlier one had with the same key.
type AuthenticationError struct {
	KeyID                   frames.KeyID
	Revoked, AcceptedBefore bool
}

func (e *AuthenticationError) Error() string {
	switch {
	case e.Revoked:
		return "AUTHENTICATION_FAILED: this connection's key was revoked, removed, narrowed or has expired"
	case e.AcceptedBefore:
		return "AUTHENTICATION_FAILED: the coordinator no longer accepts this key"
	}
	return "AUTHENTICATION_FAILED: the coordinator does not accept this key"
}

// A LowerAuthorityError refuses a server whose (epoch, activation) is below what this
// client has already seen for the same coordinator (protocol.md §4).
type LowerAuthorityError struct {
	HaveEpoch, GotEpoch           frames.AuthorityEpoch
	HaveActivation, GotActivation frames.ActivationSequence
}

func (e *LowerAuthorityError) Error() string {
	return fmt.Sprintf("authority epoch %d activation %d is below epoch %d activation %d seen before",
		e.GotEpoch, e.GotActivation, e.HaveEpoch, e.HaveActivation)
}

// A QuarantineError says that two servers claimed one (epoch, activation) with different
// incarnations or tokens, or that epoch and activation disagree about which is higher.
// Neither is chosen: the coordinator stays refused until a person has decided and removed
// StateFile (protocol.md §4).
type QuarantineError struct {
	Epoch      frames.AuthorityEpoch
	Activation frames.ActivationSequence
	StateFile  string
}

func (e *QuarantineError) Error() string {
	return fmt.Sprintf("two servers claim authority at epoch %d activation %d; this coordinator is quarantined", e.Epoch, e.Activation)
}

// A LostHistory says that the coordinator no longer holds what this client was shown: a
// restored backup, most likely (protocol.md §4 [D-26]). Unresolved operations of that
// time are indeterminate and are not resent.
type LostHistory struct {
	// Activation and Cut are what the client had been shown.
	Activation frames.ActivationSequence `json:"activation"`
	Cut        frames.EventCut           `json:"cut"`
	// Found is the activation under which the loss was found, Base its snapshot's cut.
	Found frames.ActivationSequence `json:"found"`
	Base  frames.EventCut           `json:"base"`
}

func (l *LostHistory) Error() string {
	return fmt.Sprintf("history lost: event %d of activation %d, which this client was shown, is not in the history of activation %d",
		l.Cut, l.Activation, l.Found)
}

// An IndeterminateError refuses to resend an operation whose history was lost.
type IndeterminateError struct{ OperationID frames.OperationID }

func (e *IndeterminateError) Error() string {
	return fmt.Sprintf("operation %s is indeterminate: the history in which it may have run was lost", e.OperationID)
}

// An OtherCommandError refuses to reuse an OperationId for another command than the one
// that was first sent under it.
type OtherCommandError struct{ OperationID frames.OperationID }

func (e *OtherCommandError) Error() string {
	return fmt.Sprintf("operation %s was begun with another command", e.OperationID)
}

// A StateError says that the client's memory of an authority cannot be read or written. It
// is never replaced by an empty one: that would forget the highest authority seen.
type StateError struct {
	Path    string
	Problem string
	Cause   error // of the system; may be nil
}

func (e *StateError) Error() string { return "client state " + e.Path + ": " + e.Problem }

// Unwrap gives what the system said, if it did.
func (e *StateError) Unwrap() error { return e.Cause }
