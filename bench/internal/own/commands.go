package own

import (
	"context"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"coordinator/bench/internal/measure"
	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

// writers is how many connections a load of commands is spread over, as at the peers.
const writers = 4

// A worker makes commands on one connection, one at a time.
type worker struct {
	conn   *client.Conn
	random *rand.ChaCha8
	value  []byte
	// The objective that the worker made last, and its revision.
	objective frames.ObjectiveID
	revision  frames.ObjectRevision
}

// newWorkers spreads n workers over connections.
func newWorkers(conns []*client.Conn, n int) []*worker {
	ws := make([]*worker, n)
	for i := range ws {
		var seed [32]byte
		for j := range seed {
			seed[j] = byte(rand.Uint32())
		}
		ws[i] = &worker{conn: conns[i%len(conns)], random: rand.NewChaCha8(seed), value: measure.Payload(uint64(i), measure.ValueSize)}
	}
	return ws
}

// create makes a new objective with the document.
func (w *worker) create(ctx context.Context, document []byte) error {
	var err error
	if w.objective, err = frames.NewID[frames.ObjectiveID](w.random); err != nil {
		return err
	}
	w.revision = 1
	return w.send(ctx, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: w.objective, Schema: 1, Document: document})
}

// update gives the worker's objective a document, whatever its revision.
func (w *worker) update(ctx context.Context, document []byte) error {
	w.revision++
	return w.send(ctx, frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: w.objective, Schema: 1, Document: document})
}

// compare updates the worker's objective if it has the revision that the worker gave it.
func (w *worker) compare(ctx context.Context, document []byte) error {
	condition := frames.Precondition{Object: objectiveRef(w.objective), Revision: uint64(w.revision)}
	w.revision++
	return w.send(ctx, frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: w.objective, Schema: 1, Document: document}, condition)
}

func objectiveRef(id frames.ObjectiveID) frames.ObjectRef {
	return frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID(id)}
}

// alternate creates an objective and updates it, in turn.
func (w *worker) alternate(ctx context.Context, i int) error {
	if i%2 == 0 {
		return w.create(ctx, w.value)
	}
	return w.update(ctx, w.value)
}

// commands measures durable CREATE_OBJECTIVE and UPDATE_OBJECTIVE in turn.
func commands(ctx context.Context, e *measure.Env) error {
	r, err := startRig(ctx, e, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	for _, n := range []int{1, 64, 256} {
		if err := r.commands(ctx, e, r.unix, fmt.Sprintf("own.command.c%d", n), n, 5); err != nil {
			return err
		}
	}
	return nil
}

// commands is one closed loop of n commands in flight.
func (r *rig) commands(ctx context.Context, e *measure.Env, where *client.Context, name string, n, reps int) error {
	conns, closeAll, err := r.dialAll(ctx, where, min(writers, n), client.Options{})
	if err != nil {
		return err
	}
	defer closeAll()
	ws := newWorkers(conns, n)
	return e.Run(ctx, measure.Loop{
		Name: name, Workers: n, Warm: e.Window(300), Window: e.Window(750), Reps: reps, PID: r.pid(),
		Do: func(w, i int) error { return ws[w].alternate(ctx, i) },
	})
}

// compare measures updates that name the revision which they replace.
func compare(ctx context.Context, e *measure.Env) error {
	r, err := startRig(ctx, e, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	conns, closeAll, err := r.dialAll(ctx, r.unix, writers, client.Options{})
	if err != nil {
		return err
	}
	defer closeAll()
	ws := newWorkers(conns, 64)
	for _, w := range ws {
		if err := w.create(ctx, w.value); err != nil {
			return err
		}
	}
	return e.Run(ctx, measure.Loop{
		Name: "own.compare.c64", Workers: len(ws), Warm: e.Window(300), Window: e.Window(750), Reps: 5, PID: r.pid(),
		Do: func(w, _ int) error { return ws[w].compare(ctx, ws[w].value) },
	})
}

// quicCommands is the load of commands over QUIC, and over the Unix socket of the same
// coordinator right after it.
func quicCommands(ctx context.Context, e *measure.Env) error {
	r, err := startRig(ctx, e, nil)
	if err != nil {
		return err
	}
	defer r.stop()
	if err := r.commands(ctx, e, r.quic, "own.quic.command.c64", 64, 5); err != nil {
		return err
	}
	return r.commands(ctx, e, r.unix, "own.quic.beside.c64", 64, 3)
}

// fill makes commands until n have run, 256 in flight at most: creations while fewer than
// live objectives are there, then updates of them.
func (r *rig) fill(ctx context.Context, n, live int) error {
	conns, closeAll, err := r.dialAll(ctx, r.unix, writers, client.Options{})
	if err != nil {
		return err
	}
	defer closeAll()
	ws := newWorkers(conns, max(min(256, live), 1))
	g, ctx := errgroup.WithContext(ctx)
	for i, w := range ws {
		g.Go(func() error { return w.share(ctx, part(n, len(ws), i), part(live, len(ws), i)) })
	}
	return g.Wait()
}

// share is one worker's part of a fill.
func (w *worker) share(ctx context.Context, n, live int) error {
	made := make([]frames.ObjectiveID, 0, live)
	for i := range n {
		if i < live {
			if err := w.create(ctx, w.value); err != nil {
				return err
			}
			made = append(made, w.objective)
			continue
		}
		w.objective = made[i%len(made)]
		if err := w.update(ctx, w.value); err != nil {
			return err
		}
	}
	return nil
}

// part is the i-th share of n things among so many.
func part(n, among, i int) int {
	share := n / among
	if i < n%among {
		share++
	}
	return share
}

// send makes one command under a new operation id. Anything but success is an error.
func (w *worker) send(ctx context.Context, kind frames.CommandKind, body codec.Message, pre ...frames.Precondition) error {
	op, err := frames.NewID[frames.OperationID](w.random)
	if err != nil {
		return err
	}
	cmd, err := client.NewCommand(op, kind, body, pre...)
	if err != nil {
		return err
	}
	result, err := w.conn.Command(ctx, cmd)
	if err != nil {
		return err
	}
	if result.State != frames.OperationSucceeded {
		return fmt.Errorf("%v ended as %v", kind, result.State)
	}
	return nil
}
