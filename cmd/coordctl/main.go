// Command coordctl is the people's client of a coordinator: it brings one up, makes and
// changes objectives, shows and follows records, keeps and checks snapshots, and says after a lost
// reply what is known and what to do.
//
// It holds flags, wiring and text only; what it knows of the protocol is in package client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/output"
	"coordinator/cmd/internal/progress"
	"coordinator/cmd/internal/suggest"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
	"coordinator/internal/clock"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes one command line and returns its exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return (&app{stdin: stdin, stdout: stdout, stderr: stderr}).execute(args)
}

func (a *app) execute(args []string) int {
	root := a.root()
	root.SetArgs(args)
	ctx, stop := interruptible()
	defer stop()
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var status *exitStatus
	if errors.As(err, &status) {
		return status.code
	}
	return a.report(err)
}

// errInterrupted is the cause of a context that SIGINT or SIGTERM ended.
var errInterrupted = errors.New("interrupted")

// interruptible is a context that the first SIGINT or SIGTERM cancels. A second one ends
// the process as if nobody had asked. `up` has its own handling.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-signals:
			signal.Stop(signals)
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		signal.Stop(signals)
	}
}

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	contextPath string
	defaultPath string // the context that is used when none is named
	keySource   string
	output      output.Format
	color       term.Choice
	clock       clock.Clock   // of the bar; nil is the system's
	progress    *progress.Bar // see bar
	timeout     time.Duration
	wait        time.Duration
}

const defaultTimeout = 30 * time.Second

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "coordctl",
		Short:         "Work with a coordinator",
		SilenceErrors: true,
		SilenceUsage:  true,
		Long: `coordctl works with a coordinator: a durable, fenced authority for work.

Start with "coordctl up", which makes a state directory on first use and runs a
witness and a coordinator until Ctrl-C. Every other command finds the coordinator
through a context file.

Exit codes: 0 done, 1 anything else, 2 usage, 3 refused, 4 authentication,
5 unavailable or timed out before anything was sent, 6 outcome unknown.`,
		Example: `  coordctl up
  coordctl run --title "Nightly build" -- make all
  coordctl get run
  coordctl logs 2d88da09 --follow`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.checkFlags(); err != nil {
				return err
			}
			return a.chooseContext(cmd.Flags().Changed("context"))
		},
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	flags := root.PersistentFlags()
	flags.StringVar(&a.contextPath, "context", defaultContext(), "context `FILE`, or the name of one that was added: where the coordinator is and how to know it")
	flags.StringVar(&a.keySource, "key", "", "the key to prove instead of the context's: a `FILE`, fd:N, agent or agent:PUBLIC_KEY")
	flags.VarP(&a.output, "output", "o", "output `FORMAT`: "+output.Usage)
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(output.Names(), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)) //nolint:errcheck // the flag is there
	term.AddColor(flags, &a.color)
	flags.DurationVar(&a.timeout, "timeout", defaultTimeout, "how long the command may take in all")
	flags.DurationVar(&a.wait, "wait", 0, "how much of --timeout to spend waiting for a coordinator, or the owner of a run, that is not there yet")
	root.AddCommand(a.upCommand(), a.statusCommand(), a.createCommand(), a.updateCommand(),
		a.endCommand(completing), a.cancelCommand(), a.archiveCommand(), a.getCommand(), a.snapshotCommand(),
		a.opCommand(), a.pingCommand(), a.keygenCommand(), a.watchCommand(), a.describeCommand(),
		a.contextCommand(), completionCommand(), a.runCommand(), a.logsCommand(),
		a.deedCommand("pause", "Pause a run: its state only, the process goes on", frames.CommandPauseRun),
		a.deedCommand("resume", "Resume a paused run", frames.CommandResumeRun),
		a.endBindingCommand(), a.signalsCommand(),
		a.signalCommand("ack", "Acknowledge an open signal", frames.CommandAckSignal),
		a.signalCommand("suppress", "Suppress a signal: open or acknowledged, it asks for nothing any more", frames.CommandSuppressSignal),
		a.artifactCommand(), a.evidenceCommand(), a.consoleCommand(),
		a.mcpCommand(), a.topCommand(), a.waitCommand(), a.eventsCommand())
	a.completions(root)
	return root
}

func (a *app) checkFlags() error {
	if a.timeout <= 0 {
		return usage("--timeout is %v; it must be above zero", a.timeout)
	}
	if a.wait < 0 {
		return usage("--wait is %v; it must not be negative", a.wait)
	}
	return nil
}

// structured reports whether output is values, not text for people.
func (a *app) structured() bool { return a.output.Structured() }

// stateHome is where coordctl keeps everything unless told otherwise.
func stateHome() string {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) { // the base directory rules ignore a relative one
		return filepath.Join(dir, "coordinator")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(".", "coordinator")
	}
	return filepath.Join(home, ".local", "state", "coordinator")
}

func defaultContext() string { return filepath.Join(stateHome(), "client", "context.toml") }

// usageError is a command line that cannot be run as it stands.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usage(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// exactArgs is cobra's check with our own error and text.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(args) > 0 && suggest.Hint(args[0], suggest.Commands(cmd)) != "" { // of a command that can be run by itself too
			return unknownCommand(cmd, args[0])
		}
		if len(names) == 0 {
			return usage("%s takes no arguments", cmd.CommandPath())
		}
		return usage("%s takes %d argument(s): %s", cmd.CommandPath(), len(names), cmd.UseLine())
	}
}

// group is a command that only holds others, and shows one example of each.
func group(use, short, long string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s needs a subcommand; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			return unknownCommand(cmd, args[0])
		},
	}
	for _, s := range sub {
		first, _, _ := strings.Cut(s.Example, "\n")
		c.Example += first + "\n"
	}
	c.Example = strings.TrimSuffix(c.Example, "\n")
	c.AddCommand(sub...)
	return c
}
