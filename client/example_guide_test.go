package client_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"coordinator/client"
	"coordinator/frames"
)

// A program that makes something durable and waits until it shows. Its command is carried to a
// result over lost answers and other coordinators; its view is whole and current.
func Example() {
	coordinator := client.NewExampleServer(0) // yours runs elsewhere
	defer coordinator.Close()
	path := coordinator.ContextFile() // such as ~/.local/state/coordinator/client/context.toml

	c, err := client.LoadContext(path)
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.OpenSession(c, client.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	op, _ := frames.NewID[frames.OperationID](rand.Reader) // crypto/rand does not fail
	id, _ := frames.NewID[frames.ObjectiveID](rand.Reader)
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective,
		&frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte(`{"title":"First work"}`)})
	if err != nil {
		log.Fatal(err)
	}
	result, err := session.Do(ctx, cmd) // once, however often it has to be sent
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.State)

	replica, err := client.OpenReplica(c, client.ReplicaOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer replica.Close()
	view, err := replica.WaitFor(ctx, func(v *client.View) bool { return v.Objective(id) != nil })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", view.Objective(id).Document)
	// Output:
	// SUCCEEDED
	// {"title":"First work"}
}

// One connection. Whom it has reached is proved before Dial returns; that it may be commanded, once
// a snapshot of its authority has verified.
func ExampleDial() {
	coordinator := client.NewExampleServer(0)
	defer coordinator.Close()
	path := coordinator.ContextFile()

	c, err := client.LoadContext(path)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, c, client.Options{Name: "guide", Offered: frames.CapEventReplay})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	fmt.Println("verified:", conn.Info().Verified)

	snapshot, err := conn.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer snapshot.Close()
	fmt.Println("verified:", conn.Info().Verified)
	fmt.Println(filepath.Dir(conn.State().Path()) == filepath.Dir(path), conn.Info().Capabilities.Has(frames.CapEventReplay))
	// Output:
	// verified: false
	// verified: true
	// true true
}

// Another key than the context's, and a memory that ends with the process: for a program that may
// write no files and meets one coordinator of which it knows nothing more.
func ExampleOpenStateIn() {
	coordinator := client.NewExampleServer(0)
	defer coordinator.Close()
	c, err := client.LoadContext(coordinator.ContextFile())
	if err != nil {
		log.Fatal(err)
	}
	keyFile := c.KeyFile

	key, err := client.OpenKey(keyFile) // or fd:3, agent, agent:ed25519:…
	if err != nil {
		log.Fatal(err)
	}
	state, err := client.OpenStateIn(new(client.MemoryStore), c)
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.OpenSession(c, client.SessionOptions{Options: client.Options{Key: key, State: state}})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	result, err := session.Lookup(ctx, frames.OperationID{1})
	fmt.Println(result.State, err, state.Path() == "")
	// Output: UNKNOWN <nil> true
}

// What became of an operation, as far as this authority knows. A PENDING one has been admitted, and
// what it delegated has not been answered.
func ExampleConn_Lookup() {
	coordinator := client.NewExampleServer(0)
	defer coordinator.Close()
	c, err := client.LoadContext(coordinator.ContextFile())
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, c, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	op := frames.OperationID{1}

	result, err := conn.Lookup(ctx, op)
	if err != nil {
		log.Fatal(err) // nothing was learned, and nothing was changed
	}
	switch result.State {
	case frames.OperationSucceeded, frames.OperationRejected:
		fmt.Println("it is done:", result.State, result.Code, result.Message)
	case frames.OperationPending:
		fmt.Println("it was admitted; wait for its end")
	case frames.OperationTombstoned:
		fmt.Println("it is done, and its result is past its retention:", result.Final)
	case frames.OperationIndeterminate:
		fmt.Println("nobody can say whether it ran:", result.Reason)
	case frames.OperationUnknown:
		fmt.Println("this authority does not know it, or does not show it; that does not prove that nothing ran")
	}
	// Output:
	// this authority does not know it, or does not show it; that does not prove that nothing ran
}

// A lost answer by hand, as a Session does it: the operation is asked for on another connection,
// and the same command is sent again only when the coordinator does not know it.
func ExampleConn_Retry() {
	coordinator := client.NewExampleCoordinator() // it loses its first answer
	defer coordinator.Close()
	c, options := coordinator.Context(), coordinator.Commands()
	options.State, _ = client.OpenState(c) // one memory for both connections
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dial := func() *client.Conn {
		conn, err := client.Dial(ctx, c, options)
		if err != nil {
			log.Fatal(err)
		}
		if snapshot, err := conn.Snapshot(ctx); err != nil || snapshot.Close() != nil {
			log.Fatal(err)
		}
		return conn
	}
	op, _ := frames.NewID[frames.OperationID](rand.Reader)
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 1})
	if err != nil {
		log.Fatal(err)
	}

	conn := dial()
	_, err = conn.Command(ctx, cmd)
	var unknown *client.OutcomeUnknownError
	fmt.Println("unknown:", errors.As(err, &unknown) && unknown.OperationID == op)
	fmt.Println("unresolved:", len(conn.State().Unresolved()))
	conn.Close()

	conn = dial()
	defer conn.Close()
	result, err := conn.Retry(ctx, cmd)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.State)
	fmt.Println("unresolved:", len(conn.State().Unresolved()))
	// Output:
	// unknown: true
	// unresolved: 1
	// SUCCEEDED
	// unresolved: 0
}

// Each failure of a command says which of three things it is. Only the last one is in doubt, and
// only the coordinator can end the doubt.
func ExampleOutcomeUnknownError() {
	did := func(err error) string {
		var refused *client.RefusedError
		var unknown *client.OutcomeUnknownError
		switch {
		case err == nil:
			return "done"
		case errors.As(err, &unknown):
			return "perhaps done: look " + unknown.OperationID.String()[:4] + "… up, or send the same command again"
		case errors.As(err, &refused):
			return "not done: " + refused.Code.String()
		case errors.Is(err, client.ErrNotSent):
			return "not done: it never left"
		}
		return "not done: " + err.Error()
	}

	fmt.Println(did(&client.RefusedError{Code: frames.CodeRevisionConflict}))
	fmt.Println(did(fmt.Errorf("wrapped: %w", client.ErrNotSent)))
	fmt.Println(did(&client.OutcomeUnknownError{OperationID: frames.OperationID{0xab, 0xcd}, Cause: client.ErrDisconnected}))
	// Output:
	// not done: REVISION_CONFLICT
	// not done: it never left
	// perhaps done: look abcd… up, or send the same command again
}

// A change of what has been seen and of nothing else: whoever else has changed the objective since
// makes the revision another one, and the command is refused.
func ExampleRefusedError() {
	coordinator := client.NewExampleServer(0)
	defer coordinator.Close()
	c, err := client.LoadContext(coordinator.ContextFile())
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.OpenSession(c, client.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	command := func(cmd client.Command, err error) error {
		if err == nil {
			_, err = session.Do(ctx, cmd)
		}
		return err
	}
	fresh := func() frames.OperationID {
		op, _ := frames.NewID[frames.OperationID](rand.Reader)
		return op
	}
	id := frames.ObjectiveID{7}
	if err := command(client.NewCommand(fresh(), frames.CommandCreateObjective, &frames.CreateObjective{ObjectiveID: id, Schema: 1})); err != nil {
		log.Fatal(err)
	}

	seen := frames.Precondition{Object: frames.ObjectRef{Kind: frames.KindObjective, ID: frames.ObjectID(id)}, Revision: 1}
	for _, title := range []string{"mine", "yours"} {
		document, err := json.Marshal(map[string]string{"title": title})
		if err != nil {
			log.Fatal(err)
		}
		err = command(client.NewCommand(fresh(), frames.CommandUpdateObjective,
			&frames.UpdateObjective{ObjectiveID: id, Schema: 1, Document: document}, seen))
		var refused *client.RefusedError
		switch {
		case errors.As(err, &refused) && refused.Code == frames.CodeRevisionConflict:
			fmt.Println(title, "was too late: read it again, then decide")
		case err != nil:
			log.Fatal(err)
		default:
			fmt.Println(title, "is in")
		}
	}
	// Output:
	// mine is in
	// yours was too late: read it again, then decide
}

// Everything that the key may see, once, as a verified file that another program can read.
func ExampleConn_SaveSnapshot() {
	coordinator := client.NewExampleCoordinator()
	defer coordinator.Close()
	c, options := coordinator.Context(), coordinator.Following()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, c, options)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "monday.snapshot")

	snapshot, err := conn.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer snapshot.Close()
	err = snapshot.Each(func(r frames.SnapshotRecord) error {
		fmt.Printf("%v …%x is at revision %d\n", r.Kind, r.ID[1], r.Revision) // r.Payload is good during the call alone
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := conn.SaveSnapshot(file, snapshot); err != nil {
		log.Fatal(err)
	}

	saved, err := client.OpenSnapshotFile(file)
	if err != nil {
		log.Fatal(err)
	}
	defer saved.Close()
	if err := saved.Verify(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(saved.Header.Records, "records as of event", saved.Header.Base)
	// Output:
	// OBJECTIVE …1 is at revision 2
	// OBJECTIVE …2 is at revision 1
	// 2 records as of event 3
}

// The state of a replica, for a light on a dashboard: a view is always whole, and says whether it
// is current.
func ExampleReplica_States() {
	coordinator := client.NewExampleCoordinator()
	defer coordinator.Close()
	replica, err := client.OpenReplica(coordinator.Context(), client.ReplicaOptions{Options: coordinator.Following()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := replica.WaitFor(ctx, func(*client.View) bool { return true }); err != nil {
		log.Fatal(err)
	}
	view := replica.View()
	fmt.Println(view.Current, view.Cut, view.Count(frames.KindObjective))

	if err := replica.Close(); err != nil {
		log.Fatal(err) // what was shown could not be made durable
	}
	for state := range replica.States(ctx) {
		fmt.Println(state.Phase, state.Phase.Final())
	}
	fmt.Println(replica.View().Current, replica.View().Cut)
	// Output:
	// true 3 2
	// Closed true
	// false 3
}

// Every event that the coordinator retains, from the oldest on.
func ExampleReadHistory() {
	coordinator := client.NewExampleServer(0)
	defer coordinator.Close()
	c, err := client.LoadContext(coordinator.ContextFile())
	if err != nil {
		log.Fatal(err)
	}
	session, err := client.OpenSession(c, client.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for n := range 3 {
		cmd, err := client.NewCommand(frames.OperationID{byte(n + 1)}, frames.CommandCreateObjective,
			&frames.CreateObjective{ObjectiveID: frames.ObjectiveID{byte(n + 1)}, Schema: 1})
		if err == nil {
			_, err = session.Do(ctx, cmd)
		}
		if err != nil {
			log.Fatal(err)
		}
	}

	made := 0
	after, err := client.ReadHistory(ctx, c, client.Options{Offered: frames.CapWithoutOperations}, func(e *client.Event) (enough bool, err error) {
		if e.Object.Kind == frames.KindObjective && e.Revision == 1 {
			made++
		}
		return made == 3, nil // else it waits for more: a log has no end
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(made, "objectives; retention has removed the events up to", after)
	// Output:
	// 3 objectives; retention has removed the events up to 0
}
