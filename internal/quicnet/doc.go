// Package quicnet carries one byte stream per connection over QUIC and presents
// it as a net.Conn: the one bidirectional stream that the client opens. A second
// stream, unidirectional streams, datagrams, 0-RTT and session tickets are
// refused; QUIC ends a connection whose peer tries.
//
// It knows what a network does to QUIC (packet sizes, socket buffers, peers that
// never finish a handshake, addresses that change) and nothing of what is spoken
// over the streams or of who may be trusted: the TLS configuration comes from
// its caller.
package quicnet
