// Package measure holds what every benchmark of this module shares: latency histograms,
// recorded figures and their medians, closed loops of operations, fan-out to subscribers,
// and probes of a process's CPU, memory and disk flushes.
//
// It knows no system under test. Those live in the packages peers, limits and own, each as
// a list of [Part]; [Runner] runs them one after the other.
package measure
