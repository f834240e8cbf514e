package owner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"coordinator/frames"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// selfExe is this program, even when its file was replaced meanwhile.
const selfExe = "/proc/self/exe"

// maxStartText bounds what a held process may say about its failure.
const maxStartText = 512

// maxLate bounds what is read of a terminal after the cut. The kernel holds less than that; a
// descendant that goes on writing could keep it full.
const maxLate = 64 << 10

// ptyLauncher runs processes on PTYs.
type ptyLauncher struct{}

func newLauncher() (launcher, error) { return ptyLauncher{}, nil }

// terminal is a PTY. The owner keeps the slave side open until the process has ended, so that
// a process may close and reopen its terminal meanwhile: until then there is no end of it.
type terminal struct {
	master *os.File // non-blocking, so that closing it frees a reader
	slave  *os.File
}

func openTerminal(rows, cols uint16) (*terminal, error) {
	ptmx, tty, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	defer ptmx.Close()
	// The master that pty opens is blocking and ignores deadlines and closing; a duplicate
	// that is wrapped anew does not.
	fd := -1
	rc, err := ptmx.SyscallConn()
	if err == nil {
		cerr := rc.Control(func(orig uintptr) {
			if err = unix.IoctlSetWinsize(int(orig), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
				return
			}
			if fd, err = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				err = unix.SetNonblock(fd, true)
			}
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, errors.Join(fmt.Errorf("set a terminal up: %w", err), tty.Close())
	}
	return &terminal{master: os.NewFile(uintptr(fd), "ptmx"), slave: tty}, nil
}

func (t *terminal) close() {
	t.master.Close()
	t.slave.Close()
}

// heldProcess is this program, waiting on a pipe for what to become.
type heldProcess struct {
	process *os.Process
	pidfd   *os.File // nil when the kernel has none
	ident   identity
	term    *terminal
	orders  *os.File // write end; its closing ends the process
	report  *os.File // read end; its end means that the command was started
}

func (ptyLauncher) hold(rows, cols uint16) (_ held, err error) {
	term, err := openTerminal(rows, cols)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			term.close()
		}
	}()
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ordersR.Close()
	reportR, reportW, err := os.Pipe()
	if err != nil {
		ordersW.Close()
		return nil, err
	}
	defer reportW.Close()
	spawning.RLock()
	p, err := os.StartProcess(selfExe, []string{heldName}, &os.ProcAttr{
		Dir: "/", Env: []string{},
		Files: []*os.File{term.slave, term.slave, term.slave, ordersR, reportW},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	spawning.RUnlock()
	if err != nil {
		ordersW.Close()
		reportR.Close()
		return nil, fmt.Errorf("start a process: %w", err)
	}
	ownChildren.Store(p.Pid, nil)
	h := &heldProcess{process: p, term: term, orders: ordersW, report: reportR}
	// It has not been waited for, so the id is its own. A descriptor of its own, too: to be
	// non-blocking is a property that duplicates share, and waiting on it would then fail.
	if fd, err := unix.PidfdOpen(p.Pid, unix.PIDFD_NONBLOCK); err == nil {
		h.pidfd = os.NewFile(uintptr(fd), "pidfd")
	}
	st, err := readStat(p.Pid)
	if err != nil {
		h.abandonKeepingTerminal()
		return nil, fmt.Errorf("identify a process: %w", err)
	}
	h.ident = identity{group: uint32(p.Pid), start: st.start}
	return h, nil
}

func (h *heldProcess) id() identity { return h.ident }

func (h *heldProcess) abandon() {
	h.abandonKeepingTerminal()
	h.term.close()
}

func (h *heldProcess) abandonKeepingTerminal() {
	h.orders.Close()
	h.process.Kill() //nolint:errcheck // it may have ended already
	h.process.Wait() //nolint:errcheck // nobody asks for its status
	ownChildren.Delete(h.process.Pid)
	h.report.Close()
	if h.pidfd != nil {
		h.pidfd.Close()
	}
}

// release sends the command and learns whether it was started.
func (h *heldProcess) release(c command) (child, error) {
	order := encodeOrder(c)
	_, werr := h.orders.Write(order)
	var text []byte
	var rerr error
	if werr == nil {
		text, rerr = io.ReadAll(io.LimitReader(h.report, maxStartText))
	}
	switch {
	case werr != nil || rerr != nil:
		h.abandon()
		return nil, &startError{"the process ended before it could be started"}
	case len(text) > 0:
		h.abandon()
		return nil, &startError{string(text)}
	}
	h.orders.Close()
	h.report.Close()
	return &ptyChild{process: h.process, pidfd: h.pidfd, group: int(h.ident.group), start: h.ident.start, term: h.term}, nil
}

// ptyChild is a started process.
type ptyChild struct {
	process *os.Process
	pidfd   *os.File
	group   int
	start   uint64
	term    *terminal
	late    int // owned by who reads; bytes read after the cut

	mu     sync.Mutex
	reaped bool // guarded by mu
}

// Read takes the kernel's EIO, which says that nobody has the slave side open, as the end.
func (c *ptyChild) Read(p []byte) (int, error) {
	n, err := c.term.master.Read(p)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return c.readLate(p)
	case errors.Is(err, syscall.EIO), errors.Is(err, os.ErrClosed):
		err = io.EOF
	}
	return n, err
}

// readLate reads what the terminal holds after the cut, without waiting.
func (c *ptyChild) readLate(p []byte) (n int, err error) {
	if p = p[:min(len(p), maxLate-c.late)]; len(p) == 0 {
		return 0, io.EOF
	}
	rc, err := c.term.master.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := rc.Control(func(fd uintptr) {
		for n, err = unix.Read(int(fd), p); errors.Is(err, unix.EINTR); {
			n, err = unix.Read(int(fd), p)
		}
	})
	if err = errors.Join(err, cerr); err == nil && n > 0 {
		c.late += n
		return n, nil
	}
	if err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return 0, err
}

// spawning keeps held from asking while a process is being made: until its exec is over it has
// copies of all that this one has open, other terminals among them.
var spawning sync.RWMutex

// held asks the kernel, which hangs up on a master whose slave side nobody has open.
func (c *ptyChild) held() bool {
	rc, err := c.term.master.SyscallConn()
	if err != nil {
		return false
	}
	spawning.Lock()
	defer spawning.Unlock()
	held := false
	err = rc.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			_, perr := unix.Poll(fds, 0)
			if !errors.Is(perr, unix.EINTR) {
				held = perr == nil && fds[0].Revents&unix.POLLHUP == 0
				return
			}
		}
	})
	return err == nil && held
}

// cut has the reads end by a deadline that has passed. What was written before the descendant
// was given up is still the process's output, or may be.
func (c *ptyChild) cut() {
	if c.term.master.SetReadDeadline(time.Unix(1, 0)) != nil {
		c.term.master.Close() // never leave the reader waiting; openTerminal makes it pollable
	}
}

func (c *ptyChild) hangup() { c.term.master.Close() }

// wait reaps the process under the lock under which its group is signalled: until then its id
// cannot be anybody else's.
func (c *ptyChild) wait() frames.Closed {
	c.awaitExit()
	c.mu.Lock()
	state, err := c.process.Wait()
	c.reaped = true
	c.mu.Unlock()
	ownChildren.Delete(c.group)
	if c.pidfd != nil {
		c.pidfd.Close()
	}
	c.term.slave.Close() // from now on the end of the terminal is that of its last holder
	if err != nil {
		return frames.Closed{} // not known
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case ok && ws.Exited():
		return frames.Closed{Known: true, Status: int32(ws.ExitStatus())}
	case ok && ws.Signaled():
		return frames.Closed{Known: true, Status: -int32(ws.Signal())}
	}
	return frames.Closed{}
}

// awaitExit returns when the process has ended, and leaves it to be reaped. With a pidfd it
// costs no thread.
func (c *ptyChild) awaitExit() {
	if c.pidfd != nil {
		if rc, err := c.pidfd.SyscallConn(); err == nil {
			err = rc.Read(func(fd uintptr) bool { return ended(unix.P_PIDFD, int(fd), unix.WNOHANG) })
			if err == nil {
				return
			}
		}
	}
	ended(unix.P_PID, c.group, 0)
}

// ended reports whether the process has ended, or can no longer be waited for at all.
func ended(kind, id, flags int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(kind, id, &info, unix.WEXITED|unix.WNOWAIT|flags, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err != nil || info.Signo != 0
	}
}

func (c *ptyChild) signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		return syscall.Kill(-c.group, sig)
	}
	// The id may be another's by now; what is left of the group is found by its session.
	n, err := signalMembers(identity{uint32(c.group), c.start}, sig)
	if err == nil && n == 0 {
		err = errNoProcess
	}
	return err
}

// encodeOrder lays a command out for the held process: a length, then counted strings.
func encodeOrder(c command) []byte {
	b := make([]byte, 4)
	put := func(list ...string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
		for _, s := range list {
			b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
			b = append(b, s...)
		}
	}
	put(c.cwd)
	put(c.argv...)
	put(c.env...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// decodeOrder reads what encodeOrder wrote.
func decodeOrder(r io.Reader) (command, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return command{}, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:]))
	if _, err := io.ReadFull(r, body); err != nil {
		return command{}, err
	}
	number := func() int {
		n := binary.BigEndian.Uint32(body)
		body = body[4:]
		return int(n)
	}
	list := func() []string {
		out := make([]string, number())
		for i := range out {
			n := number()
			out[i] = string(body[:n])
			body = body[n:]
		}
		return out
	}
	c := command{cwd: list()[0]}
	c.argv, c.env = list(), list()
	return c, nil
}
