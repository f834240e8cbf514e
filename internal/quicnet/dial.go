package quicnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
)

// maxAddresses bounds how many addresses of a name are tried.
const maxAddresses = 4

var (
	// ErrNobody says that the machine answered that nothing listens on the port.
	ErrNobody = errors.New("nothing listens there")
	// ErrNoAnswer says that no answer came in time.
	ErrNoAnswer = errors.New("no answer")
	// ErrLabel says that the server speaks another protocol.
	ErrLabel = errors.New("the server there does not speak this protocol")
	// ErrBusy says that the server takes no further connection now.
	ErrBusy = errors.New("the server takes no further connection now")
)

// Dial connects to addr, host:port, and opens the connection's stream, of which
// the peer learns with the first write. The addresses of a name are tried one
// after the other. The connection has a socket of its own that is bound to no
// address, so that it outlives a change of this machine's address. The error of
// o.TLS's own checks is wrapped in Dial's.
func Dial(ctx context.Context, addr string, o Options) (*Conn, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*Conn, error) { return nil, fmt.Errorf("dial quic %s: %w", addr, err) }
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fail(err)
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return fail(err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return fail(err)
	}
	ips = ips[:min(len(ips), maxAddresses)]
	var failed []error
	for i, ip := range ips {
		c, err := dialWithin(ctx, netip.AddrPortFrom(ip.Unmap(), uint16(number)), &o, len(ips)-i)
		if err == nil {
			return c, nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil || !(errors.Is(err, ErrNobody) || errors.Is(err, ErrNoAnswer) || unreachable(err)) {
			break // another address will not mend it
		}
	}
	return fail(errors.Join(failed...))
}

// unreachable reports an address that this machine has no way to.
func unreachable(err error) bool {
	return errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)
}

// dialWithin tries one address in its share of the time: the handshake timeout,
// or less when the context has less for it and the addresses left.
func dialWithin(ctx context.Context, addr netip.AddrPort, o *Options, addresses int) (*Conn, error) {
	d := o.HandshakeTimeout
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)/time.Duration(addresses))
	}
	inner, cancel := context.WithTimeoutCause(ctx, d, ErrNoAnswer)
	defer cancel()
	c, err := dialOne(inner, addr, o)
	if err == nil {
		return c, nil
	}
	var idle *quic.IdleTimeoutError
	var slow *quic.HandshakeTimeoutError
	if ctx.Err() == nil && (errors.Is(err, ErrNoAnswer) || errors.As(err, &idle) || errors.As(err, &slow)) {
		return nil, noAnswer(addr, d)
	}
	return nil, dialError(err)
}

// dialOne makes socket, connection and stream.
func dialOne(ctx context.Context, addr netip.AddrPort, o *Options) (*Conn, error) {
	network := "udp6"
	if addr.Addr().Is4() {
		network = "udp4"
	}
	udp, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, err
	}
	tune(udp) // a client's socket is the system's business; its listener complains
	tr := &quic.Transport{Conn: udp}
	free := func() {
		tr.Close()
		udp.Close()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var probing sync.WaitGroup
	probing.Go(func() { probe(ctx, network, addr, cancel) })
	qc, err := tr.Dial(ctx, net.UDPAddrFromAddrPort(addr), o.TLS, o.config(-1))
	cancel(nil)
	probing.Wait()
	if err != nil {
		free()
		return nil, err
	}
	st, err := qc.OpenStream()
	if err != nil {
		qc.CloseWithError(0, "") //nolint:errcheck // always nil
		free()
		return nil, err
	}
	return &Conn{qc: qc, st: st, ended: free}, nil
}

// probe finds out when nothing listens at addr, until ctx ends. The system tells
// that only to a socket that is connected, which the connection's own cannot be:
// it would be bound to the address that this machine has now. One byte that is
// no QUIC packet is sent; a QUIC server drops it.
func probe(ctx context.Context, network string, addr netip.AddrPort, refuse context.CancelCauseFunc) {
	c, err := net.DialUDP(network, nil, net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return // the handshake says why
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) }) //nolint:errcheck // frees Read
	defer stop()
	var b [1]byte
	if _, err = c.Write(b[:]); err == nil {
		_, err = c.Read(b[:])
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		refuse(ErrNobody)
	}
}

// noAnswer says in one line what to look at when nothing came back.
func noAnswer(addr netip.AddrPort, d time.Duration) error {
	hint := "is the server's quic address right, is UDP let through, and has every link on the way an MTU of 1280 or more?"
	if c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr)); err == nil { // sends nothing
		if problems := packetProblems(c.LocalAddr().(*net.UDPAddr).IP); len(problems) > 0 {
			hint = problems[0]
		}
		c.Close()
	}
	return fmt.Errorf("%w within %v; %s", ErrNoAnswer, d.Round(time.Millisecond), hint)
}

// dialError puts what QUIC says of a failed handshake into this package's words.
func dialError(err error) error {
	var transport *quic.TransportError
	if !errors.As(err, &transport) {
		return explain(err)
	}
	const noApplicationProtocol = 0x100 + 120 // alert 120 (RFC 7301)
	switch {
	case transport.ErrorCode == noApplicationProtocol:
		return &Error{Kind: ErrLabel}
	case transport.Remote && transport.ErrorCode == quic.ConnectionRefused:
		return &Error{Kind: ErrBusy, Text: "try again"}
	case !transport.Remote && transport.ErrorCode.IsCryptoError():
		for _, inner := range transport.Unwrap() {
			if inner != nil && inner != net.ErrClosed {
				return inner // of the TLS configuration's own checks
			}
		}
	}
	return explain(err)
}
