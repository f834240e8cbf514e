package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"

	"coordinator/cmd/internal/suggest"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/sock"

	"github.com/spf13/cobra"
)

// Exit codes of the daemons. A supervisor may branch on them; they do not change.
const (
	ExitOK          = 0
	ExitFailure     = 1  // anything without a code of its own
	ExitUsage       = 2  // wrong command line
	ExitConfig      = 10 // configuration, or a file with an unsafe owner, mode or content
	ExitHeld        = 11 // the lock or the socket is held by another instance
	ExitCorrupt     = 12 // the store is damaged
	ExitSchema      = 13 // the store has a newer schema
	ExitWitness     = 14 // the witness is unavailable or refuses at start
	ExitLeaseHeld   = 15 // another activation holds the lease (protocol.md [D-59])
	ExitFenced      = 16 // the lease was lost (protocol.md [D-48])
	ExitWriteFailed = 17 // a write or sync failed, its outcome is unknown
	ExitRolledBack  = 18 // the witness went back (protocol.md [D-10])
)

// An Error carries the exit code of the error that it wraps.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the error itself.
func (e *Error) Unwrap() error { return e.Err }

// Exit gives err an exit code; nil stays nil.
func Exit(code int, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, Err: err}
}

// Usage makes an error of the command line.
func Usage(format string, args ...any) error { return Exit(ExitUsage, fmt.Errorf(format, args...)) }

// Code is the exit code of err: the outermost one that an [Error] carries, else that of the
// files, locks and sockets that every daemon has.
func Code(err error) int {
	var carried *Error
	var unsafe *durable.UnsafeFileError
	var held *durable.HeldError
	var occupied *sock.OccupiedError
	var long *sock.PathTooLongError
	var registry *handshake.RegistryError
	var port *PortInUseError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &carried):
		return carried.Code
	case errors.As(err, &held), errors.As(err, &port), errors.Is(err, syscall.EADDRINUSE):
		return ExitHeld
	case errors.As(err, &occupied):
		if occupied.Live {
			return ExitHeld
		}
		return ExitConfig
	case errors.As(err, &unsafe), errors.As(err, &long), errors.As(err, &registry):
		return ExitConfig
	}
	return ExitFailure
}

// Execute runs a command tree, prints its error as one line to stderr and returns the exit
// code. Errors that cobra finds in the command line are [ExitUsage].
func Execute(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetErr(stderr)
	prepare(root)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	code := Code(err)
	if code == ExitUsage {
		fmt.Fprintf(stderr, "run %q for help\n", root.Name()+" --help")
	}
	return code
}

// prepare makes a command and all below it report their usage errors as such.
func prepare(c *cobra.Command) {
	c.SetFlagErrorFunc(flagError)
	args := c.Args
	if args == nil {
		args = cobra.NoArgs
	}
	group := c.HasSubCommands() && c.RunE == nil && c.Run == nil
	c.Args = func(c *cobra.Command, a []string) error {
		if group && len(a) > 0 {
			return unknownCommand(c, a[0])
		}
		return Exit(ExitUsage, args(c, a))
	}
	if group {
		c.RunE = func(c *cobra.Command, _ []string) error { return Usage("%s needs a subcommand", c.CommandPath()) }
	}
	for _, sub := range c.Commands() {
		prepare(sub)
	}
}

// unknownCommand refuses a word where c's subcommands stand, and names those that are near.
func unknownCommand(c *cobra.Command, word string) error {
	return Usage("%s has no command %q%s", c.CommandPath(), word, suggest.Hint(word, suggest.Commands(c)))
}

// flagError refuses a flag, or the command in front of it where that is what is wrong.
func flagError(c *cobra.Command, err error) error {
	text, command := suggest.Flag(c, err)
	if command != "" && !slices.Contains(suggest.Commands(c), command) {
		return unknownCommand(c, command)
	}
	return Usage("%s", text)
}
