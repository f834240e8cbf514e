// Package daemon is what the commands of the daemons have in common: exit codes, logging,
// signals, what a service manager is told, the listener for metrics and probes, and the
// subcommands that edit a registry of workload keys.
//
// It knows no protocol beyond the registry and the counts of the internal links.
package daemon
