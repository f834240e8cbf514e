package client

import (
	"errors"
	"fmt"
	"time"

	"coordinator/frames"
)

// A ReplicaPhase is what a [Replica] is doing.
type ReplicaPhase uint8

const (
	// ReplicaConnecting has no view yet and looks for the coordinator.
	ReplicaConnecting ReplicaPhase = iota
	// ReplicaSyncing has no view yet and takes the first snapshot.
	ReplicaSyncing
	// ReplicaCurrent shows all that the coordinator has told it, and would be told more.
	ReplicaCurrent
	// ReplicaStale may have missed something since its view's cut, and heals that. What the
	// reason is, [ReplicaState.Reason] says.
	ReplicaStale
	// ReplicaLostHistory has found that its view is not in the coordinator's history any more:
	// a restored backup, most likely (protocol.md §4 [D-26]). A new snapshot replaces the view;
	// [ReplicaState.Lost] remembers it from then on.
	ReplicaLostHistory
	// ReplicaQuarantined has met two servers that claim one authority. A person must decide.
	// This phase and those behind it are final.
	ReplicaQuarantined
	// ReplicaRevoked has a key that the coordinator does not accept, or does no longer.
	ReplicaRevoked
	// ReplicaFull would have passed its MaxRecords or MaxBytes.
	ReplicaFull
	// ReplicaFailed has met what no new attempt changes, such as wrong pins.
	ReplicaFailed
	// ReplicaClosed was closed.
	ReplicaClosed
)

var phaseNames = [...]string{"Connecting", "Syncing", "Current", "Stale", "LostHistory", "Quarantined", "Revoked", "Full", "Failed", "Closed"}

func (p ReplicaPhase) String() string {
	if int(p) < len(phaseNames) {
		return phaseNames[p]
	}
	return fmt.Sprintf("phase %d", p)
}

// Final reports whether the replica has ended: its view changes no more.
func (p ReplicaPhase) Final() bool { return p >= ReplicaQuarantined }

// A StaleReason says why a replica is not current.
type StaleReason uint8

const (
	// StaleNone belongs to a replica that is current, or has no view.
	StaleNone StaleReason = iota
	// StaleGap is a gap that the coordinator declared; the state's Gap says which.
	StaleGap
	// StaleDisconnected is a missing connection; the state's Gap says why.
	StaleDisconnected
	// StaleAuthority is another authority than the view's, which is being verified
	// (protocol.md §4 [D-44]).
	StaleAuthority
	// StaleBehind is a view that the coordinator is known to be ahead of: events wait to be
	// applied, or it could send no more (protocol.md §10 [D-20]).
	StaleBehind
)

var reasonNames = [...]string{"", "gap", "disconnected", "another authority", "behind"}

func (r StaleReason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason %d", r)
}

// A ReplicaState is how a [Replica] stands at one moment.
type ReplicaState struct {
	Phase ReplicaPhase
	// Since is when that phase began, for the reason given, by the replica's clock.
	Since time.Time
	// LastContact is when the coordinator was last heard of; zero is never. A replica is
	// current no longer after it than a certificate lives, at most 60 s (protocol.md §4).
	LastContact time.Time
	Reason      StaleReason
	// Gap is what the replica heals, or why it does not reach the coordinator.
	Gap *Gap
	// Healed is how the last gap ended when that needed no snapshot, and nil after one.
	Healed *Healed
	// Guard and Cut are the view's; zero before the first.
	Guard frames.AuthorityGuard
	Cut   frames.EventCut
	// Lost is the last loss of history that this replica has found. It stays.
	Lost *LostHistory
	// Err is why the replica has ended. Its phase is final then.
	Err error
}

func (*ReplicaState) notice() {}

// String words the state in one line.
func (s ReplicaState) String() string {
	switch {
	case s.Err != nil:
		return fmt.Sprintf("%v: %v", s.Phase, s.Err)
	case s.Phase == ReplicaCurrent:
		return fmt.Sprintf("%v at event %d", s.Phase, s.Cut)
	case s.Phase == ReplicaLostHistory:
		return fmt.Sprintf("%v: %v", s.Phase, s.Lost)
	case s.Reason == StaleGap || s.Reason == StaleDisconnected, s.Gap != nil && s.Reason == StaleNone:
		return fmt.Sprintf("%v: %v", s.Phase, s.Gap)
	case s.Phase == ReplicaStale:
		return fmt.Sprintf("%v at event %d: %v", s.Phase, s.Cut, s.Reason)
	}
	return s.Phase.String()
}

// A ReplicaFullError says that a replica would have passed a cap of its memory. What it had
// published before stays readable.
type ReplicaFullError struct {
	Records, MaxRecords int
	Bytes, MaxBytes     int64
}

func (e *ReplicaFullError) Error() string {
	if e.Records > e.MaxRecords {
		return fmt.Sprintf("more than the %d records that the replica may hold", e.MaxRecords)
	}
	return fmt.Sprintf("%d records take more than the %d bytes that the replica may hold", e.Records, e.MaxBytes)
}

// finalPhase is the phase that a replica ends in for err.
func finalPhase(err error) ReplicaPhase {
	switch {
	case errors.Is(err, ErrClosed):
		return ReplicaClosed
	case errors.As(err, new(*QuarantineError)):
		return ReplicaQuarantined
	case errors.As(err, new(*AuthenticationError)):
		return ReplicaRevoked
	case errors.As(err, new(*ReplicaFullError)):
		return ReplicaFull
	}
	return ReplicaFailed
}
