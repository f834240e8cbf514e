package server

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
)

const (
	// hostileEnv makes this test binary the process of the hostile peers.
	hostileEnv = "COORDINATOR_TEST_HOSTILE"
	// manyEnv is how many hostile peers of each kind there are on each transport.
	manyEnv, fewPeers = "HOSTILE", 24
	// hostileKeys are the principals that the authenticated ones share.
	hostileKeys = 8
	// redial is how long one that was refused stays away.
	redial = time.Second
	// hostileHeap is what hostile peers may make the server use beyond what it did without.
	hostileHeap = 160 << 20
)

// An attack is what the process of the hostile peers is told.
type attack struct {
	Socket, QUIC string
	Pin          frames.Fingerprint
	Seeds        [][32]byte
	Many         int
}

// TestC14_HostilePeers has another process hold, or try to hold, many connections of each
// unkind sort on both transports beside clients that work. Those lose nothing and the lease
// is kept; memory stays bounded; and once the others are gone nothing of them is left. How
// much slower it made the clients is told, and not judged. HOSTILE=2000 is the long run.
func TestC14_HostilePeers(t *testing.T) {
	many, commands, span := fewPeers, 100, uint64(1)
	if s := os.Getenv(manyEnv); s != "" {
		var err error
		many, err = strconv.Atoi(s)
		require.NoError(t, err)
		commands, span = 2000, 60
	}
	r := newRig(t)
	r.opts.LeaseSeconds = 30 // so that this machine may be slow, and must renew it nonetheless
	r.opts.QUIC = "127.0.0.1:0"
	a := attack{Many: many}
	for i := range hostileKeys {
		var seed [32]byte
		_, err := rand.Read(seed[:])
		require.NoError(t, err)
		a.Seeds = append(a.Seeds, seed)
		r.enrol(handshake.NewKey(seed), uint64(frames.AllScopes), fmt.Sprint("hostile-", i))
	}
	r.start()
	a.Socket, a.QUIC, a.Pin = r.info.Socket, r.info.QUIC, r.info.Fingerprint
	pairs := []*pair{r.pair(ways[overUnix], r.keys[0]), r.pair(ways[overQUIC], r.keys[1])}
	quiet := toil(t, pairs, func(n int) bool { return n < commands })
	before := r.srv.Uses()
	runtime.GC()
	goroutines, files, heap := runtime.NumGoroutine(), countFiles(t), heapNow()

	enemy := r.attackedBy(a)
	toil(t, pairs, func(int) bool { return !enemy.atWork() })
	first := r.srv.fence.Current().ExpiresAt
	var peak uint64
	looks := 0
	slow := toil(t, pairs, func(n int) bool {
		if looks++; looks%32 == 0 {
			peak = max(peak, heapNow())
		}
		return n < commands || r.srv.fence.Current().ExpiresAt < first+span
	})
	begun := time.Now()
	st, err := ReadStatus(context.Background(), r.opts.path(StatusFile))
	require.NoError(t, err)
	t.Logf("%d peers of each kind; %d connections are open, %d of them strangers', %d were refused; the operator is answered within %v",
		many, st.Connections, st.Unauthenticated, st.Refused, time.Since(begun).Round(time.Millisecond))
	begun = time.Now()
	latecomer := r.connect(r.keys[0])
	latecomer.create("{}")
	latecomer.close()
	t.Logf("another client of this machine is in, and has done something, within %v", time.Since(begun).Round(time.Millisecond))
	for _, row := range st.Server {
		require.LessOrEqual(t, row.Held, row.Limit, row.Resource)
	}
	require.Greater(t, st.Connections, len(pairs)*2+hostileKeys, "some of them hold on")
	require.NotZero(t, st.Refused, "and more would")
	for i := range quiet {
		t.Logf("%s: a command takes %v (99%%: %v), with hostile peers %v (%v): %.1f times (%.1f)", ways[i].name,
			quiet[i].half, quiet[i].most, slow[i].half, slow[i].most, ratio(slow[i].half, quiet[i].half), ratio(slow[i].most, quiet[i].most))
		t.Logf("%s: its event comes after %v (%v), with hostile peers %v (%v): %.1f times (%.1f)", ways[i].name,
			quiet[i].halfSeen, quiet[i].mostSeen, slow[i].halfSeen, slow[i].mostSeen, ratio(slow[i].halfSeen, quiet[i].halfSeen), ratio(slow[i].mostSeen, quiet[i].mostSeen))
	}
	t.Logf("heap and stacks: %d MiB before, %d MiB at most", heap>>20, peak>>20)
	require.Less(t, peak, heap+hostileHeap)
	require.NoError(t, r.srv.fence.Check(), "the lease was kept")

	enemy.leave()
	// A last word may be lost among so many; then silence ends its connection.
	settled := func(what string, is func() bool) {
		for end := time.Now().Add(2 * closeAfter); !is(); {
			require.True(t, time.Now().Before(end), "%s: %+v", what, r.srv.Uses())
			for _, p := range pairs { // which go on meanwhile
				p.one(t)
			}
		}
	}
	settled("nothing is held for them", func() bool {
		return equalUses(before, r.srv.Uses()) && r.srv.streams.Open() == 0 && r.srv.registry.Grants() == 2*len(pairs)
	})
	settled("goroutines and descriptors are what they were", func() bool {
		const comeAndGo = 4 // of the store
		return runtime.NumGoroutine() <= goroutines+comeAndGo && countFiles(t) <= files+comeAndGo
	})
	for _, p := range pairs {
		p.one(t)
	}
	r.connect(r.keys[0]).create("{}") // and others get in
	require.NoError(t, r.stop())
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(max(b, 1)) }

// heapNow is the memory in use, of the server and of the few clients in this process.
func heapNow() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func countFiles(t *testing.T) int {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	return len(names)
}

// A pair is a client that writes and one of the same key that follows what it writes.
type pair struct {
	writer, follower *peer
	sub              frames.SubscriptionID
	delivered        frames.DeliverySequence
}

func (r *rig) pair(w way, k *handshake.Key) *pair {
	r.t.Helper()
	dial := func() *peer {
		p, ch := r.via(w)
		require.NoError(r.t, p.nc.SetDeadline(time.Time{}))
		require.NoError(r.t, p.shake(r, k, uint64(frames.AllScopes), ch, following))
		return p
	}
	p := &pair{writer: dial(), follower: dial()}
	p.sub = p.follower.subscribe(p.follower.snapshot().begin.Base, plentyEvents, plentyBytes)
	return p
}

// one writes once, and reads everything up to the event of that.
func (p *pair) one(t *testing.T) (done, seen time.Duration) {
	t.Helper()
	begun := time.Now()
	id := p.writer.create(`{"by":"a client that works"}`)
	done = time.Since(begun)
	for {
		e := p.follower.event()
		p.delivered++
		require.Equal(t, p.delivered, e.Delivery, "nothing is missing")
		p.follower.send(&frames.Credit{SubscriptionID: p.sub, AddCount: 1, AddBytes: uint32(frames.EventBytes(len(e.Payload)))})
		if e.Object == objective(id) {
			return done, time.Since(begun)
		}
	}
}

// A pace is how long things took, in the middle and for all but one in a hundred.
type pace struct{ half, most, halfSeen, mostSeen time.Duration }

// toil has all pairs work at once while more says so; n is what each has done at least.
// None rests before the others are done: the server closes the silent.
func toil(t *testing.T, pairs []*pair, more func(n int) bool) []pace {
	t.Helper()
	out := make([]pace, len(pairs))
	var group sync.WaitGroup
	var mu sync.Mutex
	counts := make([]int, len(pairs))
	ask := func(i, n int) bool {
		mu.Lock()
		defer mu.Unlock()
		counts[i] = n
		return more(slices.Min(counts))
	}
	for i, p := range pairs {
		group.Go(func() {
			var done, seen []time.Duration
			for n := 0; ask(i, n) && !t.Failed(); n++ {
				d, s := p.one(t)
				done, seen = append(done, d), append(seen, s)
			}
			slices.Sort(done)
			slices.Sort(seen)
			if n := len(done); n > 0 {
				out[i] = pace{done[n/2], done[n*99/100], seen[n/2], seen[n*99/100]}
			}
		})
	}
	group.Wait()
	require.False(t, t.Failed())
	return out
}

// An enemy is the process of the hostile peers.
type enemy struct {
	leave func()
	ready chan struct{} // closed once it is at work
}

func (e *enemy) atWork() bool {
	select {
	case <-e.ready:
		return true
	default:
		return false
	}
}

// attackedBy starts it.
func (r *rig) attackedBy(a attack) *enemy {
	r.t.Helper()
	orders, err := json.Marshal(a)
	require.NoError(r.t, err)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), hostileEnv+"="+string(orders))
	c.Stderr = os.Stderr
	stop, err := c.StdinPipe()
	require.NoError(r.t, err)
	out, err := c.StdoutPipe()
	require.NoError(r.t, err)
	require.NoError(r.t, c.Start())
	e := &enemy{ready: make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() {
		in := bufio.NewReader(out)
		if line, _ := in.ReadString('\n'); line != "at work\n" {
			r.t.Errorf("the hostile process says %q", line)
		}
		close(e.ready)
		io.Copy(io.Discard, in) //nolint:errcheck // it ends with the process
	})
	e.leave = sync.OnceFunc(func() {
		stop.Close()
		reading.Wait()
		c.Wait() //nolint:errcheck // whatever it ended with
	})
	r.t.Cleanup(e.leave)
	return e
}

// hostile is the process: it holds its peers until its standard input ends.
func hostile(orders string) error {
	var a attack
	if err := json.Unmarshal([]byte(orders), &a); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var peers sync.WaitGroup
	placed := new(atomic.Int64) // authenticated ones that have what they want
	h := &hostility{attack: a, ctx: ctx, placed: placed}
	run := func(remote bool, be func(remote bool, i int) error) {
		for i := range a.Many {
			peers.Go(func() {
				for ctx.Err() == nil {
					be(remote, i) //nolint:errcheck // being cut is what it is for
					select {
					case <-ctx.Done():
					case <-time.After(redial):
					}
				}
			})
		}
	}
	for _, remote := range []bool{false, true} {
		run(remote, h.neverReads)
		run(remote, h.hugs)
	}
	for end := time.Now().Add(patience); placed.Load() < 2*hostileKeys && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, remote := range []bool{false, true} {
		run(remote, h.silent)
		run(remote, h.drips)
		run(remote, h.helloes)
	}
	time.Sleep(redial)
	fmt.Println("at work")
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is the sign
	cancel()
	peers.Wait()
	return nil
}

// hostility is what the peers of that process share.
type hostility struct {
	attack
	ctx    context.Context
	placed *atomic.Int64
}

// dial connects, until the process ends.
func (h *hostility) dial(remote bool) (net.Conn, handshake.Channel, error) {
	if !remote {
		nc, err := sock.Dial(h.ctx, h.Socket)
		if err != nil {
			return nil, nil, err
		}
		context.AfterFunc(h.ctx, func() { nc.Close() })
		return nc, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	}
	conf := handshake.ClientTLS(h.Pin, handshake.Service{Name: frames.Service}.ALPN(), time.Now)
	conf.CurvePreferences = []tls.CurveID{tls.X25519} // they are many, and this machine is theirs too
	nc, err := quicnet.Dial(h.ctx, h.QUIC, quicnet.Options{TLS: conf})
	if err != nil {
		return nil, nil, err
	}
	context.AfterFunc(h.ctx, func() { nc.Close() })
	return nc, handshake.TLSExporter{Export: nc.Export}, nil
}

// hello is a valid COORD_HELLO.
func (h *hostility) hello(c *handshake.Client) ([]byte, *frames.WorkloadOffer, error) {
	offer, err := c.NewOffer(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	hello := baseHello()
	hello.Offered = frames.CapEventReplay
	hello.HasOffer, hello.Offer = true, offer
	b, err := frames.Append(nil, &hello)
	return b, &offer, err
}

func (h *hostility) client(i int) *handshake.Client {
	return &handshake.Client{
		Service: handshake.Service{Name: frames.Service, Major: frames.VersionMajor, Minor: frames.VersionMinor, Scopes: uint64(frames.AllScopes)},
		Key:     handshake.NewKey(h.Seeds[i%hostileKeys]), Pin: h.Pin,
	}
}

// silent says nothing until it is cut.
func (h *hostility) silent(remote bool, _ int) error {
	nc, _, err := h.dial(remote)
	if err != nil {
		return err
	}
	defer nc.Close()
	_, err = io.Copy(io.Discard, nc)
	return err
}

// drips sends a valid hello, one byte a second.
func (h *hostility) drips(remote bool, i int) error {
	hello, _, err := h.hello(h.client(i))
	if err != nil {
		return err
	}
	nc, _, err := h.dial(remote)
	if err != nil {
		return err
	}
	defer nc.Close()
	for len(hello) > 0 {
		if _, err := nc.Write(hello[:1]); err != nil {
			return err
		}
		hello = hello[1:]
		if err := cutWithin(nc, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// helloes sends a whole hello after half of the first frame's time, and another after as
// long again.
func (h *hostility) helloes(remote bool, i int) error {
	nc, _, err := h.dial(remote)
	if err != nil {
		return err
	}
	defer nc.Close()
	for {
		if err := cutWithin(nc, firstFrameTime/2); err != nil {
			return err
		}
		hello, _, err := h.hello(h.client(i))
		if err != nil {
			return err
		}
		if _, err := nc.Write(hello); err != nil {
			return err
		}
	}
}

// cutWithin reads for so long. It returns an error when the server has cut it meanwhile.
func cutWithin(nc net.Conn, d time.Duration) error {
	nc.SetReadDeadline(time.Now().Add(d)) //nolint:errcheck // the read then tells
	_, err := io.Copy(io.Discard, nc)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return cmp.Or(err, io.EOF)
}

// enter is a whole handshake.
func (h *hostility) enter(remote bool, i int) (net.Conn, *bufio.Reader, *frames.CoordHelloOK, error) {
	nc, ch, err := h.dial(remote)
	if err != nil {
		return nil, nil, nil, err
	}
	ok, in, err := h.shake(nc, ch, h.client(i))
	if err != nil {
		nc.Close()
		return nil, nil, nil, err
	}
	return nc, in, ok, nil
}

func (h *hostility) shake(nc net.Conn, ch handshake.Channel, c *handshake.Client) (*frames.CoordHelloOK, *bufio.Reader, error) {
	in := bufio.NewReader(nc)
	hello, offer, err := h.hello(c)
	if err != nil {
		return nil, nil, err
	}
	if _, err := nc.Write(hello); err != nil {
		return nil, nil, err
	}
	f, err := readFrame(in)
	if err != nil {
		return nil, nil, err
	}
	challenge, ok := f.(*frames.WorkloadChallenge)
	if !ok {
		return nil, nil, fmt.Errorf("%T", f)
	}
	resp, err := c.Respond(offer, challenge, ch, uint64(frames.AllScopes), uint64(time.Now().Add(30*time.Minute).Unix()))
	if err != nil {
		return nil, nil, err
	}
	if err := writeFrame(nc, resp); err != nil {
		return nil, nil, err
	}
	if f, err = readFrame(in); err != nil {
		return nil, nil, err
	}
	welcome, ok := f.(*frames.CoordHelloOK)
	if !ok {
		return nil, nil, fmt.Errorf("%T", f)
	}
	return welcome, in, nil
}

func writeFrame(nc net.Conn, f frames.Frame) error {
	b, err := frames.Append(nil, f)
	if err == nil {
		_, err = nc.Write(b)
	}
	return err
}

func readFrame(in *bufio.Reader) (frames.Frame, error) {
	var header [codec.HeaderSize]byte
	n, typ, err := codec.ReadHeader(in, &header)
	if err != nil {
		return nil, err
	}
	body := make([]byte, n-1)
	if _, err := io.ReadFull(in, body); err != nil {
		return nil, err
	}
	return frames.Decode(frames.Type(typ), body)
}

// neverReads asks for everything that there is, again and again, and takes none of it.
func (h *hostility) neverReads(remote bool, i int) error {
	nc, _, ok, err := h.enter(remote, i%(hostileKeys/2))
	if err != nil {
		return err
	}
	defer nc.Close()
	h.placed.Add(1)
	guard := ok.Certificate.Guard()
	err = writeFrame(nc, &frames.Subscribe{RequestID: 1, Guard: guard, CreditCount: plentyEvents, CreditBytes: plentyBytes})
	for id := frames.RequestID(2); err == nil; id++ {
		err = writeFrame(nc, &frames.OpenSnapshot{RequestID: id, Guard: guard})
	}
	return err
}

// hugs takes subscriptions without credit, snapshots that it does not go on with, and asks
// for more for as long as it lives.
func (h *hostility) hugs(remote bool, i int) error {
	nc, in, ok, err := h.enter(remote, hostileKeys/2+i%(hostileKeys/2)) // places of their own
	if err != nil {
		return err
	}
	defer nc.Close()
	h.placed.Add(1)
	go io.Copy(io.Discard, in) //nolint:errcheck // it ends with the connection
	guard := ok.Certificate.Guard()
	for id := frames.RequestID(1); ; id += 2 {
		if err := writeFrame(nc, &frames.Subscribe{RequestID: id, Guard: guard}); err != nil {
			return err
		}
		if err := writeFrame(nc, &frames.OpenSnapshot{RequestID: id + 1, Guard: guard, Reserve: true}); err != nil {
			return err
		}
		select {
		case <-h.ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
