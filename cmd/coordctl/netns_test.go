package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
)

// Two hosts that meet only through this test: the server's at 10.77.1.2, the client's at
// 10.77.2.2, each on a wire of its own to the machine that the test runs on.
const (
	serverAddr = "10.77.1.2:7443"
	relayAddr  = "10.77.2.1:7443"
)

// hosts makes two network namespaces with links of the given MTU.
func hosts(t *testing.T, mtu int) (server, other []string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip command: install iproute2")
	}
	ip := func(args string) {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", args, out)
	}
	if out, err := exec.Command("ip", "netns", "add", "coord-probe").CombinedOutput(); err != nil {
		t.Skipf("network namespaces cannot be made here: %s", out)
	}
	ip("netns del coord-probe")
	for i, name := range []string{"coord-server", "coord-client"} {
		n := i + 1
		t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() }) // its link goes with it
		ip("netns add " + name)
		ip(fmt.Sprintf("link add coordveth%d type veth peer name inside netns %s", n, name))
		ip(fmt.Sprintf("addr add 10.77.%d.1/24 dev coordveth%d", n, n))
		ip(fmt.Sprintf("link set coordveth%d mtu %d up", n, mtu))
		ip(fmt.Sprintf("-n %s addr add 10.77.%d.2/24 dev inside", name, n))
		ip(fmt.Sprintf("-n %s link set inside mtu %d up", name, mtu))
		ip(fmt.Sprintf("-n %s link set lo up", name))
	}
	return []string{"ip", "netns", "exec", "coord-server"}, []string{"ip", "netns", "exec", "coord-client"}
}

// A relay carries datagrams between the client's host and the server's, late, and loses
// some of them.
type relay struct {
	front *net.UDPConn
	delay time.Duration
	loss  float64

	mu     sync.Mutex
	rng    *rand.Rand              // guarded by mu
	backs  map[string]*net.UDPConn // guarded by mu: by the client's address
	lost   int                     // guarded by mu
	passed int                     // guarded by mu
	cut    bool                    // guarded by mu: nothing passes
	wg     sync.WaitGroup
	ctx    context.Context
}

func startRelay(t *testing.T, delay time.Duration, loss float64) *relay {
	addr, err := net.ResolveUDPAddr("udp4", relayAddr)
	require.NoError(t, err)
	front, err := net.ListenUDP("udp4", addr)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &relay{front: front, delay: delay, loss: loss, rng: rand.New(rand.NewPCG(1, 2)), backs: map[string]*net.UDPConn{}, ctx: ctx}
	r.wg.Go(r.fromClients)
	t.Cleanup(func() {
		cancel()
		front.Close()
		r.mu.Lock()
		for _, b := range r.backs {
			b.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

// carry passes one datagram on after the delay, unless it is lost.
func (r *relay) carry(p []byte, send func([]byte)) {
	r.mu.Lock()
	gone := r.cut || r.rng.Float64() < r.loss
	if gone {
		r.lost++
	} else {
		r.passed++
	}
	r.mu.Unlock()
	if gone {
		return
	}
	p = append([]byte(nil), p...)
	r.wg.Go(func() {
		timer := time.NewTimer(r.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			send(p)
		case <-r.ctx.Done():
		}
	})
}

func (r *relay) fromClients() {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := r.front.ReadFromUDP(buf)
		if err != nil {
			return
		}
		back, err := r.back(from)
		if err != nil {
			continue
		}
		r.carry(buf[:n], func(p []byte) { back.Write(p) })
	}
}

// back is the relay's socket for one client.
func (r *relay) back(from *net.UDPAddr) (*net.UDPConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b := r.backs[from.String()]; b != nil {
		return b, nil
	}
	addr, err := net.ResolveUDPAddr("udp4", serverAddr)
	if err != nil {
		return nil, err
	}
	b, err := net.DialUDP("udp4", nil, addr)
	if err != nil {
		return nil, err
	}
	r.backs[from.String()] = b
	r.wg.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := b.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // a refusal by the host behind is no end
				r.carry(buf[:n], func(p []byte) { r.front.WriteToUDP(p, from) })
			}
		}
	})
	return b, nil
}

func (r *relay) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
}

// TestAcrossHosts runs client and coordinator in network namespaces of their own, over a
// link with an MTU of 1,280, delay and loss: commands, verified snapshots, the same over a
// restart of the coordinator, and a partition that heals.
func TestAcrossHosts(t *testing.T) {
	serverHost, clientHost := hosts(t, 1280)
	u := startUpIn(t, serverHost, filepath.Join(t.TempDir(), "s"), "--quic", serverAddr).ready()
	c, err := client.LoadContext(filepath.Join(u.state, "client", "context-quic.toml"))
	require.NoError(t, err)
	c.QUIC = relayAddr
	path := filepath.Join(u.state, "client", "context-far.toml")
	require.NoError(t, c.Save(path))
	r := startRelay(t, 15*time.Millisecond, 0.03)

	far := func(args ...string) ran {
		argv := append(append(clientHost[1:], filepath.Join(u.bin, "coordctl"), "--context", path), args...)
		cmd := exec.Command(clientHost[0], argv...)
		var out, errout strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errout
		if err := cmd.Run(); err != nil {
			require.ErrorAs(t, err, new(*exec.ExitError))
		}
		return ran{cmd.ProcessState.ExitCode(), out.String(), errout.String()}
	}
	count := func() int {
		got := far("get", "objective", "-o", "json", "--wait", "20s")
		require.Zero(t, got.code, got.errout)
		var records []json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(got.out), &records))
		return len(records)
	}
	big := filepath.Join(t.TempDir(), "big.json")
	require.NoError(t, os.WriteFile(big, []byte(`{"title":"`+strings.Repeat("long ", 20_000)+`"}`), 0o600))
	const made = 12
	for i := range made {
		args := []string{"create", "objective", "--title", fmt.Sprintf("Far work %d", i)}
		if i%3 == 0 {
			args = []string{"create", "objective", "--document", big}
		}
		got := far(args...)
		require.Zero(t, got.code, got.errout)
	}
	require.Equal(t, made, count())

	_, coordinator := u.pids()
	require.NoError(t, syscall.Kill(coordinator, syscall.SIGKILL))
	got := far("create", "objective", "--title", "After the kill", "--wait", "30s")
	require.Zero(t, got.code, got.errout)
	require.Equal(t, made+1, count())

	r.setCut(true)
	got = far("create", "objective", "--title", "Into the void", "--timeout", "3s")
	require.Equal(t, exitUnavailable, got.code, "nothing was sent through a partition: %s", got.errout)
	r.setCut(false)
	require.Equal(t, made+1, count())
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Positive(t, r.lost, "the relay lost nothing")
}
