// Package sim is the deterministic simulation of the whole endpoint: one seed drives the real
// store, commit, work, authority, witness, stream and connection code and real clients
// (sessions, followers, replicas) on simulated clocks, disks and networks through crashes at
// any write, stalls past the lease, paused machines, clock steps, witness outages, copies of
// a store started beside the first and older ones put back, connections that are cut, frozen
// and reordered, consumers that do not keep up, archives, trimmed events, tombstones, foreign
// senders and registry changes.
//
// It holds tests only. `make sim SEEDS=200 SEED_BASE=1` runs seeds 1 to 200; a seed that
// fails prints the line that runs it again. docs/adr/0007-one-seed-is-one-run.md says what
// is held against what.
package sim
