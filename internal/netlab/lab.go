//go:build linux

package netlab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what the wire is like. The zero value is one without faults.
type Options struct {
	// MTU of every host's interface. Zero means 1500.
	MTU int
	// Passes is the largest packet that the wire carries; larger ones are lost without a
	// word, as behind a router that filters ICMP. Zero means any.
	Passes int
	// Seed of what is lost. Zero is as good as any.
	Seed uint64
}

// A Lab is hosts and the wire between them.
type Lab struct {
	t   testing.TB
	opt Options

	ctx context.Context
	wg  sync.WaitGroup

	mu     sync.Mutex
	hosts  map[netip.Addr]*Host // guarded by mu
	count  int                  // guarded by mu: hosts there ever were
	cuts   map[way]bool         // guarded by mu
	faults Faults               // guarded by mu
	rng    *rand.Rand           // guarded by mu
	lost   int                  // guarded by mu: by Faults.Loss, not by a cut
}

// Faults are what the wire does to every packet.
type Faults struct {
	// Delay of each packet, and Jitter at most on top; the order of a host's packets stays.
	Delay, Jitter time.Duration
	// Loss is the part of the packets that is lost.
	Loss float64
}

// A way leads from one host to another.
type way struct{ from, to netip.Addr }

// A Host is a network namespace with one interface on the wire.
type Host struct {
	Name string
	Addr netip.Addr

	lab   *Lab
	ns    string // path of the namespace, as every process of this machine sees it
	tun   *os.File
	queue chan packet // to be written to tun
	last  time.Time   // guarded by the lab's mu: when the last packet of queue is due
	names string      // file that the host has as /etc/hosts, "" for the machine's own
}

type packet struct {
	due  time.Time
	data []byte
}

// queueLen bounds what is on the way to one host, as the buffer of a router does.
const queueLen = 4096

// New makes a lab without hosts. It skips the test where that is not possible.
func New(t testing.TB, o Options) *Lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, program := range []string{"ip", "nsenter", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s command: install iproute2 and util-linux", program)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("no tun devices here: %v", err)
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Lab{
		t: t, opt: o, ctx: ctx, hosts: make(map[netip.Addr]*Host), cuts: make(map[way]bool), rng: rand.New(rand.NewPCG(o.Seed, 1)),
	}
	t.Cleanup(func() {
		cancel()
		l.mu.Lock()
		for _, h := range l.hosts {
			h.tun.Close()
		}
		l.mu.Unlock()
		l.wg.Wait()
	})
	return l
}

// Host makes a host in a new namespace.
func (l *Lab) Host(name string) *Host {
	l.t.Helper()
	ns, err := newNamespace()
	if err != nil {
		l.t.Skipf("network namespaces cannot be made here: %v", err)
	}
	l.t.Cleanup(func() { ns.Close() })
	return l.Join(name, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()))
}

// Join makes a host of a namespace that is there, by its path.
func (l *Lab) Join(name, ns string) *Host {
	l.t.Helper()
	l.mu.Lock()
	l.count++
	h := &Host{Name: name, Addr: netip.AddrFrom4([4]byte{10, 79, 0, byte(l.count)}), lab: l, ns: ns, queue: make(chan packet, queueLen)}
	l.mu.Unlock()
	var err error
	if h.tun, err = openTUN(ns, "wire"); err != nil {
		l.t.Skipf("tun devices cannot be made here: %v", err)
	}
	for _, args := range []string{
		"link set lo up",
		fmt.Sprintf("addr add %s/24 dev wire", h.Addr),
		fmt.Sprintf("link set wire mtu %d up", l.opt.MTU),
	} {
		if out, err := h.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			h.tun.Close()
			l.t.Fatalf("ip %s on host %s: %v\n%s", args, name, err, out)
		}
	}
	l.mu.Lock()
	l.hosts[h.Addr] = h
	l.mu.Unlock()
	l.wg.Go(h.carry)
	l.wg.Go(h.deliver)
	return h
}

// Remove takes a host off the wire for good. Its processes are not ended.
func (l *Lab) Remove(h *Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, h.Addr)
	h.tun.Close()
}

// Cut loses every packet between two hosts, without a word to either, until [Lab.Heal].
func (l *Lab) Cut(a, b *Host) { l.set(a, b, true) }

// Heal undoes [Lab.Cut].
func (l *Lab) Heal(a, b *Host) { l.set(a, b, false) }

// CutOneWay loses every packet from one host to another; those that it answers arrive.
func (l *Lab) CutOneWay(from, to *Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cuts[way{from.Addr, to.Addr}] = true
}

func (l *Lab) set(a, b *Host, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cuts[way{a.Addr, b.Addr}], l.cuts[way{b.Addr, a.Addr}] = cut, cut
}

// Fault sets what the wire does to every packet from here on.
func (l *Lab) Fault(f Faults) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = f
}

// Lost is how many packets [Faults.Loss] has taken.
func (l *Lab) Lost() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// carry takes what a host sends until the host is gone.
func (h *Host) carry() {
	buf := make([]byte, 1<<16)
	for {
		n, err := h.tun.Read(buf)
		if err != nil {
			return
		}
		if data := buf[:n]; n >= 20 && data[0]>>4 == 4 {
			to := netip.AddrFrom4([4]byte(data[16:20]))
			h.lab.pass(way{h.Addr, to}, data)
		}
	}
}

// pass puts a packet on its way, or loses it.
func (l *Lab) pass(w way, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to := l.hosts[w.to]
	if to == nil || l.cuts[w] || l.opt.Passes > 0 && len(data) > l.opt.Passes {
		return
	}
	if l.rng.Float64() < l.faults.Loss {
		l.lost++
		return
	}
	due := time.Now().Add(l.faults.Delay)
	if l.faults.Jitter > 0 {
		due = due.Add(time.Duration(l.rng.Int64N(int64(l.faults.Jitter))))
	}
	if due.Before(to.last) {
		due = to.last
	}
	to.last = due
	select {
	case to.queue <- packet{due, append([]byte(nil), data...)}:
	default: // full, as a router's buffer may be
	}
}

// deliver brings packets to a host when they are due.
func (h *Host) deliver() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var p packet
		select {
		case p = <-h.queue:
		case <-h.lab.ctx.Done():
			return
		}
		if left := time.Until(p.due); left > 0 {
			timer.Reset(left)
			select {
			case <-timer.C:
			case <-h.lab.ctx.Done():
				return
			}
		}
		if _, err := h.tun.Write(p.data); errors.Is(err, os.ErrClosed) {
			return
		}
	}
}

// Names gives the host these names for addresses, in place of the machine's. It may be called
// again, and takes effect at once.
func (h *Host) Names(names map[string]netip.Addr) {
	h.lab.t.Helper()
	text := "127.0.0.1 localhost\n"
	for name, addr := range names {
		text += addr.String() + " " + name + "\n"
	}
	if h.names == "" {
		f, err := os.CreateTemp("", "names")
		if err != nil {
			h.lab.t.Fatal(err)
		}
		f.Close()
		h.names = f.Name()
		h.lab.t.Cleanup(func() { os.Remove(h.names) })
	}
	if err := os.WriteFile(h.names, []byte(text), 0o644); err != nil { // in place: it is mounted
		h.lab.t.Fatal(err)
	}
}

// Enter is the command line that leads onto the host. The process that it starts becomes the
// command that follows: it keeps its id.
func (h *Host) Enter() []string {
	enter := []string{"nsenter", "--net=" + h.ns}
	if h.names != "" {
		enter = append(enter, "unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, h.names)
	}
	return enter
}

// Command is a command on the host.
func (h *Host) Command(name string, args ...string) *exec.Cmd {
	all := append(append(h.Enter(), name), args...)
	return exec.Command(all[0], all[1:]...)
}

// newNamespace makes a network namespace that lasts as long as the file is open, or a process
// is in it.
func newNamespace() (*os.File, error) {
	return inThread(func() (*os.File, error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("unshare: %w", err)
		}
		return os.Open("/proc/thread-self/ns/net")
	})
}

// openTUN makes a tun device in a namespace and opens it.
func openTUN(ns, name string) (*os.File, error) {
	return inThread(func() (*os.File, error) {
		f, err := os.Open(ns)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("setns %s: %w", ns, err)
		}
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, fmt.Errorf("/dev/net/tun: %w", err)
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd) //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("tun device: %w", err)
		}
		return os.NewFile(uintptr(fd), name), nil
	})
}

// inThread runs fn on a thread that ends with it, whatever namespaces it has entered.
func inThread(fn func() (*os.File, error)) (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread is not used again
		f, err = fn()
	}()
	<-done
	return f, err
}
