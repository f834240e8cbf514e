// Package owner starts processes for coordinators and tells the truth about them: each effect
// at most once, its outcome durable, and what a process does as source facts that stay until
// they are acknowledged (links.md, Owner; protocol.md §8.1, §11).
//
// It holds the frames of the owner link, the fence on the coordinator's authority, the effect
// journal (owner.db), the runner that puts each process on a PTY of its own, the output files,
// the [Server] that speaks the link and the [Client] that a coordinator or a reader of output
// dials with.
//
// It does not know what a process is for: objectives, runs and evidence belong to the
// coordinator.
package owner
