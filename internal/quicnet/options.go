package quicnet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/quic-go/quic-go"
)

// Options configure a listener or a dialled connection.
type Options struct {
	// TLS is this side's configuration: TLS 1.3 only and exactly one application
	// label. Session tickets are off whatever it says.
	TLS *tls.Config
	// HandshakeTimeout bounds the time from the first packet to the finished
	// handshake, and to the open stream on a listener. Zero means 5 s.
	HandshakeTimeout time.Duration
	// IdleTimeout ends a connection on which nothing at all arrives. No keepalive
	// packets are sent: what is spoken over the stream must have its own. Zero
	// means 60 s.
	IdleTimeout time.Duration
	// Linger is how long a closed connection of a listener may still take to bring
	// its last bytes to the peer. Zero means 1 s.
	Linger time.Duration
	// MaxPending bounds a listener's connections from their first packet to
	// [Conn.Settled]; more are refused. MaxPendingPerHost bounds those from one
	// IPv4 address or IPv6 /64. Zero means 48 and half of MaxPending.
	MaxPending, MaxPendingPerHost int
	// ResetKey, when it is the same after a restart, lets a listener tell the peers
	// of its predecessor's connections that these are gone. Zero means no resets.
	ResetKey [32]byte
	// Logger gets one line for each thing that an operator can mend. Nil discards.
	Logger *slog.Logger
}

// Defaults of [Options].
const (
	defaultHandshakeTimeout = 5 * time.Second
	defaultIdleTimeout      = 60 * time.Second
	defaultLinger           = time.Second
	defaultMaxPending       = 48
)

func (o Options) withDefaults() (Options, error) {
	if o.TLS == nil || len(o.TLS.NextProtos) != 1 || o.TLS.MinVersion != tls.VersionTLS13 {
		return o, errors.New("quic: the TLS configuration must be for TLS 1.3 and name one application label")
	}
	o.TLS = o.TLS.Clone()
	o.TLS.SessionTicketsDisabled = true
	o.TLS.ClientSessionCache = nil
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = defaultHandshakeTimeout
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = defaultIdleTimeout
	}
	if o.Linger == 0 {
		o.Linger = defaultLinger
	}
	if o.MaxPending == 0 {
		o.MaxPending = defaultMaxPending
	}
	if o.MaxPendingPerHost == 0 {
		o.MaxPendingPerHost = max(o.MaxPending/2, 1)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// Receive windows of one stream. One frame of a megabyte fits into the largest,
// and no peer can make this side hold more than that unread.
const (
	initialWindow = 256 << 10
	maxWindow     = 2 << 20
)

// packetSize is the smallest that QUIC allows for a connection's first packets. They begin
// with it and grow as larger ones turn out to arrive: a router may lose those that are too
// large for its next link without a word, and the handshake could then never end.
const packetSize = 1200

// config is what both sides ask of QUIC; streams is how many bidirectional
// streams the peer may open in the connection's whole life.
func (o *Options) config(streams int64) *quic.Config {
	return &quic.Config{
		HandshakeIdleTimeout:           o.HandshakeTimeout / 2, // quic-go allows twice that for the whole
		MaxIdleTimeout:                 o.IdleTimeout,
		InitialPacketSize:              packetSize,
		MaxIncomingStreams:             streams,
		RequireStreamCreditRelease:     true, // which never comes: a finished stream makes no room for a second
		MaxIncomingUniStreams:          -1,
		InitialStreamReceiveWindow:     initialWindow,
		MaxStreamReceiveWindow:         maxWindow,
		InitialConnectionReceiveWindow: initialWindow,
		MaxConnectionReceiveWindow:     maxWindow,
	}
}

// CheckAddr refuses what is not host:port with a port from 1 to 65535. An empty
// host stands for every address of the machine, for listening.
func CheckAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q has no port from 1 to 65535", addr)
	}
	return nil
}
