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

// A Listener accepts connections on one UDP socket, which all of them share: a
// connection costs no descriptor.
type Listener struct {
	opt  Options
	udp  *net.UDPConn
	tr   *quic.Transport
	ln   *quic.Listener
	wait pending

	ready  chan *Conn // unbuffered: handed to Accept
	ctx    context.Context
	cancel context.CancelCauseFunc // ends accepting, with what Accept then returns
	taking sync.WaitGroup          // run, and one for each connection before Accept has it
	live   sync.WaitGroup          // connections that Accept may have had, until they have closed
	once   sync.Once
	finish func() error // once
}

// pendingKey is under which a connection's context has its *charge.
type pendingKey struct{}

// charge is a pending connection's place and when it began.
type charge struct {
	release func()
	since   time.Time
}

// errNoRoom refuses a connection above the limits of pending ones.
var errNoRoom = errors.New("too many connections are pending")

// Listen binds addr, host:port. Whatever an operator should mend at the socket's
// size or the interfaces' packet size is told to the logger, one line each.
func Listen(addr string, o Options) (*Listener, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	udp, err := bind(addr)
	if err != nil {
		return nil, err
	}
	for _, problem := range tune(udp) {
		o.Logger.Warn("quic may be slow", "problem", problem)
	}
	for _, problem := range packetProblems(udp.LocalAddr().(*net.UDPAddr).IP) {
		o.Logger.Warn("quic may not get through", "problem", problem)
	}
	l := &Listener{
		opt: o, udp: udp, ready: make(chan *Conn),
		wait: pending{limit: o.MaxPending, perHost: o.MaxPendingPerHost, byHost: map[netip.Prefix]int{}},
	}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.tr = &quic.Transport{
		Conn: udp, ConnContext: l.admit,
		VerifySourceAddress: func(net.Addr) bool { return l.wait.crowded() },
	}
	if o.ResetKey != ([32]byte{}) {
		l.tr.StatelessResetKey = (*quic.StatelessResetKey)(&o.ResetKey)
	}
	if l.ln, err = l.tr.Listen(o.TLS, o.config(1)); err != nil {
		udp.Close()
		return nil, fmt.Errorf("listen on quic %s: %w", addr, err)
	}
	l.finish = sync.OnceValue(func() error {
		l.Close() //nolint:errcheck // always nil
		l.live.Wait()
		return errors.Join(l.tr.Close(), l.udp.Close())
	})
	l.taking.Go(l.run)
	return l, nil
}

// CanListen reports why [Listen] would not get addr now, for whoever must not take what
// others wait for before it is certain to be reached.
func CanListen(addr string) error {
	udp, err := bind(addr)
	if err != nil {
		return err
	}
	return udp.Close()
}

// bind opens the UDP socket at addr. Where the system's words leave open what to do, the
// error says it.
func bind(addr string) (*net.UDPConn, error) {
	local, err := net.ResolveUDPAddr("udp", addr)
	var udp *net.UDPConn
	if err == nil {
		udp, err = net.ListenUDP("udp", local)
	}
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		err = fmt.Errorf("this machine has no address %s: name one that it has, or 0.0.0.0 or [::] for all of them (%w)", local.IP, err)
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("another process listens there: find it with `ss -lunp`, or choose another port (%w)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on quic %s: %w", addr, err)
	}
	return udp, nil
}

// admit is asked by QUIC before a first packet costs anything. The charge ends
// with the connection's context if not before.
func (l *Listener) admit(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
	release := l.wait.take(info.RemoteAddr)
	if release == nil {
		return nil, errNoRoom
	}
	context.AfterFunc(ctx, release)
	return context.WithValue(ctx, pendingKey{}, &charge{release, time.Now()}), nil
}

// run takes connections whose handshake is complete until the listener closes.
func (l *Listener) run() {
	for {
		qc, err := l.ln.Accept(l.ctx)
		if err != nil {
			if l.ctx.Err() == nil {
				l.cancel(fmt.Errorf("quic: the socket failed: %v", err)) // not %w: it passes for net.ErrClosed
			}
			return
		}
		l.taking.Go(func() { l.take(qc) })
	}
}

// take waits for the client's stream and hands the connection to Accept.
func (l *Listener) take(qc *quic.Conn) {
	c, _ := qc.Context().Value(pendingKey{}).(*charge) // set by admit for every connection
	ctx, cancel := context.WithDeadline(l.ctx, c.since.Add(l.opt.HandshakeTimeout))
	defer cancel()
	st, err := qc.AcceptStream(ctx)
	if err != nil {
		qc.CloseWithError(0, "") //nolint:errcheck // always nil
		return
	}
	l.live.Add(1)
	conn := &Conn{qc: qc, st: st, linger: l.opt.Linger, settled: c.release, ended: l.live.Done}
	select {
	case l.ready <- conn:
	case <-l.ctx.Done():
		conn.end()
	}
}

// Accept waits for the next connection whose handshake is complete and whose
// client has opened its stream. After Close the error is net.ErrClosed.
func (l *Listener) Accept() (*Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.ctx.Done():
		return nil, context.Cause(l.ctx)
	}
}

// Addr returns the address that is listened on.
func (l *Listener) Addr() net.Addr { return l.udp.LocalAddr() }

// Pending returns how many connections have not settled.
func (l *Listener) Pending() int { return l.wait.count() }

// Close ends Accept and refuses new connections. Those that Accept returned go
// on; Finish waits for them.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.cancel(net.ErrClosed)
		l.ln.Close() //nolint:errcheck // always nil
		l.taking.Wait()
	})
	return nil
}

// Finish closes the listener, waits until every connection has closed, for which
// the caller must have called their Close, and frees the socket.
func (l *Listener) Finish() error { return l.finish() }
