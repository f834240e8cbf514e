// Package client is the paired client of a coordinator: it dials, proves its key, holds
// the server to the pins of a context file, and makes calls.
//
// A [Context] says whom to reach and how to know them. A [State] is the durable memory
// that goes with it: the highest authority seen, the cut shown, the operations whose
// outcome is unknown. A [Conn] is one authenticated connection; any number of goroutines
// may call through it. Every failure of a command says which of three things it is: refused
// ([RefusedError]), certainly not sent ([ErrNotSent]), or perhaps done
// ([OutcomeUnknownError]).
//
// A [Replica] is a verified copy of everything that the key may see, which heals itself and
// says when it is not current. [Follow] tells what such a copy is made of, one update after
// another, to those who keep none; a [Subscription] is the same on one connection, healed by
// hand. A [Session] carries one operation to its result over as many connections as that
// takes.
//
// The package trusts nothing that is not signed, pinned or digested, and keeps no copy of
// the coordinator's records beyond what a caller asks for. A Conn retries nothing by itself.
package client
