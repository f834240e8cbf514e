package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/server/authority"
	"coordinator/server/commit"
	"coordinator/server/outbox"
	"coordinator/server/quota"
	"coordinator/server/store"
	"coordinator/server/stream"
	"coordinator/witness"
)

// Names of the files of a coordinator's state directory that the server opens.
const (
	AuthorityKeyFile = "workload-authority.ed25519"
	RegistryFile     = "workload-keys"
	SocketFile       = "coordinator.sock"
)

// Options is what [Run] needs.
type Options struct {
	// Dir is the state directory: store, keys, registry and socket.
	Dir string
	// CoordinatorID is what the configuration says; the store must agree.
	CoordinatorID frames.CoordinatorID
	// Witness makes the connection to the witness, once the local checks are done.
	Witness func() (witness.Authority, error)
	// LeaseSeconds of each certificate. Zero means the reference, 15.
	LeaseSeconds uint16
	// QUIC is host:port of a UDP socket on which remote clients are served too.
	// Empty means the Unix socket alone.
	QUIC string
	// Quotas are the aggregate and connection limits. Zero means the defaults.
	Quotas quota.Limits
	// LowDiskBytes is the reserve below which new mutations are refused [D-41].
	// Zero means 256 MiB.
	LowDiskBytes uint64
	// PageCheck checks state.db after an unclean stop, in a child process. Nil
	// skips the check.
	PageCheck func(path string) error
	// Owners are the process owners on which runs can be started.
	Owners []outbox.Owner
	// Store options that a caller may set; the server fills in the rest.
	Store store.Options

	// Clock and Rand are the machine's when nil.
	Clock clock.Clock
	Rand  io.Reader
	// Logger gets one line per connection and per state of the process. Nil discards.
	Logger *slog.Logger
	// Progress gets a line for people for each wait of the start. Nil discards.
	Progress func(string)
	// Advance is told often how far a step of opening the store has come. It must not wait. Nil is
	// ignored.
	Advance func(store.Advance)
	// Ready is called once the endpoint serves. Nil is ignored.
	Ready func(Info)
	// Stopping is called once it serves no more, with the reason; nil after a stop that ctx
	// asked for. Nil is ignored.
	Stopping func(cause error)
	// Round is called with the number of commands and own changes of each commit. It must
	// not wait. Nil is ignored.
	Round func(items int)
	// Working is called often while the store is opened: proof that a long start goes on. It
	// must not wait. Nil is ignored.
	Working func()

	// Descriptors are kept from clients for what the caller itself may open meanwhile.
	Descriptors int
	// Monitor watches the coordinator. Nil is ignored.
	Monitor *Monitor

	built func(*Server) // for tests of this package
}

// Info says what serves where.
type Info struct {
	Socket      string
	QUIC        string             // the address bound, empty when off
	Fingerprint frames.Fingerprint // of the authority key: what clients pin
	Certificate frames.Certificate // the first one of this activation
	// Turn returns nil once every loop that the service rests on has come round after the
	// call: a proof that it goes on. It waits for one that hangs until ctx ends.
	Turn func(ctx context.Context) error
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Quotas == (quota.Limits{}) {
		o.Quotas = quota.Defaults()
	}
	if o.LowDiskBytes == 0 {
		o.LowDiskBytes = 256 << 20
	}
	return o
}

func (o *Options) path(name string) string { return filepath.Join(o.Dir, name) }

// freeBytes is what may still be written where the store is.
func (o *Options) freeBytes() uint64 { return durable.FreeBytes(o.Dir) }

// A Server is one activated coordinator. [Run] makes one; tests and transports
// reach it through [Server.Serve].
type Server struct {
	clock     clock.Clock
	log       *slog.Logger
	offer     frames.Limits
	fence     *authority.Fence
	store     *store.Store
	writer    *commit.Writer
	streams   *stream.Manager
	outbox    *outbox.Outbox
	quotas    *quota.Server
	handshake *handshake.Server
	registry  *handshake.Registry
	pin       frames.Fingerprint // of the authority key
	following context.Context    // owned by the registry's goroutine: ends with it
	committed func(store.Batch)  // told of each commit first; nil for none
	window    int                // bytes of newest events in memory; zero for the default

	// broken gets the first error that no connection can be served after.
	broken chan error
	// retained holds one token when the RETENTION record has changed.
	retained chan struct{}
	// tended is taken by the task that tends the store each time it comes round.
	tended chan struct{}

	local  chan struct{} // holds a token for each connection at the Unix socket
	lines  lines
	meters handshake.ConnMeters

	mu      sync.Mutex
	conns   map[*conn]struct{} // guarded by mu
	waiting int                // guarded by mu: connections that are not authenticated
	// waitingOf counts those at the Unix socket by process; without zeros. Guarded by mu.
	waitingOf map[uint64]int
	lastConn  uint64         // guarded by mu
	stopping  bool           // guarded by mu: no connection is taken any more
	running   sync.WaitGroup // connections
}

// ErrOtherStore means that the store belongs to another coordinator than the
// configuration names.
var ErrOtherStore = errors.New("the store belongs to another coordinator")

// ErrStoreFailed means that the store met a fault outside of a commit, as when a
// checkpoint could not be written. What was acknowledged is in the log.
var ErrStoreFailed = errors.New("the store has failed")

// breakdown reports an error after which the process must stop: the store or
// the writer has failed.
func (s *Server) breakdown(err error) {
	select {
	case s.broken <- err:
	default:
	}
}

// announce sends COORD_AUTHORITY_RENEWED to every authenticated connection.
func (s *Server) announce(cert frames.Certificate) {
	frame, err := frames.Append(nil, &frames.AuthorityRenewed{Certificate: cert})
	if err != nil {
		s.breakdown(fmt.Errorf("renewed certificate: %w", err))
		return
	}
	s.each(func(c *conn) { c.renewed(frame) })
}

// flush waits until what every connection has queued so far is on its way, or
// ctx ends. A peer that does not read holds it up only so long.
func (s *Server) flush(ctx context.Context) {
	var all []*conn
	var waits []<-chan struct{}
	s.each(func(c *conn) { all, waits = append(all, c), append(waits, c.flushed()) })
	for i, w := range waits {
		select {
		case <-w:
		case <-all[i].gone:
		case <-ctx.Done():
			return
		}
	}
}

// flushed gives a channel that is closed when the replies queued so far are
// handed to the transport, or the connection has ended.
func (c *conn) flushed() <-chan struct{} {
	done := make(chan struct{})
	var once sync.Once
	finish := func() { once.Do(func() { close(done) }) }
	if !c.lanes.putReply(outgoing{sent: finish}) {
		finish()
	}
	return done
}
