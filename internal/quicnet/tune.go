package quicnet

import (
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// wantBuffer is the size of socket buffers that QUIC asks for: what arrives in
// the time that a busy process may need to come and fetch it.
const wantBuffer = 7 << 20

// quiet keeps quic-go from writing its own line about socket buffers to the
// process's standard logger; tune says it with the setting to change.
var quiet = sync.OnceFunc(func() {
	os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true") //nolint:errcheck // a constant valid name
})

// tune enlarges the socket's buffers as far as the system lets it, and says what
// limits them.
func tune(udp *net.UDPConn) (problems []string) {
	quiet()
	udp.SetReadBuffer(wantBuffer)  //nolint:errcheck // judged by its effect
	udp.SetWriteBuffer(wantBuffer) //nolint:errcheck // judged by its effect
	raw, err := udp.SyscallConn()
	if err != nil {
		return []string{err.Error()}
	}
	for _, b := range []struct {
		name, setting string
		opt, force    int
	}{
		{"receive", "net.core.rmem_max", unix.SO_RCVBUF, forceReceive},
		{"send", "net.core.wmem_max", unix.SO_SNDBUF, forceSend},
	} {
		size := 0
		cerr := raw.Control(func(fd uintptr) {
			if size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, b.opt); size < wantBuffer {
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, b.force, wantBuffer) //nolint:errcheck // root only
				size, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, b.opt)
			}
		})
		if cerr == nil && err == nil && size < wantBuffer {
			problems = append(problems, bufferProblem(b.name, b.setting, size))
		}
	}
	return problems
}

func bufferProblem(name, setting string, size int) string {
	return fmt.Sprintf("the UDP %s buffer is %d KiB and QUIC wants %d; as root run: sysctl -w %s=%d",
		name, size>>10, wantBuffer>>10, setting, wantBuffer)
}

// Smallest MTU of a link that QUIC's smallest packets fit into.
const (
	minMTU4 = packetSize + 20 + 8
	minMTU6 = 1280 // of IPv6 itself
)

// packetProblems looks for interfaces too small for QUIC's packets: that with
// the address ip, or all that are up when ip is unspecified.
func packetProblems(ip net.IP) (problems []string) {
	all, err := net.Interfaces()
	if err != nil {
		return nil // nothing to say; the network itself will
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.MTU <= 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			have, ok := a.(*net.IPNet)
			if !ok || len(ip) != 0 && !ip.IsUnspecified() && !ip.Equal(have.IP) {
				continue
			}
			if p := packetProblem(i.Name, i.MTU, have.IP); p != "" {
				problems = append(problems, p)
				break
			}
		}
	}
	return problems
}

// packetProblem judges one address of an interface.
func packetProblem(name string, mtu int, ip net.IP) string {
	need := minMTU6
	if ip.To4() != nil {
		need = minMTU4
	}
	if mtu >= need {
		return ""
	}
	return fmt.Sprintf("interface %s has an MTU of %d and QUIC needs %d; as root run: ip link set dev %s mtu %d", name, mtu, need, name, minMTU6)
}
