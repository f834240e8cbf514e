package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/owner"
)

// tick is how often a condition of another process is looked at.
const tick = 20 * time.Millisecond

// An ownerRig is a process owner beside a rig, and a key that may look at it.
type ownerRig struct {
	*rig
	odir    string
	socket  string
	pin     frames.Fingerprint
	looking *handshake.Key
	process *process
}

// withOwner makes an owner, enrols the rig's coordinator and a reader, and names it in
// coordinator.toml. It is running; the coordinator is not.
func withOwner(t *testing.T) *ownerRig {
	t.Helper()
	r := &ownerRig{rig: newRig(t)}
	r.odir = filepath.Join(r.root, "o")
	var id struct {
		Authority string `json:"authority"`
		Socket    string `json:"socket"`
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, ownerd, "init", "--state", r.odir, "--witness-id", r.ctx.WitnessID.String(),
		"--witness-public-key", handshake.FormatPublicKey(r.ctx.WitnessPublicKey), "-o", "json")), &id))
	r.socket = id.Socket
	var err error
	r.pin, err = handshake.ParseFingerprint(id.Authority)
	require.NoError(t, err)
	ok(t, ownerd, "keys", "--state", r.odir, "add", "--scope", "effects,facts", "--coordinator", r.report.CoordinatorID, r.report.LinkPublicKey)
	r.looking, err = handshake.CreateKey(filepath.Join(r.root, "k", "looking.ed25519"), rand.Reader)
	require.NoError(t, err)
	ok(t, ownerd, "keys", "--state", r.odir, "add", "--scope", "output", "--coordinator", r.report.CoordinatorID, handshake.FormatPublicKey(r.looking.Public()))
	r.configure(fmt.Sprintf("\n[[owner]]\nname = \"local\"\nsocket = %q\nauthority = %q\n", id.Socket, id.Authority))
	r.startOwner()
	return r
}

// configure appends to coordinator.toml.
func (r *ownerRig) configure(text string) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, configFile), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(r.t, err)
	_, err = f.WriteString(text)
	require.NoError(r.t, err)
	require.NoError(r.t, f.Close())
}

func (r *ownerRig) startOwner(env ...string) {
	r.t.Helper()
	r.process = launch(r.t, env, ownerd, "serve", "--state", r.odir)
	r.process.ready()
}

// look dials the owner as a reader does and gives its incarnation.
func (r *ownerRig) look() *owner.Client {
	r.t.Helper()
	c, err := owner.Dial(r.t.Context(), owner.ClientOptions{
		Socket: r.socket, Pin: r.pin, CoordinatorID: r.ctx.CoordinatorID, Key: r.looking, Scope: owner.ScopeOutput,
		Clock: clock.System(), Rand: rand.Reader,
	})
	require.NoError(r.t, err)
	return c
}

// dial connects with every capability that runs need, and a verified snapshot behind it.
func (r *ownerRig) dial() *client.Conn {
	r.t.Helper()
	c, err := client.Dial(r.t.Context(), r.ctx, client.Options{
		Offered: frames.CapTerminalBindings | frames.CapArtifactManifests | frames.CapSignals | frames.CapEventReplay | frames.CapObjectiveLifecycle,
	})
	require.NoError(r.t, err)
	s, err := c.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, s.Close())
	return c
}

// A started is one START_RUN and the ids in it.
type started struct {
	op  frames.OperationID
	cmd client.Command
	frames.StartRun
}

// start makes the command that runs argv under a fresh objective, which it creates.
func (r *ownerRig) start(c *client.Conn, argv ...string) *started {
	r.t.Helper()
	return r.startWith(c, map[string]any{"argv": argv})
}

func (r *ownerRig) startWith(c *client.Conn, document map[string]any) *started {
	r.t.Helper()
	objective, id := create(r.t)
	_, err := c.Command(r.t.Context(), objective)
	require.NoError(r.t, err)
	raw, err := json.Marshal(document)
	require.NoError(r.t, err)
	look := r.look()
	defer look.Close()
	s := &started{op: fresh[frames.OperationID](r.t), StartRun: frames.StartRun{
		ObjectiveID: id, RunID: fresh[frames.RunID](r.t), WorkSessionID: fresh[frames.WorkSessionID](r.t),
		ExecutorSchema: 1, ExecutorDocument: raw, PendingBindingID: fresh[frames.PendingBindingID](r.t),
		Owner: r.pin, OwnerIncarnation: look.Incarnation(), Group: look.Groups()[0],
	}}
	s.cmd, err = client.NewCommand(s.op, frames.CommandStartRun, &s.StartRun)
	require.NoError(r.t, err)
	return s
}

// send gives a command until the owner's link is up, and expects it to be admitted.
func (r *ownerRig) send(c *client.Conn, cmd client.Command) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		_, err := c.Command(r.t.Context(), cmd)
		if refusedWith(err, frames.CodeNotFound) {
			return false // the link is not up yet
		}
		require.NoError(r.t, err)
		return true
	}, waitFor, tick)
}

// result waits for an operation's end.
func (r *ownerRig) result(c *client.Conn, op frames.OperationID) frames.OperationResult {
	r.t.Helper()
	var got frames.OperationResult
	require.Eventually(r.t, func() bool {
		var err error
		got, err = c.Lookup(r.t.Context(), op)
		require.NoError(r.t, err)
		return got.State.Final()
	}, waitFor, tick)
	return got
}

func fresh[T ~[16]byte](t *testing.T) T {
	t.Helper()
	id, err := frames.NewID[T](rand.Reader)
	require.NoError(t, err)
	return id
}

// records is what a snapshot shows, by kind and id.
func (r *ownerRig) records(c *client.Conn) map[frames.ObjectRef]codec.Message {
	r.t.Helper()
	s, err := c.Snapshot(r.t.Context())
	require.NoError(r.t, err)
	defer s.Close()
	out := map[frames.ObjectRef]codec.Message{}
	require.NoError(r.t, s.Each(func(rec frames.SnapshotRecord) error {
		rec.Payload = slices.Clone(rec.Payload) // it is good during the visit alone
		m, err := rec.DecodePayload()
		out[rec.Ref()] = m
		return err
	}))
	return out
}

func ref(kind frames.ObjectKind, id [16]byte) frames.ObjectRef {
	return frames.ObjectRef{Kind: kind, ID: id}
}

func (r *ownerRig) run(c *client.Conn, s *started) *frames.Run {
	r.t.Helper()
	got, ok := r.records(c)[ref(frames.KindRun, s.RunID)].(*frames.Run)
	require.True(r.t, ok, "the run is there")
	return got
}

// ended waits for the run's end.
func (r *ownerRig) ended(c *client.Conn, s *started) *frames.Run {
	r.t.Helper()
	var run *frames.Run
	require.Eventually(r.t, func() bool {
		run = r.run(c, s)
		return run.State.Terminal()
	}, waitFor, tick)
	return run
}

// command sends a command of a fresh operation and gives its final result.
func (r *ownerRig) command(c *client.Conn, kind frames.CommandKind, body codec.Message, pre ...frames.Precondition) (frames.OperationResult, error) {
	r.t.Helper()
	op := fresh[frames.OperationID](r.t)
	cmd, err := client.NewCommand(op, kind, body, pre...)
	require.NoError(r.t, err)
	got, err := c.Command(r.t.Context(), cmd)
	if err != nil || got.State.Final() {
		return got, err
	}
	return r.result(c, op), nil
}

// replayed is every event up to the seal of the run's evidence, in order, as a subscription
// from the beginning shows them.
func (r *ownerRig) replayed(c *client.Conn, upTo func(*client.Event) bool) []*client.Event {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), waitFor)
	defer cancel()
	sub, err := c.Subscribe(ctx, 0, client.SubscribeOptions{})
	require.NoError(r.t, err)
	var out []*client.Event
	for {
		u, err := sub.Next(ctx)
		require.NoError(r.t, err)
		ev, ok := u.(*client.Event)
		require.True(r.t, ok, "%+v", u)
		out = append(out, ev)
		if upTo(ev) {
			return out
		}
	}
}
