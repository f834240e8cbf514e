// Package store is the durable store of one coordinator: an append-only log of commits, a
// live tree in memory, history in one bbolt file, and the checkpoint that moves the one
// into the other.
//
// One goroutine, the writer, begins and commits transactions and makes cuts. A commit is
// one record in the log, one flush, and then the same change to the trees in memory. A
// record holds results and never inputs, so that recovery applies what was decided and
// decides nothing. Any goroutine may prefetch, page through a cut and replay events.
//
// A segment of the log that takes no more records ends in an index of them, so that a
// start reads what is behind the checkpoint and a replay counts without reading images.
//
// It knows rows, events, sequences and activations as bytes with a key. It knows nothing
// of states, commands, visibility or time: callers pass those in. It holds no lock file
// and asks no witness. No type of bbolt leaves the package.
package store
