// Package own drives the coordinator as the peers are driven: coordinatord and witnessd as
// processes of their own, built from this checkout, and the client package over the Unix
// socket and over QUIC. A load sends 256 bytes per command, as at the peers.
package own

import "coordinator/bench/internal/measure"

// Parts are the loads of the coordinator.
func Parts() []measure.Part {
	return []measure.Part{
		{Name: "own/commands", Run: commands},
		{Name: "own/compare", Run: compare},
		{Name: "own/fan100", Run: fan(overUnix, 100)},
		{Name: "own/fan500", Run: fan(overUnix, 500)},
		{Name: "own/quic", Run: quicCommands},
		{Name: "own/quicfan", Run: fan(overQUIC, 100)},
		{Name: "own/reading", Run: reading},
		{Name: "own/connect", Run: connect},
		{Name: "own/codec", Run: codecs},
		{Name: "own/idle", Run: idle},
		{Name: "own/restart", Run: restart},
	}
}
