// Package server is the coordinator endpoint: the life of an activated
// coordinator from the store lock to the relinquished lease, and the
// connections it serves (protocol.md §1 to §5, §7).
//
// It knows frames in flight: their order, caps, states, request ids, lanes and
// deadlines, and it knows in which order a start and a stop must happen. What a
// command does is package work's business, how it becomes durable package
// commit's, and what a client is shown of it package stream's. A connection is transport
// neutral: it needs a net.Conn and the channel that its proof is bound to.
package server
