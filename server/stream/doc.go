// Package stream serves what a client follows: immutable cuts of the whole
// authority, live subscriptions, and the replays and replacements that heal them
// (protocol.md §9, §10).
//
// It knows records, events, the one visibility predicate and the limits of a
// connection: credit, GAP, leases, cursors and what is charged for them. It
// knows no transport and no frames in flight: its caller decodes requests, checks
// guard and grant, writes what it returns and pulls events when it can write.
//
// Events are published on the writer's goroutine, which only appends them to a
// window shared by all; who sees them is worked out by the manager's own
// goroutine. A subscription is a place in the sequence with a few counts. It has
// no goroutine and no queue of copies; the connection that owns it pulls from the
// window, or from the log when the window has moved on.
package stream
