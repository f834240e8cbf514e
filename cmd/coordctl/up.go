package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
)

const (
	// coordinatorGrace and witnessGrace bound a stop. A coordinator ends within 5 s by
	// itself, after its last commit; a witness has nothing to finish.
	coordinatorGrace = 7 * time.Second
	witnessGrace     = 4 * time.Second
	// checkLimit bounds the client's own look at a coordinator that says it is ready.
	checkLimit = 5 * time.Second
)

// heldError says that another `up` runs on the same state.
type heldError struct {
	dir string
	pid int
}

func (e *heldError) Error() string {
	if e.pid == 0 {
		return "another coordctl up runs on " + e.dir + "; stop it first, or name another --state"
	}
	return fmt.Sprintf("coordctl up already runs on %s as process %d; stop it first, or name another --state", e.dir, e.pid)
}

func (a *app) upCommand() *cobra.Command {
	var state, quic string
	var lease int64
	var verbose bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run a witness, a coordinator and a process owner until Ctrl-C",
		Long: `Run a witness, a coordinator and a process owner as three processes until Ctrl-C.

On first use this makes the state directory: ids, keys, configuration, registries and a
client context. Interrupted at any point, it goes on from there the next time. A daemon
that dies is started again; one that cannot serve as things are ends the command with the
reason. Runs go on while the coordinator dies and comes back. Ctrl-C stops the coordinator,
then the owner, which ends the processes that still run, then the witness; a second Ctrl-C
ends all at once. A state from before there were owners gets one.`,
		Example: `  coordctl up
  coordctl up --state ~/demo --lease 6
  coordctl up --quic 0.0.0.0:7443`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("lease") && (lease < 6 || lease > 60) {
				return usage("--lease is %d; it is 6 to 60 seconds", lease)
			}
			if state == "" {
				return usage("--state is empty; name the directory that holds everything, or leave it away")
			}
			dir, err := filepath.Abs(state)
			if err != nil {
				return err
			}
			return a.up(cmd.Context(), dir, lease, quic, verbose)
		},
	}
	c.Flags().StringVar(&state, "state", stateHome(), "the `DIR` that holds everything")
	c.Flags().Int64Var(&lease, "lease", 0, "on first use, the lease in `SECONDS`, 6 to 60 (default 15)")
	c.Flags().StringVar(&quic, "quic", "", "serve other machines too, at `HOST:PORT` (UDP), from now on")
	c.Flags().BoolVar(&verbose, "verbose", false, "show every line of the daemons' logs, each connection included")
	return c
}

// up holds the state's lock, sets it up if need be, and supervises the daemons.
func (a *app) up(ctx context.Context, dir string, lease int64, quic string, verbose bool) error {
	signals := make(chan os.Signal, 2) // the one that ends it, and the impatient one
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup, which asks to outlive the terminal
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)

	if err := durable.MkdirPrivate(dir); err != nil {
		return err
	}
	lock, err := durable.Acquire(filepath.Join(dir, "up.lock"))
	var held *durable.HeldError
	if errors.As(err, &held) {
		return &heldError{dir, held.PID}
	}
	if err != nil {
		return err
	}
	defer lock.Release()

	tools, err := findTools()
	if err != nil {
		return err
	}
	s := &setup{dir: dir, tools: tools, lease: lease, say: a.say}
	if err := s.run(ctx); err != nil {
		return fmt.Errorf("set up %s: %w", dir, err)
	}
	owned, err := s.owner(ctx)
	if err != nil {
		return fmt.Errorf("set up the process owner in %s: %w", s.ownerDir(), err)
	}
	if quic != "" {
		if err := s.remote(quic); err != nil {
			return err
		}
	}
	a.contextPath = s.contextPath()
	u := &upper{app: a, setup: s, clock: clock.System(), signals: signals, verbose: verbose, owned: owned}
	return u.run(context.WithoutCancel(ctx)) // signals come through their own channel from here on
}

// say prints one line of progress.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.stderr, "up: "+format+"\n", args...)
}

// upper runs the daemons.
type upper struct {
	app     *app
	setup   *setup
	clock   clock.Clock
	signals <-chan os.Signal
	verbose bool // the daemons' logs are shown in full
	owned   bool // there is a process owner to run

	witness, coordinator, owner *supervisor
	ready                       bool // the first ready line has been printed; owned by watch
}

// supervisor makes the supervisor of one daemon, which tells its ready lines to lines.
func (u *upper) supervisor(name, path, dir string, grace time.Duration, out *lineSink, lines chan string) *supervisor {
	return &supervisor{
		name: name, path: path, args: u.serveArgs(dir), grace: grace,
		clock: u.clock, out: out, say: u.app.say, stopping: make(chan struct{}),
		onReady: func(line string) {
			select {
			case lines <- line:
			default: // the one before has not been looked at yet
			}
		},
	}
}

// serveArgs is the command line of a daemon.
func (u *upper) serveArgs(dir string) []string {
	return []string{"serve", "--state", dir, "--log-connections=" + strconv.FormatBool(u.verbose)}
}

// run starts the witness and the owner, then the coordinator, and returns once all have
// ended: by signal, or because one of them cannot serve.
func (u *upper) run(parent context.Context) error {
	out := &lineSink{w: u.app.stderr}
	witnessUp, coordinatorUp := make(chan string, 1), make(chan string, 1)
	u.witness = u.supervisor("witnessd", u.setup.tools.witnessd, u.setup.witnessDir(), witnessGrace, out, witnessUp)
	u.coordinator = u.supervisor("coordinatord", u.setup.tools.coordinatord, u.setup.coordinatorDir(), coordinatorGrace, out, coordinatorUp)

	u.owner = u.supervisor("ownerd", u.setup.tools.ownerd, u.setup.ownerDir(), ownerGrace, out, make(chan string, 1))

	ctx, stop := context.WithCancel(parent)
	watched := make(chan struct{})
	go func() { defer close(watched); u.watch(ctx, coordinatorUp) }()

	witnessEnd := u.witness.start()
	var ownerEnd <-chan error // nil where there is none
	if u.owned {
		ownerEnd = u.owner.start()
	}
	var coordinatorEnd <-chan error // nil until the witness serves
	var cause error
	for serving := true; serving; {
		select {
		case <-witnessUp:
			if coordinatorEnd == nil {
				coordinatorEnd = u.coordinator.start()
			}
			continue
		case cause = <-witnessEnd:
			witnessEnd = nil
		case cause = <-coordinatorEnd:
			coordinatorEnd = nil
		case cause = <-ownerEnd:
			ownerEnd = nil
		case <-u.signals:
			u.app.say("stopping: the coordinator first, then the owner with the processes that it runs, then the witness (Ctrl-C again ends all at once)")
		}
		serving = false
	}
	stop()
	u.end(coordinatorEnd, ownerEnd, witnessEnd)
	<-watched
	return cause
}

// watch looks after each of the coordinator's ready lines, until ctx ends.
func (u *upper) watch(ctx context.Context, lines <-chan string) {
	for {
		select {
		case line := <-lines:
			u.served(ctx, line)
		case <-ctx.Done():
			return
		}
	}
}

// end stops the coordinator, then the owner, then the witness. A further signal kills all.
func (u *upper) end(coordinatorEnd, ownerEnd, witnessEnd <-chan error) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if coordinatorEnd != nil {
			u.coordinator.stop()
			<-coordinatorEnd
		}
		if ownerEnd != nil {
			u.owner.stop()
			<-ownerEnd
		}
		if witnessEnd != nil {
			u.witness.stop()
			<-witnessEnd
		}
	}()
	for {
		select {
		case <-stopped:
			return
		case <-u.signals:
			u.coordinator.kill()
			u.owner.kill()
			u.witness.kill()
		}
	}
}

// served is told of each ready line of the coordinator. It looks at the coordinator as a
// client would, and the first time prints what runs where.
func (u *upper) served(ctx context.Context, line string) {
	epoch, err := u.check(ctx)
	if ctx.Err() != nil {
		return
	}
	first := !u.ready
	u.ready = true
	if err != nil {
		m := u.app.explain(err)
		u.app.say("the coordinator serves, but a client of this context does not get through: %s", m.what)
	}
	if !first {
		u.app.say("coordinatord serves again, pid %d (%s)", u.coordinator.pid(), strings.TrimPrefix(line, "ready "))
		return
	}
	u.banner(epoch)
}

// check dials with the context that other commands use.
func (u *upper) check(ctx context.Context) (epoch uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, checkLimit, errTimeout)
	defer cancel()
	c, err := client.LoadContext(u.setup.contextPath())
	if err != nil {
		return 0, err
	}
	conn, err := client.Dial(ctx, c, client.Options{Name: "coordctl up"})
	if err != nil {
		return 0, err
	}
	epoch = uint64(conn.Info().Epoch)
	return epoch, conn.Close()
}

func (u *upper) banner(epoch uint64) {
	s, a := u.setup, u.app
	var b strings.Builder
	fmt.Fprintf(&b, "state        %s\n", s.dir)
	fmt.Fprintf(&b, "witnessd     pid %-8d %s\n", u.witness.pid(), s.witnessSocket())
	fmt.Fprintf(&b, "coordinatord pid %-8d %s\n", u.coordinator.pid(), s.coordinatorSocket())
	if u.owned {
		fmt.Fprintf(&b, "ownerd       pid %-8d %s\n", u.owner.pid(), s.ownerSocket())
	}
	fmt.Fprintf(&b, "context      %s\n", s.contextPath())
	if f, err := s.configured(); err == nil && f.QUIC != "" {
		fmt.Fprintf(&b, "quic         %s, for other machines: copy %s and the key that it names, and correct its address if need be\n", f.QUIC, s.remoteContextPath())
	}
	fmt.Fprintf(&b, "ready: the coordinator serves at epoch %d\n", epoch)
	fmt.Fprintf(&b, "try, in another terminal:\n")
	for _, try := range []string{"status", `create objective --title "First work"`, "get objective", "run --title \"First run\" -- uname -a", "watch", "snapshot save first.snapshot"} {
		fmt.Fprintf(&b, "  %s\n", a.line(try))
	}
	fmt.Fprint(a.stdout, b.String())
}
