// Package sim is the deterministic simulation of a coordinator: one seed drives the real
// store, commit, work, authority and witness code on a simulated clock and disk through
// crashes at any write, stalls past the lease, clock steps, witness outages and copies of
// a store started beside the first.
//
// It holds tests only. `make sim SEEDS=50 SEED_BASE=1` runs seeds 1 to 50; a seed that
// fails prints the line that runs it again.
package sim
