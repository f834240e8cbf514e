// Package witness keeps activation certificates: at most one unexpired lease per
// coordinator, epochs and activation sequences that never go back, and a signature that
// clients can check (links.md, Witness; protocol.md §4).
//
// It holds the state machine ([Witness]) with its durable file, the frames of the witness
// link, the [Server] that speaks them and the [Client] that a coordinator dials with.
// Both the client and the in-process [Local] are an [Authority], so that a simulation can
// drive the very rules that production runs on without a socket.
//
// It does not know what a coordinator does with its lease: deadlines, margins and fencing
// (protocol.md D-9, D-48) belong to the holder.
package witness
