// Package handshake is the workload profile phux-workload/v1: strict Ed25519,
// the transcripts and channel bindings of the proof, key files, the live
// registry of workload keys, and both sides of the exchange.
//
// It knows the two proof frames and the grant of package frames, and no
// transport: a connection hands it a Channel and carries its frames. It holds
// no service's rules beyond the scope bits it is told of.
package handshake
