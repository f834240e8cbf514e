// Package sim is the deterministic simulation of a coordinator: one seed drives the real
// store, commit, work, authority and witness code on a simulated clock and disk through
// crashes at any write, stalls past the lease, paused machines, clock steps, witness outages,
// copies of a store started beside the first, foreign senders, lookups and registry changes.
//
// It holds tests only. `make sim SEEDS=50 SEED_BASE=1` runs seeds 1 to 50; a seed that
// fails prints the line that runs it again.
package sim
