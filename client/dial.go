package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"
)

// readBuffer is the reader's buffer: two pages of the operating system's pipe, so that a
// burst of small frames costs one read.
const readBuffer = 64 << 10

// Dial connects to the coordinator that c names, proves the key, and accepts the server
// only when every pin of c holds: authority key and proof, witness, certificate,
// coordinator, incarnation, and an authority not below the highest seen (protocol.md §4,
// §5.5). What the client remembers of that authority is durable before Dial returns.
//
// Until one snapshot has verified under an authority that is new to this client, only
// Snapshot and Lookup are sent (D-44). Errors match [ErrNotSent] in the sense that no
// request was made; causes are [PeerError], [AuthenticationError], [LowerAuthorityError],
// [QuarantineError], [RefusedError] with the server's code, or those of the system.
func Dial(ctx context.Context, c *Context, opts Options) (*Conn, error) {
	opts.defaults()
	if err := fill(c, &opts); err != nil {
		return nil, notSent(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeLimit, errHandshakeTimeout)
	defer cancel()
	nc, channel, err := opts.Transport(ctx, c)
	if err != nil {
		return nil, notSent(err)
	}
	conn := &Conn{
		nc: nc, wnow: newDirect(nc), opts: opts, pins: c, state: opts.State, keyID: handshake.KeyIDOf(opts.Key.Public()),
		slots: make(chan struct{}, opts.MaxRequests), wlock: make(chan struct{}, 1), rests: make(chan []byte),
		pongs: make(chan uint64, pongQueue), done: make(chan struct{}),
		calls: map[frames.RequestID]*call{}, pings: map[uint64]chan struct{}{},
		subs: map[frames.SubscriptionID]*Subscription{},
	}
	r := bufio.NewReaderSize(nc, readBuffer)
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	err = conn.shake(r, channel)
	if !stop() || err != nil {
		nc.Close()
		if cause := context.Cause(ctx); cause != nil && (err == nil || isTimeout(err)) {
			err = cause
		}
		return nil, notSent(fmt.Errorf("handshake: %w", err))
	}
	if err := opts.State.attach(conn); err != nil {
		nc.Close()
		return nil, notSent(err)
	}
	conn.start(r)
	return conn, nil
}

// errHandshakeTimeout is why a server that accepts and then stays silent is given up.
var errHandshakeTimeout = fmt.Errorf("no answer to the handshake within %v", handshakeLimit)

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// fill loads what the options leave to the context: the key and the memory.
func fill(c *Context, opts *Options) error {
	if opts.Key == nil {
		key, err := c.key()
		if err != nil {
			return err
		}
		opts.Key = key
	}
	if opts.State == nil {
		state, err := OpenState(c)
		if err != nil {
			return err
		}
		opts.State = state
	}
	return nil
}

// unixTransport dials the context's socket. The process behind it must be this user's, as
// the server demands of its clients; the proof is bound to this process's own credentials.
func unixTransport(ctx context.Context, c *Context) (net.Conn, handshake.Channel, error) {
	if c.Socket == "" {
		return nil, nil, fmt.Errorf("%w: the context gives quic = %q and no socket", ErrTransport, c.QUIC)
	}
	nc, err := sock.Dial(ctx, c.Socket)
	if err != nil {
		return nil, nil, fmt.Errorf("dial: %w", err)
	}
	if _, err := sock.SameUser(nc); err != nil {
		nc.Close()
		return nil, nil, &PeerError{What: "socket", Detail: "the process behind it is not this user's", Cause: err}
	}
	return nc, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
}

// shake runs the handshake of §5 and all checks that precede the acceptance of HELLO_OK.
func (c *Conn) shake(r *bufio.Reader, channel handshake.Channel) error {
	hs := &handshake.Client{
		Service: handshake.Service{Name: frames.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes)},
		Key:     c.opts.Key,
		Pin:     c.pins.Authority,
	}
	offer, err := hs.NewOffer(c.opts.Rand)
	if err != nil {
		return err
	}
	hello := &frames.CoordHello{
		Version: frames.CurrentVersion(), Name: c.opts.Name, Offered: c.opts.Offered | c.opts.Required,
		Required: c.opts.Required, Limits: c.opts.Limits, HasOffer: true, Offer: offer,
	}
	if err := c.put(hello); err != nil {
		return err
	}
	fr := frameReader{r: r}
	challenge, err := greet[*frames.WorkloadChallenge](c, &fr)
	if err != nil {
		return err
	}
	expiry := c.opts.Clock.Now().Unix() + uint64(c.opts.Grant/time.Second)
	response, err := hs.Respond(&offer, challenge, channel, uint64(c.opts.Scope), expiry)
	if err != nil {
		return peerError(err)
	}
	if err := c.put(response); err != nil {
		return err
	}
	ok, err := greet[*frames.CoordHelloOK](c, &fr)
	if err != nil {
		return err
	}
	if err := hs.CheckHelloOK(challenge, response, &ok.Grant, ok.IncarnationID); err != nil {
		return peerError(err)
	}
	return c.accept(hello, ok)
}

// put writes a frame of the handshake.
func (c *Conn) put(f frames.Frame) error {
	buf, err := frames.Append(nil, f)
	if err != nil {
		return err
	}
	_, err = c.nc.Write(buf)
	return err
}

// greet reads the next frame of the handshake, which must be an F or an error.
func greet[F frames.Frame](c *Conn, fr *frameReader) (F, error) {
	var none F
	f, err := fr.next()
	if err != nil {
		return none, disconnected(err)
	}
	switch f := f.(type) {
	case F:
		return f, nil
	case *frames.CoordError:
		if f.Code == frames.CodeAuthenticationFailed {
			return none, &AuthenticationError{KeyID: c.keyID, AcceptedBefore: c.state.acceptedBefore(c.keyID)}
		}
		return none, &RefusedError{f.Code, f.Message}
	}
	return none, fmt.Errorf("%w: %v in the handshake", ErrProtocol, f.Type())
}

// accept makes every check that precedes the acceptance of COORD_HELLO_OK, and records
// the authority. Nothing of a server that fails one is remembered.
func (c *Conn) accept(hello *frames.CoordHello, ok *frames.CoordHelloOK) error {
	now := c.opts.Clock.Now()
	if err := checkSelection(hello, ok); err != nil {
		return err
	}
	if ok.Grant.ExpiresAt <= now.Unix() {
		return &PeerError{What: "workload grant", Detail: "it has expired by this machine's clock; compare the clocks"}
	}
	if ok.CoordinatorID != c.pins.CoordinatorID {
		return &PeerError{What: "coordinator_id", Detail: "the server is coordinator " + ok.CoordinatorID.String() + ", the context pins " + c.pins.CoordinatorID.String()}
	}
	cert := &ok.Certificate
	if err := c.pins.checkCertificate(cert, now, c.state); err != nil {
		return err
	}
	if cert.Epoch != ok.Epoch || cert.IncarnationID != ok.IncarnationID {
		return &PeerError{What: "activation certificate", Detail: "its epoch or incarnation is not the server's"}
	}
	guard := cert.Guard()
	verified, err := c.state.accept(cert, guard.TokenSHA256, c.keyID)
	if err != nil {
		return err
	}
	c.hello, c.guard = *ok, guard
	c.verified.Store(verified)
	c.lease.Store(newLease(*cert, now))
	c.heard.Store(now.Wall.UnixNano())
	return nil
}

// checkSelection holds what the server selected against what was offered (§2.3, §5.6).
func checkSelection(hello *frames.CoordHello, ok *frames.CoordHelloOK) error {
	if !ok.Version.Compatible(hello.Version) {
		return fmt.Errorf("%w: version %d.%d in HELLO_OK", ErrProtocol, ok.Version.Major, ok.Version.Minor)
	}
	if !hello.Offered.Has(ok.Capabilities) || !ok.Capabilities.Has(hello.Required) {
		return fmt.Errorf("%w: capabilities that do not match the offer", ErrProtocol)
	}
	selected, err := hello.Limits.Select(ok.Limits)
	if err != nil || selected != ok.Limits {
		return fmt.Errorf("%w: limits above the offer", ErrProtocol)
	}
	return nil
}

// peerError names, in the words of the context file, why the handshake turned the server
// away.
func peerError(err error) error {
	var pin *handshake.PinError
	switch {
	case errors.As(err, &pin):
		return &PeerError{What: "authority", Cause: err,
			Detail: "the server's key is " + handshake.FormatFingerprint(pin.Got) + ", the context pins " + handshake.FormatFingerprint(pin.Want)}
	case errors.Is(err, handshake.ErrServerProof):
		return &PeerError{What: "authority", Detail: "the server shows the pinned key but cannot prove that it holds it", Cause: err}
	case errors.Is(err, handshake.ErrBinding):
		return &PeerError{What: "channel binding", Detail: "the proof is for another connection: something relays this one, or the two sides see different process ids", Cause: err}
	case errors.Is(err, handshake.ErrChallenge), errors.Is(err, handshake.ErrDowngrade):
		return &PeerError{What: "handshake", Detail: err.Error(), Cause: err}
	}
	return err
}

// checkCertificate verifies a certificate's pins, times and signature (§4).
func (c *Context) checkCertificate(cert *frames.Certificate, now clock.Reading, s *State) error {
	pins := handshake.Pins{WitnessID: c.WitnessID, WitnessPublicKey: c.WitnessPublicKey, CoordinatorID: c.CoordinatorID}
	err := s.verify(cert, pins, now.Unix())
	var bad *handshake.CertificateError
	if !errors.As(err, &bad) {
		return err
	}
	what, detail := "activation certificate", bad.Field+" "+bad.Cause.Error()
	switch {
	case bad.Field == "witness_id":
		what, detail = "witness_id", "the certificate is from witness "+cert.WitnessID.String()+", the context pins "+c.WitnessID.String()
	case bad.Field == "witness_key_id" || bad.Field == "signature":
		what, detail = "witness_public_key", "the certificate is not signed with the pinned witness key"
	case errors.Is(err, handshake.ErrCertificateEarly):
		detail = "it was issued ahead of this machine's clock; compare the clocks"
	case errors.Is(err, handshake.ErrCertificateExpired):
		detail = "it has expired by this machine's clock; compare the clocks"
	}
	return &PeerError{What: what, Detail: detail, Cause: err}
}
