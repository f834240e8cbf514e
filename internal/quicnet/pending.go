package quicnet

import (
	"net"
	"net/netip"
	"sync"
)

// pending counts a listener's connections that have not settled yet.
type pending struct {
	limit, perHost int

	mu     sync.Mutex
	total  int                  // guarded by mu
	byHost map[netip.Prefix]int // guarded by mu
}

// host is whom a connection is charged to: an IPv4 address, or an IPv6 /64,
// which is what one subscriber has.
func host(addr net.Addr) netip.Prefix {
	udp, ok := addr.(*net.UDPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := udp.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// take charges one connection. The returned function gives it back; calling it
// again does nothing. It is nil when there is no room.
func (p *pending) take(addr net.Addr) (release func()) {
	h := host(addr)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.total >= p.limit || p.byHost[h] >= p.perHost {
		return nil
	}
	p.total++
	p.byHost[h]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.total--
		if p.byHost[h]--; p.byHost[h] == 0 {
			delete(p.byHost, h)
		}
	})
}

// crowded reports whether so many are pending that the next one must first show
// that its address is its own. Well below the limits, so that nobody can use up
// somebody else's share under a false address.
func (p *pending) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total >= p.perHost/4
}

// count returns how many connections are pending.
func (p *pending) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}
