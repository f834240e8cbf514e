package work

import "coordinator/frames"

// A Viewer is the part of a connection that decides what it sees. It is fixed at the hello
// (protocol.md §6 [D-55]).
type Viewer struct {
	Principal    frames.KeyID
	Scope        frames.Scope // effective
	Capabilities frames.Capability
}

// visibility is one row of the table of protocol.md §6.
type visibility struct {
	scope frames.Scope
	caps  frames.Capability
}

// families says what each kind but OPERATION needs. A kind that is not listed is seen by
// nobody.
var families = map[frames.ObjectKind]visibility{
	frames.KindObjective:        {scope: frames.ScopeWorkRead},
	frames.KindRun:              {scope: frames.ScopeWorkRead},
	frames.KindWorkSession:      {scope: frames.ScopeWorkRead},
	frames.KindArtifact:         {scope: frames.ScopeWorkRead},
	frames.KindBinding:          {scope: frames.ScopeWorkRead, caps: frames.CapTerminalBindings},
	frames.KindSignal:           {scope: frames.ScopeWorkRead, caps: frames.CapSignals},
	frames.KindArtifactManifest: {scope: frames.ScopeArtifactRead, caps: frames.CapArtifactManifests},
	frames.KindEvidence:         {scope: frames.ScopeArtifactRead, caps: frames.CapArtifactManifests},
	frames.KindAdmin:            {scope: frames.ScopeAdmin, caps: frames.CapAdministration},
}

// Visible is the one predicate of protocol.md §6, used by snapshots, subscriptions and
// replays for a record of kind, and for an event by the kind of the object that it names.
// owner is the principal of an OPERATION and is ignored for other kinds.
func Visible(kind frames.ObjectKind, owner frames.KeyID, v Viewer) bool {
	if kind == frames.KindOperation {
		return !v.Capabilities.Has(frames.CapWithoutOperations) && seesOperation(owner, v)
	}
	return familyVisible(kind, v)
}

// VisibleRemoval is [Visible] for the OBJECT_REMOVED of an object of kind, which only those
// get who negotiated ARCHIVE (§12).
func VisibleRemoval(kind frames.ObjectKind, v Viewer) bool {
	return v.Capabilities.Has(frames.CapArchive) && familyVisible(kind, v)
}

// VisibleToLookup is the predicate of direct lookups and preconditions, which
// WITHOUT_OPERATIONS leaves alone (§12).
func VisibleToLookup(kind frames.ObjectKind, owner frames.KeyID, v Viewer) bool {
	if kind == frames.KindOperation {
		return seesOperation(owner, v)
	}
	return familyVisible(kind, v)
}

func familyVisible(kind frames.ObjectKind, v Viewer) bool {
	need, ok := families[kind]
	return ok && v.Scope.Has(need.scope) && v.Capabilities.Has(need.caps)
}

func seesOperation(owner frames.KeyID, v Viewer) bool {
	own := owner == v.Principal && v.Scope&(frames.ScopeWorkRead|frames.ScopeWorkCommand) != 0
	return own || v.Scope.Has(frames.ScopeAdmin)
}
