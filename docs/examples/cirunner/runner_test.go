package cirunner_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/docs/examples/cirunner"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
)

// TestTheRunnerDiesAtEachCommand ends the runner at the first command of each step, over and over
// with the same directory: once with the command committed and its answer lost, once with the
// command lost on its way. Each stage runs once, and the last attempt has the whole result.
func TestTheRunnerDiesAtEachCommand(t *testing.T) {
	daemons := up()
	defer daemons.down()
	c, err := client.LoadContext(filepath.Join(daemons.state, "client", "context.toml"))
	require.NoError(t, err)
	for _, lost := range []string{"answer", "command"} {
		t.Run("the "+lost+" is lost", func(t *testing.T) {
			work := t.TempDir()
			p := cirunner.Pipeline{Title: "lost " + lost, Dir: work, Artifacts: []string{"app"}, Stages: []cirunner.Stage{
				{Name: "lint", Argv: []string{"sh", "-c", "echo lint >>ran; seq 1000"}},
				{Name: "package", Argv: []string{"sh", "-c", "echo package >>ran; echo built >app"}},
			}}
			cut := &cutter{whole: lost == "command", met: map[frames.OperationID]bool{}}
			attempts := 0
			for {
				attempts++
				require.Less(t, attempts, 20, "commands are made anew")
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				passed, err := cut.attempt(ctx, c, p, filepath.Join(work, "build"))
				cancel()
				if err == nil {
					require.Len(t, passed, 2)
					require.Equal(t, uint64(len(daemons.read(work, "build", "lint.log"))), passed[0].Proof.OutputBytes)
					break
				}
				require.ErrorIs(t, err, errDied)
			}
			require.Equal(t, 6, attempts, "the objective, two stages, the artifacts, the end, and one that is not cut")
			require.Equal(t, "lint\npackage\n", daemons.read(work, "ran"))
		})
	}
}

// TestStagesHaveNamesOfTheirOwn: the second of a name would be taken for the first, and not be run.
func TestStagesHaveNamesOfTheirOwn(t *testing.T) {
	for _, names := range [][]string{{"test", "test"}, {""}, {"../test"}, {"a/b"}, {"/"}} {
		dir := filepath.Join(t.TempDir(), "build")
		var p cirunner.Pipeline
		for _, n := range names {
			p.Stages = append(p.Stages, cirunner.Stage{Name: n, Argv: []string{"true"}})
		}
		_, err := new(cirunner.Runner).Build(t.Context(), p, dir)
		require.ErrorContains(t, err, "a name of its own", "%q", names)
		require.NoDirExists(t, dir, "nothing was begun")
	}
}

// TestAStageThatFails ends the build there, with evidence, and says the same when asked again.
func TestAStageThatFails(t *testing.T) {
	daemons := up()
	defer daemons.down()
	c, err := client.LoadContext(filepath.Join(daemons.state, "client", "context.toml"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	work := t.TempDir()
	build := filepath.Join(work, "build")
	p := cirunner.Pipeline{Title: "fails", Dir: work, Artifacts: []string{"app"}, Stages: []cirunner.Stage{
		{Name: "test", Argv: []string{"sh", "-c", "echo test >>ran; exit 7"}},
		{Name: "package", Argv: []string{"sh", "-c", "echo package >>ran"}},
	}}
	for range 2 {
		passed, err := (&cirunner.Runner{Context: c}).Build(ctx, p, build)
		var failed *cirunner.StageError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, "test", failed.Stage)
		require.Equal(t, int32(7), failed.Status)
		require.NotZero(t, failed.Proof.Facts)
		require.Empty(t, passed)
		require.Equal(t, "test\n", daemons.read(work, "ran"))
	}
	other := p
	other.Stages = []cirunner.Stage{{Name: "test", Argv: []string{"true"}}}
	_, err = (&cirunner.Runner{Context: c}).Build(ctx, other, build)
	require.ErrorContains(t, err, "another pipeline")

	log := filepath.Join(build, "test.log") // what was printed is held against the evidence
	require.NoError(t, os.WriteFile(log, []byte("not what it printed"), 0o600))
	_, err = (&cirunner.Runner{Context: c}).Build(ctx, p, build)
	require.ErrorContains(t, err, "the evidence of run")

	// A build goes on in no other history than its own: here the client is made to remember that it
	// has found one replaced since.
	state := client.StatePath(c.Path, c.CoordinatorID)
	memory := daemons.read(state)
	require.NoError(t, os.WriteFile(state, []byte(strings.Replace(memory, "{", `{"lost_history":{"activation":1,"cut":9,"found":1,"base":2},`, 1)), 0o600))
	_, err = (&cirunner.Runner{Context: c}).Build(ctx, p, build)
	require.ErrorContains(t, err, "a history that is gone")
	require.NoError(t, os.WriteFile(state, []byte(memory), 0o600))

	ready, release := make(chan struct{}), make(chan struct{})
	held := make(chan error, 1)
	go func() { // a second runner of a build that is under way is refused
		slow := cirunner.Runner{Context: c, Options: client.Options{Transport: func(ctx context.Context, c *client.Context) (net.Conn, handshake.Channel, error) {
			close(ready)
			<-release
			return nil, nil, os.ErrPermission
		}}}
		_, err := slow.Build(ctx, p, filepath.Join(work, "held"))
		held <- err
	}()
	<-ready
	_, err = (&cirunner.Runner{Context: c}).Build(ctx, p, filepath.Join(work, "held"))
	require.ErrorContains(t, err, "another runner")
	close(release)
	require.ErrorIs(t, <-held, os.ErrPermission)
}

// errDied is the end of an attempt that a cutter has cut.
var errDied = &diedError{}

type diedError struct{}

func (*diedError) Error() string { return "the runner has died" }

// A cutter ends an attempt when an operation is sent that it has not met.
type cutter struct {
	whole bool // the command is cut off too, and not its answer alone

	mu  sync.Mutex
	met map[frames.OperationID]bool // guarded by mu
}

func (k *cutter) attempt(ctx context.Context, c *client.Context, p cirunner.Pipeline, dir string) ([]cirunner.Passed, error) {
	ctx, die := context.WithCancelCause(ctx)
	defer die(nil)
	r := cirunner.Runner{Context: c, Options: client.Options{Transport: func(ctx context.Context, c *client.Context) (net.Conn, handshake.Channel, error) {
		nc, err := sock.Dial(ctx, c.Socket)
		if err != nil {
			return nil, nil, err
		}
		return &cutConn{Conn: nc, cutter: k, die: func() { die(errDied) }}, handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	}}}
	return r.Build(ctx, p, dir)
}

// cutConn is one connection of an attempt.
type cutConn struct {
	net.Conn
	*cutter
	die func()
	cut bool // guarded by mu
}

// Write takes whole frames, as the client writes them.
func (k *cutConn) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for in := bytes.NewReader(p); in.Len() > 0 && !k.cut; {
		var head [codec.HeaderSize]byte
		length, typ, err := codec.ReadHeader(in, &head)
		if err != nil {
			return 0, err
		}
		body := make([]byte, length-1)
		if _, err := io.ReadFull(in, body); err != nil {
			return 0, err
		}
		if frames.Type(typ) != frames.TypeCoordCommand {
			continue
		}
		var cmd frames.CoordCommand
		if err := codec.Decode(&cmd, body); err != nil {
			return 0, err
		}
		k.cut = !k.met[cmd.OperationID]
		k.met[cmd.OperationID] = true
	}
	if k.cut && k.whole {
		k.die()
		return len(p), k.Conn.Close()
	}
	return k.Conn.Write(p)
}

// Read keeps back what comes once the command was sent.
func (k *cutConn) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		k.die()
		k.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
