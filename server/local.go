package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"coordinator/internal/sock"
	"coordinator/server/backup"
	"coordinator/server/quota"
)

const (
	// reservedDescriptors are kept from clients for what must go on whatever they do:
	// the lease's link, the log and its checkpoints, pages that are read, the registry,
	// the status socket. Each process owner's link has perOwner more.
	reservedDescriptors = 64
	perOwner            = 2
	// spareDescriptors of those are held open, so that they are there even when somebody
	// lowers the limit or the whole machine runs out.
	spareDescriptors = 8
	// minLocal connections at the Unix socket are the fewest with which a start makes sense.
	minLocal = 16
)

// A DescriptorError refuses a start whose limit of open files leaves no room for clients.
type DescriptorError struct{ Have, Need uint64 }

// Error says what to raise and how far.
func (e *DescriptorError) Error() string {
	return fmt.Sprintf("the limit of open files (ulimit -n, LimitNOFILE=) is %d, at least %d are needed", e.Have, e.Need)
}

// localRoom is how many connections the Unix socket may have open, out of the limit of
// descriptors. Connections over QUIC share one.
func localRoom(o Options) (int, error) {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil {
		return 0, fmt.Errorf("limit of open files: %w", err)
	}
	kept := uint64(reservedDescriptors + perOwner*len(o.Owners) + o.Descriptors)
	if have.Cur < kept+minLocal {
		return 0, &DescriptorError{Have: have.Cur, Need: kept + minLocal}
	}
	want := o.Quotas[quota.OfServer][quota.Connections] + maxUnauthenticated + 1 // which is closed at accept
	if room := have.Cur - kept; room < want {
		o.Logger.Warn("the limit of open files is below what the quotas admit; connections then wait to be accepted",
			"limit", have.Cur, "needed", want+kept)
		return int(room), nil
	}
	return int(want), nil
}

// roomy is a listener that accepts only while there is room for one connection more.
// The next one waits in the kernel, where it costs no descriptor.
type roomy struct {
	acceptor
	room chan struct{} // holds a token for each connection
	stop <-chan struct{}
}

// Accept waits for room and then for a connection, whose closing takes a token out.
func (l roomy) Accept() (*net.UnixConn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.stop:
		return nil, net.ErrClosed
	}
	uc, err := l.acceptor.Accept()
	if err != nil {
		<-l.room
	}
	return uc, err
}

// spares are descriptors that are held only to be let go. Nil has none.
type spares struct{ files []*os.File }

// fill takes as many as are missing.
func (s *spares) fill() error {
	for s != nil && len(s.files) < spareDescriptors {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
	}
	return nil
}

// release lets all of them go.
func (s *spares) release() {
	if s == nil {
		return
	}
	for _, f := range s.files {
		f.Close() //nolint:errcheck // nothing was written
	}
	s.files = nil
}

// A local is the side of the endpoint that the machine itself reaches: the Unix socket
// of the clients, and those of the operator.
type local struct {
	clients, status, backup    *sock.Listener
	accepting, telling, giving *task
	log                        *slog.Logger
	o                          Options
}

// bind makes the sockets, on which nothing is accepted yet.
func bind(o Options) (*local, error) {
	clients, err := sock.Listen(o.path(SocketFile))
	if err != nil {
		return nil, err
	}
	status, err := sock.Listen(o.path(StatusFile))
	if err != nil {
		return nil, errors.Join(err, clients.Close())
	}
	given, err := sock.Listen(o.path(backup.SocketFile))
	if err != nil {
		return nil, errors.Join(err, status.Close(), clients.Close())
	}
	return &local{clients: clients, status: status, backup: given, log: o.Logger, o: o}, nil
}

// serve accepts until close.
func (l *local) serve(s *Server) {
	l.accepting = start(func(ctx context.Context) error {
		return s.acceptLoop(ctx, roomy{l.clients, s.local, ctx.Done()}, s.takeConn, new(spares))
	})
	l.telling = start(func(ctx context.Context) error {
		err := s.acceptLoop(ctx, l.status, s.tell, nil)
		if err != nil {
			l.log.Warn("status is not told any more", "err", err)
		}
		return err
	})
	l.giving = start(func(ctx context.Context) error {
		b := &backups{s: s, o: l.o}
		err := s.acceptLoop(ctx, l.backup, func(uc *net.UnixConn) { b.take(ctx, uc) }, nil)
		b.wg.Wait() // the store outlives what is copied from it
		if err != nil {
			l.log.Warn("no backup is given any more", "err", err)
		}
		return err
	})
}

// close ends accepting and removes the sockets; the connections go on.
func (l *local) close() {
	for _, part := range []struct {
		t *task
		l *sock.Listener
	}{{l.accepting, l.clients}, {l.telling, l.status}, {l.giving, l.backup}} {
		if part.t != nil {
			part.t.cancel()
		}
		if err := part.l.Close(); err != nil {
			l.log.Warn("socket not removed", "err", err)
		}
		if part.t != nil {
			<-part.t.done
		}
	}
}
