// Package cirunner is an example of package client: a runner of builds that survives the death
// of its coordinator, its own, and both. Copy it.
//
// A build is an objective, and each of its stages a run: a real process on a terminal of its own
// under an owner daemon. The runner follows what a stage prints and what becomes of it, proves
// by the evidence that it ran as it says, registers what the build has made, and completes the
// objective.
//
// No stage runs twice, whatever dies when, and nothing here guesses. That rests on four things,
// each in one place:
//
//   - Every command is in a file before it is sent ([Runner.Build] has a book of them), so that
//     after any crash the very same command is sent again under the same OperationId. The
//     coordinator answers a command that it knows with its result and does nothing.
//   - A command whose answer was lost is looked up before it is sent again: client.Session does
//     that, and its journal makes it so in another process too.
//   - What is decided is read from a view that is current, by Replica.WaitFor. One that may have
//     missed something is waited over.
//   - The end of a stage is believed when its evidence verifies: the seal over every fact that
//     the owner stated, recomputed from the event log, and the digests of its output.
//
// runner.go is the runner, book.go the file of commands, proof.go the check of the evidence.
package cirunner
