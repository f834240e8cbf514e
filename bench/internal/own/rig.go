package own

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
)

// Seconds that a lease lasts: as shipped, and the least that there is, so that a restart
// waits least for the former one.
const usualLease, shortLease = 15, 6

// A rig is a running witness and coordinator, and what a client needs to reach them.
type rig struct {
	bin, root   string
	lease       int // seconds
	witness     *daemon
	coordinator *daemon
	key         *handshake.Key
	unix, quic  *client.Context
	pprof       string   // where its profiles are, when it was built with them
	env         []string // of the coordinator
}

// startRig makes a state directory and starts both daemons. quotas are set for the
// principal and for the server; without any the shipped ones hold.
func startRig(ctx context.Context, e *measure.Env, quotas map[string]int) (*rig, error) {
	return startLeased(ctx, e, quotas, usualLease)
}

// startShort is startRig for a coordinator that is going to be killed, and tells of its
// collections.
func startShort(ctx context.Context, e *measure.Env, quotas map[string]int) (*rig, error) {
	return startLeased(ctx, e, quotas, shortLease, gcTrace)
}

func startLeased(ctx context.Context, e *measure.Env, quotas map[string]int, lease int, env ...string) (*rig, error) {
	root, err := e.TempDir("own")
	if err != nil {
		return nil, err
	}
	r := &rig{bin: e.Bin, root: root, lease: lease, env: env}
	if err := r.start(ctx, quotas); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

func (r *rig) start(ctx context.Context, quotas map[string]int) error {
	if err := r.initialise(ctx, quotas); err != nil {
		return err
	}
	var err error
	if r.witness, err = startDaemon(nil, r.program("witnessd"), "serve", "--state", r.path("w")); err != nil {
		return err
	}
	if _, err := r.witness.says(ctx, "ready", time.Time{}); err != nil {
		return err
	}
	if err := r.serve(); err != nil {
		return err
	}
	if _, err := r.coordinator.says(ctx, "ready", time.Time{}); err != nil {
		return err
	}
	return r.verify(ctx)
}

// serve starts the coordinator without waiting for it.
func (r *rig) serve() (err error) {
	env := r.env
	if r.pprof != "" {
		env = append(env, pprofEnv+"="+r.pprof)
	}
	r.coordinator, err = startDaemon(env, r.program("coordinatord"), "serve", "--log-connections=false", "--state", r.path("c"))
	return err
}

func (r *rig) program(name string) string { return filepath.Join(r.bin, name) }
func (r *rig) path(name string) string    { return filepath.Join(r.root, name) }
func (r *rig) pid() int                   { return r.coordinator.pid() }

// initialise makes the directories, keys and configurations with the programs' own commands.
func (r *rig) initialise(ctx context.Context, quotas map[string]int) error {
	var w struct {
		WitnessID string `json:"witness_id"`
		PublicKey string `json:"public_key"`
		Authority string `json:"authority"`
		Socket    string `json:"socket"`
	}
	if err := r.run(ctx, &w, "witnessd", "init", "--state", r.path("w"), "-o", "json"); err != nil {
		return err
	}
	addr, err := freeUDP()
	if err != nil {
		return err
	}
	var c struct {
		CoordinatorID string `json:"coordinator_id"`
		Authority     string `json:"authority"`
		LinkPublicKey string `json:"link_public_key"`
		Socket        string `json:"socket"`
		Config        string `json:"config"`
	}
	err = r.run(ctx, &c, "coordinatord", "init", "--state", r.path("c"), "--witness-socket", w.Socket, "--witness-authority", w.Authority,
		"--witness-id", w.WitnessID, "--lease-secs", strconv.Itoa(r.lease), "--quic", addr, "-o", "json")
	if err != nil {
		return err
	}
	if err := setQuotas(c.Config, quotas); err != nil {
		return err
	}
	if err := r.run(ctx, nil, "witnessd", "keys", "--state", r.path("w"), "add", "--coordinator", c.CoordinatorID, c.LinkPublicKey); err != nil {
		return err
	}
	pins := client.Context{Name: "bench"}
	if err := pin(&pins, c.CoordinatorID, c.Authority, w.WitnessID, w.PublicKey); err != nil {
		return err
	}
	if err := r.enrol(ctx, &pins); err != nil {
		return err
	}
	unix, quic := pins, pins
	unix.Socket, quic.QUIC = c.Socket, addr
	r.unix, r.quic = &unix, &quic
	return nil
}

// enrol makes the client's key and memory, and has the coordinator know the key.
func (r *rig) enrol(ctx context.Context, pins *client.Context) (err error) {
	if err := os.Mkdir(r.path("k"), 0o700); err != nil {
		return err
	}
	keyFile := filepath.Join(r.path("k"), "client.ed25519")
	if r.key, err = handshake.CreateClientKey(keyFile, rand.Reader); err != nil {
		return err
	}
	if err := r.run(ctx, nil, "coordinatord", "keys", "--state", r.path("c"), "add", "--label", "bench", handshake.FormatPublicKey(r.key.Public())); err != nil {
		return err
	}
	pins.KeyFile, pins.Path = keyFile, filepath.Join(r.path("k"), "context.toml")
	return nil
}

func pin(c *client.Context, coordinator, authority, witness, witnessKey string) error {
	var errs [4]error
	c.CoordinatorID, errs[0] = frames.ParseID[frames.CoordinatorID](coordinator)
	c.Authority, errs[1] = handshake.ParseFingerprint(authority)
	c.WitnessID, errs[2] = frames.ParseID[frames.WitnessID](witness)
	c.WitnessPublicKey, errs[3] = handshake.ParsePublicKey(witnessKey)
	return errors.Join(errs[:]...)
}

// run runs one command of a program to its end. into takes its JSON unless it is nil.
func (r *rig) run(ctx context.Context, into any, program string, args ...string) error {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, r.program(program), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, args[0], err, stderr.Bytes())
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(out, into)
}

// verify takes the one snapshot that a client of a new authority owes, and keeps what it
// shows where every later connection looks for it.
func (r *rig) verify(ctx context.Context) error {
	c, err := r.dial(ctx, r.unix, client.Options{})
	if err != nil {
		return err
	}
	s, err := c.Snapshot(ctx)
	if err != nil {
		c.Close() //nolint:errcheck // the first error counts
		return err
	}
	return errors.Join(s.Close(), c.Close())
}

// dial connects with a memory of its own, as another process would have it.
func (r *rig) dial(ctx context.Context, where *client.Context, o client.Options) (_ *client.Conn, err error) {
	o.Key = r.key
	if o.State == nil {
		if o.State, err = client.OpenState(where); err != nil {
			return nil, err
		}
	}
	return client.Dial(ctx, where, o)
}

// dialAll makes n connections, and what closes them.
func (r *rig) dialAll(ctx context.Context, where *client.Context, n int, o client.Options) (conns []*client.Conn, closeAll func(), err error) {
	closeAll = func() {
		for _, c := range conns {
			c.Close() //nolint:errcheck // nothing of the memory is needed
		}
	}
	for range n {
		c, err := r.dial(ctx, where, o)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, c)
	}
	return conns, closeAll, nil
}

// stop ends both daemons.
func (r *rig) stop() {
	for _, d := range []*daemon{r.coordinator, r.witness} {
		if d != nil {
			d.kill() // the state is thrown away
		}
	}
}

// freeUDP is an address of this machine that nobody uses now.
func freeUDP() (string, error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return c.LocalAddr().String(), c.Close()
}
