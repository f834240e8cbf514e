// Package client is the paired client of a coordinator: it dials, proves its key, holds
// the server to the pins of a context file, and makes calls.
//
// # A first program
//
// A [Context] says whom to reach and how to know them; coordctl up writes its file. A [Session]
// carries commands to their results, a [Replica] shows what there is.
//
//	c, err := client.LoadContext(path)
//	if err != nil {
//		log.Fatal(err)
//	}
//	session, err := client.OpenSession(c, client.SessionOptions{})
//	if err != nil {
//		log.Fatal(err)
//	}
//	defer session.Close()
//	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
//	defer cancel()
//
//	op, _ := frames.NewID[frames.OperationID](rand.Reader) // crypto/rand does not fail
//	id, _ := frames.NewID[frames.ObjectiveID](rand.Reader)
//	cmd, err := client.NewCommand(op, frames.CommandCreateObjective,
//		&frames.CreateObjective{ObjectiveID: id, Schema: 1, Document: []byte(`{"title":"First work"}`)})
//	if err != nil {
//		log.Fatal(err)
//	}
//	result, err := session.Do(ctx, cmd) // once, however often it has to be sent
//
// docs/go-client.md is the guide to the package, and docs/examples/cirunner a program with runs,
// output and evidence that survives the death of its coordinator.
//
// # What there is
//
// A [State] is the durable memory that goes with a Context: the highest authority seen, the
// cut shown, the operations whose outcome is unknown. A [Conn] is one authenticated
// connection; any number of goroutines may call through it. Every failure of a command says
// which of three things it is: refused ([RefusedError]), certainly not sent ([ErrNotSent]),
// or perhaps done ([OutcomeUnknownError]).
//
// A [Replica] is a verified copy of everything that the key may see, which heals itself and
// says when it is not current. [Follow] tells what such a copy is made of, one update after
// another, to those who keep none; a [Subscription] is the same on one connection, healed by
// hand. A [Session] carries one operation to its result over as many connections as that
// takes. [ReadHistory] reads the log of events, and a [Ledger] recomputes evidence from it.
//
// The package trusts nothing that is not signed, pinned or digested, and keeps no copy of
// the coordinator's records beyond what a caller asks for. A Conn retries nothing by itself.
package client
