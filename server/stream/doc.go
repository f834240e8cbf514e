// Package stream serves immutable cuts of the whole authority: snapshot leases,
// their cursors and pages, and what a cut is charged for while it holds old
// versions back (protocol.md §9).
//
// It knows records, the one visibility predicate and the limits of a
// connection. It knows no transport and no frames in flight: its caller decodes
// requests, checks guard and grant, and writes what it returns. Cuts are made on
// the writer, between batches; pages are read on the caller's goroutine and no
// store transaction outlives a call.
package stream
