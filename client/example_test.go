package client_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"time"

	"coordinator/client"
	"coordinator/frames"
)

// A view of everything that a key may see, kept current through gaps, cut connections and
// restarts of the coordinator. A program gets its context from LoadContext; this one has a
// coordinator of its own.
func ExampleFollow() {
	coordinator := client.NewExampleCoordinator()
	defer coordinator.Close()
	options := client.FollowOptions{Options: coordinator.Following()}

	for update, err := range client.Follow(context.Background(), coordinator.Context(), options) {
		if err != nil {
			log.Fatal(err) // such as a revoked key: no new attempt helps
		}
		switch u := update.(type) {
		case *client.Synced: // the whole view, at the beginning and where nothing less heals
			fmt.Println("snapshot at event", u.Base)
			err := u.Each(func(r frames.SnapshotRecord) error {
				fmt.Printf("  %v …%x is at revision %d\n", r.Kind, r.ID[1], r.Revision)
				return nil
			})
			if err != nil {
				log.Fatal(err)
			}
			coordinator.Write(4, 2)
		case *client.Event:
			fmt.Printf("event %d: %v …%x is at revision %d\n", u.Sequence, u.Object.Kind, u.Object.ID[1], u.Revision)
			if u.Sequence == 6 {
				return
			}
			coordinator.Cut()
		case *client.Gap:
			fmt.Println("not current:", u)
			coordinator.Write(6, 2)
		case *client.Healed:
			fmt.Println("current again, nothing is missing after event", u.Last)
		}
	}
	// Output:
	// snapshot at event 3
	//   OBJECTIVE …1 is at revision 2
	//   OBJECTIVE …2 is at revision 1
	// event 4: OBJECTIVE …2 is at revision 2
	// not current: no connection since event 4: connection ended by the coordinator
	// current again, nothing is missing after event 4
	// event 6: OBJECTIVE …2 is at revision 3
}

// A copy of everything that a key may see, which heals itself: read it at any time, wait for
// what it should show, or be told of each change.
func ExampleOpenReplica() {
	coordinator := client.NewExampleCoordinator()
	defer coordinator.Close()
	replica, err := client.OpenReplica(coordinator.Context(), client.ReplicaOptions{Options: coordinator.Following()})
	if err != nil {
		log.Fatal(err)
	}
	defer replica.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	view, err := replica.WaitFor(ctx, func(v *client.View) bool { return v.Count(frames.KindObjective) == 2 })
	if err != nil {
		log.Fatal(err) // such as a revoked key, or ctx
	}
	for o := range view.Kind(frames.KindObjective) {
		fmt.Printf("%v …%x is at revision %d\n", o.Kind(), o.ID()[1], o.Revision())
	}

	feed := replica.Changes(100)
	defer feed.Close()
	for notice, err := range feed.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		switch n := notice.(type) {
		case *client.Reread: // first, after a snapshot, and when changes were missed
			fmt.Println("begin with the view at event", n.View.Cut)
			coordinator.Cut()
		case *client.ReplicaState:
			fmt.Println(n.Phase)
			if n.Phase == client.ReplicaStale {
				coordinator.Write(4, 2)
			}
		case *client.Change:
			fmt.Printf("event %d: from revision %d to %d\n", n.Event.Sequence, n.Old.Revision(), n.New.Revision())
			now := replica.View()
			fmt.Println(len(view.Objective(frames.ObjectiveID{1, 2}).Document), now.Cut, now.Current)
			return
		}
	}
	// Output:
	// OBJECTIVE …1 is at revision 2
	// OBJECTIVE …2 is at revision 1
	// begin with the view at event 3
	// Stale
	// Current
	// event 4: from revision 1 to 2
	// 1 4 true
}

// One command that is carried to its result over a lost reply, and runs once.
func ExampleSession_Do() {
	coordinator := client.NewExampleCoordinator()
	defer coordinator.Close()
	s, err := client.OpenSession(coordinator.Context(), client.SessionOptions{Options: coordinator.Commands()})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	op, err := frames.NewID[frames.OperationID](rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	id, err := frames.NewID[frames.ObjectiveID](rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	cmd, err := client.NewCommand(op, frames.CommandCreateObjective,
		&frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte(`{"title":"First work"}`)})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	result, err := s.Do(ctx, cmd)
	var unknown *client.OutcomeUnknownError
	switch {
	case errors.As(err, &unknown):
		log.Fatalf("look operation %v up later: %v", unknown.OperationID, err)
	case err != nil:
		log.Fatal(err) // it did not run
	}
	fmt.Println(result.State)
	// Output: SUCCEEDED
}

// A subscription on one connection, with gaps healed by hand.
func ExampleConn_SnapshotAndSubscribe() {
	coordinator := client.NewExampleCoordinator()
	defer coordinator.Close()
	c, options := coordinator.Context(), coordinator.Following()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	conn, err := client.Dial(ctx, c, options)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	snapshot, sub, err := conn.SnapshotAndSubscribe(ctx, client.SubscribeOptions{CreditCount: 64})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(snapshot.Records, "records at event", snapshot.Base)
	if err := snapshot.Close(); err != nil {
		log.Fatal(err)
	}
	coordinator.Write(4, 2)
	for update, err := range sub.Events(ctx) {
		if err != nil {
			// The connection has ended. On another one Conn.Subscribe goes on behind the cut.
			fmt.Println("go on behind event", sub.Cut())
			break
		}
		switch u := update.(type) {
		case *client.Event:
			fmt.Println("event", u.Sequence, u.Kind)
			coordinator.Cut()
		case *client.Gap:
			fmt.Println("not current:", u)
			err := sub.Replay(ctx)
			var refused *client.RefusedError
			if errors.As(err, &refused) { // what was missed is no longer in the log
				log.Fatal("take a new snapshot with sub.Replace, once its gap was told: ", refused)
			} else if err != nil {
				log.Fatal(err)
			}
		}
	}
	// Output:
	// 2 records at event 3
	// event 4 OBJECTIVE_CHANGED
	// go on behind event 4
}
