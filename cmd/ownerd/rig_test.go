//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/failpoint"
	"coordinator/owner"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// binary is the program under test, built once; with fail points when this test has them.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ownerd")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "ownerd")
	args := []string{"build", "-o", binary}
	if failpoint.Enabled {
		args = append(args, "-tags", "failpoint")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

const waitFor = 120 * time.Second

var (
	testCoordinator = frames.CoordinatorID{0: 0xc0, 15: 1}
	testWitness     = frames.WitnessID{15: 9}
	witnessKey      = handshake.NewKey(sha256.Sum256([]byte("witness")))
	linkKey         = handshake.NewKey(sha256.Sum256([]byte("link")))
)

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
	root, err := os.MkdirTemp("", "od")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(root) })
	return filepath.Join(root, "owner")
}

func initArgs(dir string) []string {
	return []string{"init", "--state", dir, "-o", "json", "--witness-id", testWitness.String(),
		"--witness-public-key", handshake.FormatPublicKey(witnessKey.Public())}
}

// made is a state directory that init has filled, with the link key enrolled.
func made(t *testing.T) (dir string, id identity) {
	t.Helper()
	dir = stateDirFor(t)
	code, out, errs := command(t, initArgs(dir)...)
	require.Equal(t, 0, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &id))
	code, _, errs = command(t, "keys", "--state", dir, "add", "--coordinator", testCoordinator.String(), "--label", "link",
		handshake.FormatPublicKey(linkKey.Public()))
	require.Equal(t, 0, code, errs)
	return dir, id
}

// process is a running ownerd.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	err  bytes.Buffer
	done chan struct{}
}

// serveIn starts ownerd and waits until it is ready. fail arms fail points.
func serveIn(t *testing.T, dir, fail string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(binary, "serve", "--state", dir, "--log-level", "debug"), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "COORDINATOR_FAILPOINT="+fail)
	p.cmd.Stderr = &p.err
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	ready := make(chan string, 1)
	go func() { // joined by kill and wait, through done
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
	t.Cleanup(p.kill)
	select {
	case line := <-ready:
		require.True(t, strings.HasPrefix(line, "ready"), line)
	case <-p.done:
		t.Fatalf("ownerd ended with %d: %s", p.cmd.ProcessState.ExitCode(), p.err.String())
	case <-time.After(waitFor):
		t.Fatal("ownerd did not become ready")
	}
	return p
}

func (p *process) signal(s os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// wait returns the exit code, -1 after a signal.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(waitFor):
		p.t.Fatal("ownerd did not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// peer is a coordinator's connection.
type peer struct {
	*owner.Client
	t    *testing.T
	cert frames.Certificate

	mu    sync.Mutex
	list  []frames.BindingID
	lists int
	facts []frames.TerminalSourceFact
	ends  map[frames.BindingID]uint64
}

// dial connects as the coordinator and shows a certificate of an epoch.
func dial(t *testing.T, id identity, epoch uint64, change func(*owner.ClientOptions)) *peer {
	t.Helper()
	pin, err := handshake.ParseFingerprint(id.Authority)
	require.NoError(t, err)
	p := &peer{t: t, ends: map[frames.BindingID]uint64{}}
	o := owner.ClientOptions{
		Socket: id.Socket, Pin: pin, CoordinatorID: testCoordinator, Key: linkKey, Clock: clock.System(), Rand: rand.Reader,
		OnBindings: func(ids []frames.BindingID) {
			p.mu.Lock()
			p.list, p.lists = append(p.list, ids...), p.lists+1
			p.mu.Unlock()
		},
		OnFact:     func(f *frames.TerminalSourceFact) { p.mu.Lock(); p.facts = append(p.facts, *f); p.mu.Unlock() },
		OnFactsEnd: func(b frames.BindingID, last uint64) { p.mu.Lock(); p.ends[b] = last; p.mu.Unlock() },
	}
	if change != nil {
		change(&o)
	}
	p.Client, err = owner.Dial(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	now := clock.System().Now().Unix()
	p.cert = frames.Certificate{
		WitnessID: testWitness, CoordinatorID: testCoordinator, Epoch: frames.AuthorityEpoch(epoch), Activation: frames.ActivationSequence(epoch),
		IncarnationID: frames.IncarnationID{1}, Token: sha256.Sum256([]byte{byte(epoch)}), IssuedAt: now, ExpiresAt: now + 60,
		WitnessKeyID: handshake.FingerprintOf(witnessKey.Public()),
	}
	preimage, err := p.cert.Preimage()
	require.NoError(t, err)
	p.cert.Signature, err = witnessKey.Sign(preimage)
	require.NoError(t, err)
	require.NoError(t, p.Authority(t.Context(), p.cert))
	p.eventually("BINDINGS", func() bool { return p.lists > 0 })
	return p
}

func (p *peer) eventually(what string, cond func() bool) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return cond() }, waitFor, 5*time.Millisecond, what)
}

// spawn is a SPAWN of a document.
func (p *peer) spawn(doc *owner.Document) *frames.EffectAttempt {
	p.t.Helper()
	raw, err := doc.Encode()
	require.NoError(p.t, err)
	payload, err := codec.EncodeImage(nil, &frames.SpawnPayload{WorkSessionID: fresh[frames.WorkSessionID](p.t), ExecutorSchema: owner.ExecutorSchema, Document: raw})
	require.NoError(p.t, err)
	a := &frames.EffectAttempt{
		ID: fresh[frames.EffectAttemptID](p.t), OperationID: fresh[frames.OperationID](p.t), Kind: frames.EffectSpawn, Payload: payload,
		Target: frames.EffectTarget{PendingBindingID: fresh[frames.PendingBindingID](p.t), Owner: p.Fingerprint(), OwnerIncarnation: p.Incarnation(), Group: 1},
	}
	a.Digest, err = frames.EffectDigest(a.Kind, &a.Target, a.Payload)
	require.NoError(p.t, err)
	return a
}

func fresh[T ~[16]byte](t *testing.T) T {
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

func binding(a *frames.EffectAttempt) frames.BindingID {
	return frames.BindingID(a.Target.PendingBindingID)
}

func (p *peer) dispatch(a *frames.EffectAttempt) owner.Result {
	p.t.Helper()
	r, err := p.Dispatch(p.t.Context(), p.cert.Guard(), a)
	require.NoError(p.t, err)
	return r
}

func (p *peer) lookUp(a *frames.EffectAttempt) owner.Result {
	p.t.Helper()
	r, err := p.GetEffect(p.t.Context(), p.cert.Guard(), a.ID, a.Digest)
	require.NoError(p.t, err)
	return r
}

func (p *peer) open(a *frames.EffectAttempt) {
	p.t.Helper()
	require.NoError(p.t, p.OpenFacts(p.t.Context(), p.cert.Guard(), binding(a), 0, 1000))
}

// read is all stored output, without waiting for more.
func (p *peer) read(a *frames.EffectAttempt) string {
	p.t.Helper()
	var out []byte
	require.NoError(p.t, p.ReadOutput(p.t.Context(), binding(a), 0, 0, false, func(_ uint64, b []byte) error {
		out = append(out, b...)
		return nil
	}))
	return string(out)
}

// stubborn is a process that appends a line to starts, writes its pid to it, and ignores
// everything that can be ignored.
func stubborn(starts string) *owner.Document {
	grace := uint32(1)
	return &owner.Document{
		Argv:      []string{"/bin/sh", "-c", `trap "" HUP TERM INT; echo $$ >> "$STARTS"; echo ready; while :; do sleep 0.2; done`},
		Env:       map[string]string{"STARTS": starts},
		GraceSecs: &grace,
	}
}

// pids are the processes that started, one a line.
func pids(t *testing.T, starts string) []string {
	t.Helper()
	data, err := os.ReadFile(starts)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Fields(string(data))
}

// gone says that a process does not run any more.
func gone(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
