package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/witness"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "witnessd")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "witnessd")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

const waitFor = 20 * time.Second

// command runs one command to its end.
func command(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	var o, e bytes.Buffer
	c := exec.CommandContext(ctx, binary, args...)
	c.Stdout, c.Stderr = &o, &e
	if err := c.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return c.ProcessState.ExitCode(), o.String(), e.String()
}

// stateDirFor is a private directory with short socket paths.
func stateDirFor(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "wd")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	return filepath.Join(root, "witness")
}

// made is a state directory that init has filled.
func made(t *testing.T, args ...string) (dir string, id identity) {
	t.Helper()
	dir = stateDirFor(t)
	code, out, errs := command(t, append([]string{"init", "--state", dir, "-o", "json"}, args...)...)
	require.Equal(t, 0, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &id))
	return dir, id
}

// process is a running witnessd.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	err  bytes.Buffer
	done chan struct{}
}

// serveIn starts witnessd and waits until it is ready.
func serveIn(t *testing.T, dir string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, "serve", "--state", dir, "--log-level", "debug"), done: make(chan struct{})}
	p.cmd.Stderr = &p.err
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	ready := make(chan string, 1)
	go func() { // joined by stop, through done
		defer close(p.done)
		s := bufio.NewScanner(out)
		for s.Scan() {
			select {
			case ready <- s.Text():
			default:
			}
		}
		p.cmd.Wait()
	}()
	t.Cleanup(func() { p.kill() })
	select {
	case line := <-ready:
		require.True(t, strings.HasPrefix(line, "ready"), line)
	case <-p.done:
		t.Fatalf("witnessd ended with %d: %s", p.cmd.ProcessState.ExitCode(), p.err.String())
	case <-time.After(waitFor):
		t.Fatal("witnessd did not become ready")
	}
	return p
}

func (p *process) signal(s os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// wait returns the exit code.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(waitFor):
		p.t.Fatal("witnessd did not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

var testCoordinator = frames.CoordinatorID{0: 0xc0, 15: 1}

// enrolled makes a link key and enrols it.
func enrolled(t *testing.T, dir string) *handshake.Key {
	t.Helper()
	var seed [32]byte
	rand.Read(seed[:])
	key := handshake.NewKey(seed)
	code, _, errs := command(t, "keys", "--state", dir, "add", "--label", "link", "--coordinator", testCoordinator.String(),
		handshake.FormatPublicKey(key.Public()))
	require.Equal(t, 0, code, errs)
	return key
}

func client(t *testing.T, id identity, key *handshake.Key) *witness.Client {
	t.Helper()
	pin, err := handshake.ParseFingerprint(id.Authority)
	require.NoError(t, err)
	wid, err := frames.ParseID[frames.WitnessID](id.WitnessID)
	require.NoError(t, err)
	c, err := witness.NewClient(witness.ClientOptions{Socket: id.Socket, Pin: pin, WitnessID: wid,
		CoordinatorID: testCoordinator, Key: key, Clock: clock.System(), Rand: rand.Reader})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestLifeOfAWitness(t *testing.T) {
	dir, id := made(t)
	p := serveIn(t, dir)
	key := enrolled(t, dir) // returns once the running witness has the key
	c := client(t, id, key)
	cert, err := c.Activate(t.Context(), 1, frames.IncarnationID{1}, 60)
	require.NoError(t, err)
	pub, err := handshake.ParsePublicKey(id.PublicKey)
	require.NoError(t, err)
	require.NoError(t, handshake.VerifyCertificate(&cert, handshake.Pins{WitnessID: cert.WitnessID, WitnessPublicKey: pub,
		CoordinatorID: testCoordinator}, uint64(time.Now().Unix())))

	code, out, errs := command(t, "status", "--state", dir, "-o", "json")
	require.Equal(t, 0, code, errs)
	var s statusJSON
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.True(t, s.Running)
	require.Len(t, s.Coordinators, 1)
	require.Equal(t, "live", s.Coordinators[0].Lease)
	require.Equal(t, uint64(1), s.Coordinators[0].LastAuthorityEpoch)

	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.err.String())
	require.NoFileExists(t, id.Socket)
	require.NotContains(t, p.err.String(), fmt.Sprintf("%x", cert.Token[:]))
	code, out, _ = command(t, "status", "--state", dir)
	require.Equal(t, 0, code)
	require.Contains(t, out, "not running")

	// The lease outlives the process, for its holder and against everybody else.
	serveIn(t, dir)
	_, err = c.Activate(t.Context(), 2, frames.IncarnationID{2}, 60)
	var refused *witness.RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, frames.CodeResourceExhausted, refused.Code)
	_, err = c.Renew(t.Context(), cert, 60)
	require.NoError(t, err)

	code, _, errs = command(t, "keys", "--state", dir, "revoke", "link")
	require.Equal(t, 0, code, errs)
	_, err = c.Renew(t.Context(), cert, 60)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, frames.CodeAuthenticationFailed, refused.Code)
}

// TestC05_SecondInstance: the second one names the first and leaves it alone.
func TestC05_SecondInstance(t *testing.T) {
	dir, id := made(t)
	key := enrolled(t, dir)
	p := serveIn(t, dir)
	code, out, errs := command(t, "serve", "--state", dir)
	require.Equal(t, daemon.ExitHeld, code)
	require.Empty(t, out)
	require.Contains(t, errs, fmt.Sprintf("process %d", p.cmd.Process.Pid))
	_, err := client(t, id, key).Status(t.Context())
	require.NoError(t, err)

	// A stopped witness is no dead one.
	p.signal(syscall.SIGSTOP)
	code, _, errs = command(t, "serve", "--state", dir)
	require.Equal(t, daemon.ExitHeld, code, errs)
	c := client(t, id, key)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = c.Status(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	p.signal(syscall.SIGCONT)
	_, err = c.Status(t.Context())
	require.NoError(t, err)

	p.kill() // leaves its socket file behind, which the next one may remove
	require.FileExists(t, id.Socket)
	serveIn(t, dir)
	_, err = c.Status(t.Context())
	require.NoError(t, err)
}

// TestC05_KilledWitnessNeverGoesBack kills a witness amid grants: what was acknowledged is
// there afterwards, and no epoch or activation is given out twice.
func TestC05_KilledWitnessNeverGoesBack(t *testing.T) {
	dir, id := made(t)
	key := enrolled(t, dir)
	var epoch frames.AuthorityEpoch
	var activation frames.ActivationSequence
	for round := range 6 {
		p := serveIn(t, dir)
		c := client(t, id, key)
		s, err := c.Status(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, s.LastEpoch, epoch)
		require.GreaterOrEqual(t, s.Activation, activation)
		require.LessOrEqual(t, s.Activation, activation+1, "one grant at most was not acknowledged")
		require.Eventually(t, func() bool { // a grant just before the kill runs out in a second
			s, err = c.Status(t.Context())
			return err == nil && s.LeaseRemaining == 0
		}, waitFor, 50*time.Millisecond)
		epoch, activation = max(epoch, s.LastEpoch), max(activation, s.Activation)
		var killed, grants sync.WaitGroup
		grants.Go(func() {
			for n := 0; ; n++ {
				cert, err := c.Activate(context.Background(), epoch+1, frames.IncarnationID{1}, 1)
				if err != nil {
					return
				}
				if cert.Activation != activation+1 || cert.Epoch != epoch+1 {
					t.Errorf("epoch %d activation %d after %d, %d", cert.Epoch, cert.Activation, epoch, activation)
				}
				epoch, activation = cert.Epoch, cert.Activation
				if n == 5+7*round {
					killed.Go(func() { p.cmd.Process.Kill() }) // somewhere in what follows
				}
				if c.Relinquish(context.Background(), cert) != nil {
					return
				}
			}
		})
		grants.Wait()
		killed.Wait()
		require.Equal(t, -1, p.wait())
		c.Close()
	}
	require.Greater(t, activation, frames.ActivationSequence(50))
}

func TestStartRefusals(t *testing.T) {
	edit := func(file string, change func([]byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, file)
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, change(data), 0o600))
		}
	}
	for _, tt := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		code   int
		says   []string
	}{
		{"flipped bit in the state", edit("witness.db", func(b []byte) []byte { b[50] ^= 4; return b }),
			daemon.ExitCorrupt, []string{"witness.db is damaged", "nothing was changed"}},
		{"truncated state", edit("witness.db", func(b []byte) []byte { return b[:5000] }), daemon.ExitCorrupt, []string{"witness.db is damaged"}},
		{"state lost", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "witness.db"))) },
			daemon.ExitCorrupt, []string{"witness.db does not exist", "never replaced"}},
		{"no configuration", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, configFile))) },
			daemon.ExitConfig, []string{configFile, "witnessd init"}},
		{"unknown key in it", edit(configFile, func(b []byte) []byte { return append(b, "\nproofless = true\n"...) }),
			daemon.ExitConfig, []string{"proofless is not a known key"}},
		{"another witness id", edit(configFile, func(b []byte) []byte {
			return bytes.Replace(b, []byte("witness_id = \""), []byte("witness_id = \"00000000000000000000000000000001\" # "), 1)
		}), daemon.ExitConfig, []string{"belongs to witness"}},
		{"lease too long", edit(configFile, func(b []byte) []byte { return bytes.Replace(b, []byte("= 60"), []byte("= 61"), 1) }),
			daemon.ExitConfig, []string{"max_lease_secs is 61, allowed 6 to 60"}},
		{"socket path too long", edit(configFile, func(b []byte) []byte {
			return bytes.Replace(b, []byte(socketFile), bytes.Repeat([]byte("s"), 120), 1)
		}), daemon.ExitConfig, []string{"the limit is 107"}},
		{"key that others may read", func(t *testing.T, dir string) { require.NoError(t, os.Chmod(filepath.Join(dir, authorityKey), 0o640)) },
			daemon.ExitConfig, []string{authorityKey, "chmod 600"}},
		{"key cut short", edit(authorityKey, func(b []byte) []byte { return b[:31] }), daemon.ExitConfig, []string{authorityKey, "31 bytes"}},
		{"no key", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, authorityKey))) },
			daemon.ExitConfig, []string{authorityKey}},
		{"bad line in the registry", edit(registryFile, func(b []byte) []byte { return append(b, "ed25519:beef\n"...) }),
			daemon.ExitConfig, []string{registryFile + " line 2"}},
		{"directory that others may enter", func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir, 0o750)) },
			daemon.ExitConfig, []string{"chmod 700"}},
		{"in a coordinator's directory", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(dir), "store.lock"), nil, 0o600))
		}, daemon.ExitConfig, []string{"lies inside the coordinator's", "a directory of its own"}},
		{"a file in the socket's place", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, socketFile), []byte("precious"), 0o600))
		}, daemon.ExitConfig, []string{"is not a socket"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, _ := made(t)
			tt.damage(t, dir)
			before := listing(t, dir)
			code, out, errs := command(t, "serve", "--state", dir)
			require.Equal(t, tt.code, code, errs)
			require.Empty(t, out)
			for _, s := range tt.says {
				require.Contains(t, errs, s)
			}
			require.NotContains(t, errs, "goroutine ")
			after := listing(t, dir)
			delete(after, "witness.lock")
			require.Equal(t, before, after, "a refused start changes nothing")
		})
	}
}

// listing is the content of every file in dir.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		out[e.Name()] = string(data)
	}
	return out
}

func TestInit(t *testing.T) {
	dir, id := made(t, "--max-lease-secs", "20", "--coordinator-dir", "/nowhere/coordinator")
	conf, err := loadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, id.WitnessID, conf.WitnessID.String())
	require.Equal(t, uint16(20), conf.MaxLeaseSecs)
	require.Equal(t, "/nowhere/coordinator", conf.CoordinatorDir)
	for name := range listing(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, durable.PrivateFile, info.Mode(), name)
	}
	before := listing(t, dir)
	code, _, errs := command(t, "init", "--state", dir)
	require.Equal(t, daemon.ExitConfig, code)
	require.Contains(t, errs, "there is a witness already")
	code, out, errs := command(t, "init", "--state", dir, "--exist-ok", "-o", "json")
	require.Equal(t, 0, code, errs)
	var again identity
	require.NoError(t, json.Unmarshal([]byte(out), &again))
	require.Equal(t, id, again)
	require.Equal(t, before, listing(t, dir))

	// An init that was cut off is finished by the next, with the id that it had chosen.
	require.NoError(t, os.Remove(filepath.Join(dir, configFile)))
	code, out, errs = command(t, "init", "--state", dir, "-o", "json")
	require.Equal(t, 0, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &again))
	require.Equal(t, id, again)

	for _, args := range [][]string{{"init"}, {"init", "--state", dir, "--max-lease-secs", "5"}, {"init", "--state", dir, "extra"}, {"serve"}, {"status"}, {"nonsense"}, {}} {
		code, _, errs := command(t, args...)
		require.Equal(t, daemon.ExitUsage, code, "%v: %s", args, errs)
	}
	lost := stateDirFor(t)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(lost), "store.lock"), nil, 0o600))
	code, _, errs = command(t, "init", "--state", lost)
	require.Equal(t, daemon.ExitConfig, code, errs)
}

func TestServeInProcess(t *testing.T) {
	dir, _ := made(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log, err := (&daemon.LogFlags{Format: "text", Level: "error"}).Logger(os.Stderr)
	require.NoError(t, err)
	err = serve(ctx, dir, log, nil, func(string) { cancel() }) // goleak finds what serve leaves behind
	require.NoError(t, err)
	require.False(t, errors.Is(ctx.Err(), context.DeadlineExceeded))
}

// TestARefusedPlaceIsLeftAsItWas asks for a witness inside a coordinator's directory.
func TestARefusedPlaceIsLeftAsItWas(t *testing.T) {
	outer := filepath.Dir(stateDirFor(t))
	require.NoError(t, os.WriteFile(filepath.Join(outer, "store.lock"), nil, 0o600))
	for _, dir := range []string{filepath.Join(outer, "w"), outer} {
		code, _, errs := command(t, "init", "--state", dir)
		require.Equal(t, daemon.ExitConfig, code)
		require.Contains(t, errs, "the coordinator's")
		entries, err := os.ReadDir(outer)
		require.NoError(t, err)
		require.Len(t, entries, 1, "only what was there")
	}
}
