package quota

import (
	"fmt"
	"math"
)

// Resource is one countable thing of protocol.md §2.3.
type Resource uint8

// The resources that an account counts. Unsent frames and unsent bytes are one
// row of the table in two units; [Queue] charges both together.
const (
	Connections   Resource = iota // open connections past their proof
	Requests                      // requests without a terminal reply handed to the transport
	Leases                        // open snapshot and replay leases
	PinnedBytes                   // bytes reserved for what immutable cuts hold back [D-5]
	Subscriptions                 // subscriptions that are not closed
	UnsentFrames                  // event frames held back [D-58]
	UnsentBytes                   // bytes of those frames
	Pending                       // pending operations and effect attempts
	resources                     // how many there are
)

// names are the protocol's words, used in refusals and configuration messages.
var names = [resources]string{
	Connections:   "connections",
	Requests:      "outstanding requests",
	Leases:        "snapshot and replay leases",
	PinnedBytes:   "bytes pinned by cuts",
	Subscriptions: "subscriptions",
	UnsentFrames:  "unsent frames",
	UnsentBytes:   "unsent bytes",
	Pending:       "pending operations and effect attempts",
}

// keys are the names in configuration and status output.
var keys = [resources]string{
	Connections: "connections", Requests: "requests", Leases: "leases", PinnedBytes: "pinned_bytes",
	Subscriptions: "subscriptions", UnsentFrames: "unsent_frames", UnsentBytes: "unsent_bytes", Pending: "pending",
}

// Resources lists every resource, in the order of the table.
func Resources() []Resource {
	all := make([]Resource, 0, resources)
	for r := range resources {
		all = append(all, r)
	}
	return all
}

// Key names the resource in configuration and status output.
func (r Resource) Key() string {
	if r >= resources {
		return r.String()
	}
	return keys[r]
}

// String returns the resource in the protocol's words.
func (r Resource) String() string {
	if r >= resources {
		return fmt.Sprintf("resource %d", uint8(r))
	}
	return names[r]
}

// Level says whose limit it is.
type Level uint8

// The three levels of §2.3. OfConnection is the level of one subscription for
// the two unsent resources, which the protocol bounds per subscription.
const (
	OfConnection Level = iota
	OfPrincipal
	OfServer
	levels
)

// String names the level as a refusal does.
func (l Level) String() string {
	switch l {
	case OfConnection:
		return "connection"
	case OfPrincipal:
		return "principal"
	case OfServer:
		return "server"
	}
	return fmt.Sprintf("level %d", uint8(l))
}

// Limits holds one limit for each level and resource. [Unlimited] means that
// the level does not bound the resource.
type Limits [levels][resources]uint64

// Unlimited is the limit of a resource that a level does not bound.
const Unlimited = math.MaxUint64

// Byte units of the table.
const (
	kib = 1 << 10
	mib = 1 << 20
)

// Defaults returns the shipped limits: the reference offers per connection and
// the aggregate quotas of §2.3.
func Defaults() Limits {
	return Limits{
		OfConnection: {
			Connections: Unlimited, Requests: 128, Leases: 4, PinnedBytes: Unlimited,
			Subscriptions: 16, UnsentFrames: 1024, UnsentBytes: 4 * mib, Pending: Unlimited,
		},
		OfPrincipal: {
			Connections: 16, Requests: 512, Leases: 16, PinnedBytes: 32 * mib,
			Subscriptions: 64, UnsentFrames: 4096, UnsentBytes: 16 * mib, Pending: 10_000,
		},
		OfServer: {
			Connections: 256, Requests: 8192, Leases: 256, PinnedBytes: 512 * mib,
			Subscriptions: 2048, UnsentFrames: 65_536, UnsentBytes: 256 * mib, Pending: 100_000,
		},
	}
}

// hardCaps bound what one connection may hold whatever is configured (§2.3).
var hardCaps = [resources]uint64{
	Connections: Unlimited, Requests: 256, Leases: 8, PinnedBytes: Unlimited,
	Subscriptions: 32, UnsentFrames: 1024, UnsentBytes: 4 * mib, Pending: Unlimited,
}

// ceilings bound what an operator may configure for the server. They are far
// above any use; they keep a mistyped number from being taken for a limit.
var ceilings = [resources]uint64{
	Connections: 65_536, Requests: 1 << 20, Leases: 65_536, PinnedBytes: 1 << 40,
	Subscriptions: 1 << 20, UnsentFrames: 1 << 24, UnsentBytes: 1 << 40, Pending: 1 << 24,
}

// floors keep a configured server usable: one lease must fit its reservation.
var floors = [resources]uint64{
	Connections: 1, Requests: 1, Leases: 1, PinnedBytes: Reservation,
	Subscriptions: 1, UnsentFrames: 1, UnsentBytes: 256 * kib, Pending: 1,
}

// LimitError reports a configured limit that cannot be used.
type LimitError struct {
	Resource Resource
	Level    Level
	Have     uint64
	Min, Max uint64 // the allowed range, both inclusive
}

// Error names the value and the range that it must lie in.
func (e *LimitError) Error() string {
	return fmt.Sprintf("quota: %s per %s is %d, allowed %d to %d", e.Resource, e.Level, e.Have, e.Min, e.Max)
}

// Validate refuses limits that contradict the protocol: a connection above its
// hard cap, a principal above the server, or a value outside the usable range
// [D-4]. The error is a *[LimitError].
func (l *Limits) Validate() error {
	for r := range resources {
		server := l[OfServer][r]
		if server < floors[r] || server > ceilings[r] {
			return &LimitError{r, OfServer, server, floors[r], ceilings[r]}
		}
		if p := l[OfPrincipal][r]; p < floors[r] || p > server {
			return &LimitError{r, OfPrincipal, p, floors[r], server}
		}
		if c := l[OfConnection][r]; c < 1 || c > hardCaps[r] {
			return &LimitError{r, OfConnection, c, 1, hardCaps[r]}
		}
	}
	return nil
}
