// Package frames holds every frame, record, union, kind, limit, error code and digest of
// the endpoint phux-coordinator/1 (protocol.md): complete encoders and decoders, one file
// per family.
//
// Each type states its layout once (package codec), so what it encodes it also decodes,
// and what it refuses to decode it refuses to encode. The package checks form and bounds
// only. It knows no state: who may send what when, and what a frame does, is elsewhere.
//
// Byte slices of a decoded value alias the bytes it was decoded from.
package frames
