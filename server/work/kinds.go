package work

import (
	"coordinator/codec"
	"coordinator/frames"
)

// A kind is one row of the command table (protocol.md §7.2 [D-17]).
type kind struct {
	scope frames.Scope      // every bit is needed
	gate  frames.Capability // must be negotiated; zero gates nothing
	// onReserve kinds are admitted below the disk reserve [D-41].
	onReserve bool
	// events is the most events that one command emits, OPERATION_CHANGED included.
	events int
	// copies is how many more times than once the payload, or so much, is written.
	copies int
	// pending is the most pending operations and effect attempts that one command adds.
	pending uint64
	// parse decodes the payload. Its error is a *[Refusal], or stands for
	// MALFORMED_MESSAGE.
	parse func(payload []byte, from Viewer) (action, error)
}

// An action is a decoded payload.
type action interface {
	// refs names the objects that the command changes or decides on, all named in its
	// payload.
	refs() []frames.ObjectRef
	// apply checks the conditions of [D-17], then puts what the command does and finishes its
	// operation or leaves it PENDING.
	apply(t *txn) (Outcome, error)
}

// conditioned actions demand something of the form of their command's preconditions.
type conditioned interface {
	checkForm([]frames.Precondition) error
}

// success is the body of a SUCCEEDED result.
type success struct {
	kind    frames.ResultKind
	payload []byte
}

// kinds is the command table. A kind that is not here is unknown to this server.
var kinds = map[frames.CommandKind]*kind{
	frames.CommandCreateObjective: {scope: frames.ScopeWorkCommand, events: 2, parse: parseCreateObjective},
	frames.CommandUpdateObjective: {scope: frames.ScopeWorkCommand, events: 2, parse: parseUpdateObjective},
	frames.CommandStartRun: {
		scope: frames.ScopeWorkCommand | frames.ScopeTerminalControl, gate: frames.CapTerminalBindings,
		events: 3, copies: 2, pending: 2, parse: parseStartRun,
	},
	frames.CommandCancelRun: {
		scope: frames.ScopeWorkCommand, events: 3, copies: 4, pending: 2, onReserve: true, parse: parseCancelRun,
	},
	frames.CommandPauseRun:  {scope: frames.ScopeWorkCommand, events: 2, parse: parsePauseRun},
	frames.CommandResumeRun: {scope: frames.ScopeWorkCommand, events: 2, parse: parseResumeRun},
	frames.CommandAckSignal: {
		scope: frames.ScopeSignalAck | frames.ScopeWorkRead, gate: frames.CapSignals,
		events: 2, copies: 2, onReserve: true, parse: parseAckSignal,
	},
	frames.CommandSuppressSignal: {
		scope: frames.ScopeSignalAck | frames.ScopeWorkRead, gate: frames.CapSignals,
		events: 2, copies: 2, onReserve: true, parse: parseSuppressSignal,
	},
	frames.CommandRegisterArtifactManifest: {
		scope: frames.ScopeWorkCommand, gate: frames.CapArtifactManifests, events: 3, parse: parseRegisterManifest,
	},
	frames.CommandEndBinding: {
		scope: frames.ScopeWorkCommand | frames.ScopeTerminalControl, gate: frames.CapTerminalBindings,
		events: 6, copies: 8, pending: 2, onReserve: true, parse: parseEndBinding,
	},
	frames.CommandChangeRetention: {
		scope: frames.ScopeAdmin, gate: frames.CapAdministration, events: 1, onReserve: true, parse: parseChangeRetention,
	},
	frames.CommandArchiveObjective: {
		scope: frames.ScopeWorkCommand, gate: frames.CapArchive, events: archiveEvents, copies: MaxArchived / 4, onReserve: true, parse: parseArchiveObjective,
	},
}

// documentSchema is the one schema of documents that this version takes.
const documentSchema = 1

// checkSchema refuses a document schema that this server does not know [D-34].
func checkSchema(schema uint16) error {
	if schema != documentSchema {
		return frames.Refuse(frames.CodeCapabilityRequired, "document schema %d is not known; this server takes schema %d", schema, documentSchema)
	}
	return nil
}

// nextRevision gives the revision after rev.
func nextRevision(rev frames.ObjectRevision) (frames.ObjectRevision, error) {
	if rev+1 == 0 {
		return 0, ErrWrapped
	}
	return rev + 1, nil
}

// objectResult is an OBJECT_REF result.
func objectResult(ref frames.ObjectRef) (success, error) {
	raw, err := codec.EncodeImage(nil, &ref)
	if err != nil {
		return success{}, err
	}
	return success{kind: frames.ResultObjectRef, payload: raw}, nil
}

// noResult is a NONE result, in the form that it decodes to.
func noResult() success { return success{kind: frames.ResultNone, payload: []byte{}} }
