// Package limits measures what this machine and the libraries allow at best, without any
// system in between: syncs, hashing, sockets and QUIC. The coordinator is held against some
// of these as a share of them.
package limits

import (
	"github.com/quic-go/quic-go"

	"coordinator/bench/internal/measure"
)

// Parts are the limits, in the order in which they are measured.
func Parts() []measure.Part {
	return []measure.Part{
		{Name: "limits/disk", Run: disk},
		{Name: "limits/crypto", Run: crypto},
		{Name: "limits/unix", Run: unixPing},
		{Name: "limits/quic", Run: quicLimits},
		{Name: "limits/fanout", Run: unixFan},
		{Name: "limits/quicfan", Run: quicFan},
	}
}

// Extra are limits that no target is held against: they are run by name only.
func Extra() []measure.Part {
	return []measure.Part{{Name: "limits/bbolt", Run: bboltLimits}}
}

// Children are the other ends of the connections, in processes of their own.
func Children() map[string]func(args []string) error {
	return map[string]func([]string) error{"echo": serveEcho, "sink": runSink, "quicsink": runQUICSink}
}

// Modules names the libraries whose limits these are.
func Modules() []string {
	return []string{"go.etcd.io/bbolt", "github.com/quic-go/quic-go"}
}

// quicConfig gives the streams windows that do not limit a loopback.
func quicConfig() *quic.Config {
	return &quic.Config{
		InitialStreamReceiveWindow: 4 << 20, MaxStreamReceiveWindow: 16 << 20,
		InitialConnectionReceiveWindow: 8 << 20, MaxConnectionReceiveWindow: 32 << 20,
	}
}
