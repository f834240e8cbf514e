package client_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"coordinator/client"
	"coordinator/codec"
	"coordinator/frames"
)

const machines, agentsEach, objectives = 10, 10, 100

// A machine is what the agents of one computer share: a session for their commands, and a
// replica that shows them what there is to do.
type machine struct {
	session *client.Session
	replica *client.Replica
}

func newMachine(c *client.Context, options client.Options) (*machine, error) {
	session, err := client.OpenSession(c, client.SessionOptions{Options: options})
	if err != nil {
		return nil, err
	}
	replica, err := client.OpenReplica(c, client.ReplicaOptions{Options: options})
	return &machine{session, replica}, err
}

func (m *machine) close() error { return errors.Join(m.replica.Close(), m.session.Close()) }

// command sends a command under an OperationId of its own. Do goes on until it has an answer: a
// lost one, or another coordinator, is not the agent's concern.
func (m *machine) command(ctx context.Context, kind frames.CommandKind, body codec.Message, pre ...frames.Precondition) error {
	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		return err
	}
	cmd, err := client.NewCommand(op, kind, body, pre...)
	if err != nil {
		return err
	}
	_, err = m.session.Do(ctx, cmd)
	return err
}

// claim is what an agent writes into an objective that it takes.
type claim struct {
	Title string `json:"title"`
	Agent int    `json:"agent,omitempty"`
}

// free is an objective that nobody has taken, the agent's own place in the list first so that
// not all reach for the same one.
func free(v *client.View, agent int) *client.Record {
	var all []*client.Record
	for r := range v.Kind(frames.KindObjective) {
		var c claim
		o := v.Objective(frames.ObjectiveID(r.ID()))
		if o.State == frames.ObjectiveActive && json.Unmarshal(o.Document, &c) == nil && c.Agent == 0 {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[agent%len(all)]
}

// work takes one objective after the other, does it, and ends when there is none left.
func (m *machine) work(ctx context.Context, agent int, do func(frames.ObjectiveID)) error {
	for {
		v, err := m.replica.WaitFor(ctx, func(*client.View) bool { return true })
		if err != nil {
			return err
		}
		r := free(v, agent)
		if r == nil {
			return nil
		}
		id := frames.ObjectiveID(r.ID())
		document, err := json.Marshal(claim{Title: "shared", Agent: agent})
		if err != nil {
			return err
		}
		// Whoever changes the objective at the revision that all have seen has it.
		seen := frames.Precondition{Object: r.Ref(), Revision: uint64(r.Revision())}
		err = m.command(ctx, frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: document}, seen)
		var refused *client.RefusedError
		if errors.As(err, &refused) && refused.Code == frames.CodeRevisionConflict {
			// Another agent was faster: look again once the view shows it.
			if _, err := m.replica.WaitFor(ctx, func(v *client.View) bool { return uint64(v.Get(r.Kind(), r.ID()).Revision()) > seen.Revision }); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		do(id)
		completed := frames.ObjectiveCompleted
		seen.Revision++
		if err := m.command(ctx, frames.CommandUpdateObjective, &frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: document, State: &completed}, seen); err != nil {
			return err
		}
	}
}

// A hundred agents on ten machines share a hundred objectives, and the coordinator dies in the
// middle of it. Each objective is done by exactly one of them: the revision that an agent has
// seen is the precondition of its claim, and a command whose answer was lost is never done twice.
func Example_fleet() {
	coordinator := client.NewExampleServer(machines)
	defer coordinator.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	var fleet []*machine
	for n := range machines { // each with a key of its own
		m, err := newMachine(coordinator.Context(), coordinator.Options(n))
		if err != nil {
			log.Fatal(err)
		}
		defer m.close() //nolint:errcheck // the example has ended
		fleet = append(fleet, m)
	}
	for range objectives {
		id, err := frames.NewID[frames.ObjectiveID](rand.Reader)
		if err != nil {
			log.Fatal(err)
		}
		if err := fleet[0].command(ctx, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte(`{"title":"shared"}`)}); err != nil {
			log.Fatal(err)
		}
	}

	var mu sync.Mutex
	var done atomic.Int32
	doneBy := map[frames.ObjectiveID]int{}
	third := make(chan struct{})
	g, agents := errgroup.WithContext(ctx)
	for n := range machines * agentsEach {
		m := fleet[n%machines]
		g.Go(func() error {
			if _, err := m.replica.WaitFor(agents, func(v *client.View) bool { return v.Count(frames.KindObjective) == objectives }); err != nil {
				return err
			}
			return m.work(agents, n+1, func(id frames.ObjectiveID) {
				mu.Lock()
				doneBy[id]++
				mu.Unlock()
				if done.Add(1) == objectives/3 {
					close(third)
				}
			})
		})
	}
	<-third
	coordinator.Restart()
	if err := g.Wait(); err != nil {
		log.Fatal(err)
	}

	v, err := fleet[0].replica.WaitFor(ctx, func(v *client.View) bool {
		for r := range v.Kind(frames.KindObjective) {
			if v.Objective(frames.ObjectiveID(r.ID())).State != frames.ObjectiveCompleted {
				return false
			}
		}
		return true
	})
	if err != nil {
		log.Fatal(err)
	}
	twice := 0
	for _, n := range doneBy {
		if n != 1 {
			twice++
		}
	}
	fmt.Println(v.Count(frames.KindObjective), "objectives are completed,", len(doneBy), "of them were worked on,", twice, "more than once")
	// Output:
	// 100 objectives are completed, 100 of them were worked on, 0 more than once
}
