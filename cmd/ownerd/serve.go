package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
	"coordinator/owner"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

// pruneEvery is how often a long-lived owner removes what it has kept for long enough.
const pruneEvery = 24 * time.Hour

func serveCommand(state *string) *cobra.Command {
	var logFlags daemon.LogFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "run the owner; prints a line that begins with ready once it listens",
		Long: "serve runs the owner until SIGTERM, SIGINT or SIGHUP. Its processes end\n" +
			"with it; they go on while a coordinator is away.",
		Example: "  ownerd serve --state /var/lib/coordinator-owner",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logFlags.Logger(c.ErrOrStderr())
			if err != nil {
				return err
			}
			dir, err := stateDir(*state)
			if err != nil {
				return err
			}
			ctx, stop := daemon.Signals(c.Context(), os.Exit)
			defer stop()
			manager, err := daemon.ManagerOf(ctx, os.Getenv, clock.System(), log)
			if err != nil {
				return err
			}
			err = serve(ctx, dir, log, manager, func(socket string) {
				fmt.Fprintf(c.OutOrStdout(), "ready: owner %s listens on %s\n", dir, socket)
			})
			manager.End(err)
			return coded(err)
		},
	}
	logFlags.Register(c.Flags())
	return c
}

// serve runs the owner in dir until ctx ends. ready is called once it listens. On the way out
// the connections end first, then the processes, and their ends are recorded.
func serve(ctx context.Context, dir string, log *slog.Logger, manager *daemon.Manager, ready func(socket string)) (err error) {
	conf, err := loadConfig(dir)
	if err != nil {
		return err
	}
	watch := newWatch(dir)
	monitor, err := daemon.StartMonitor(conf.Metrics, daemon.Subject{
		Healthy: watch.pulse.Healthy, Ready: watch.pulse.Ready, Collect: daemon.Collect(watch.collect), Clock: clock.System(), Logger: log,
	})
	if err != nil {
		return err
	}
	defer monitor.Close()
	key, err := handshake.LoadKey(filepath.Join(dir, authorityKey))
	if err != nil {
		return daemon.Exit(daemon.ExitConfig, err)
	}
	boot, err := owner.BootID()
	if err != nil {
		return err
	}
	incarnation, err := frames.NewID[frames.IncarnationID](rand.Reader)
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // the root directory then
	}
	manager.Status("opening the journal and ending what a former incarnation left")
	// The lock comes with the owner: everything below runs in one process at a time.
	own, err := owner.Open(dir, owner.Options{
		Fingerprint: handshake.FingerprintOf(key.Public()), Incarnation: incarnation, Groups: conf.Groups,
		WitnessID: conf.WitnessID, WitnessPublicKey: conf.WitnessPublicKey,
		MaxOutput: conf.MaxOutputBytes, MaxProcesses: conf.MaxProcesses,
		Home: home, Environ: os.Environ(), BootID: boot, Clock: clock.System(), Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	rules := registryRules()
	registry, err := handshake.OpenRegistry(filepath.Join(dir, registryFile), handshake.RegistryOptions{
		Clock: clock.System(), Logger: log, KnownScopes: rules.Scopes, NeedCoordinator: rules.NeedCoordinator,
	})
	if err != nil {
		return daemon.Exit(daemon.ExitConfig, err)
	}
	server, err := owner.NewServer(owner.ServerOptions{
		Owner: own, Clock: clock.System(), Logger: log,
		Handshake: &handshake.Server{
			Service: owner.HandshakeService(), Authority: key, Incarnation: incarnation,
			Registry: registry, Rand: rand.Reader, Clock: clock.System(),
		},
	})
	if err != nil {
		return err
	}
	listener, err := sock.Listen(conf.Socket)
	if err != nil {
		return err
	}
	var remote *quicnet.Listener
	if conf.QUIC != "" {
		if remote, err = server.ListenQUIC(conf.QUIC, rand.Reader); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	log.Info("owner serves", "authority", handshake.FingerprintOf(key.Public()).String(),
		"incarnation", incarnation.String(), "groups", fmt.Sprint(conf.Groups), "socket", conf.Socket, "quic", conf.QUIC)
	watch.set(own, server)
	defer watch.set(nil, nil)
	watch.pulse.Serves(true)
	manager.Ready("serving at "+conf.Socket, own)
	ready(conf.Socket)
	return run(ctx, log, watch, own, registry, server, listener, remote)
}

// run serves until ctx ends or the owner fails, and joins everything. remote may be nil.
func run(ctx context.Context, log *slog.Logger, watch *watch, own *owner.Owner, registry *handshake.Registry, server *owner.Server, listener owner.Listener, remote *quicnet.Listener) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Serve(gctx, listener) })
	if remote != nil {
		g.Go(func() error { return server.ServeQUIC(gctx, remote) })
	}
	g.Go(func() error {
		err := registry.Run(gctx)
		if gctx.Err() != nil {
			return nil
		}
		return err
	})
	g.Go(func() error { return housekeeping(gctx, own) })
	if os.Getpid() == 1 {
		g.Go(func() error { return owner.ReapOrphans(gctx) })
	}
	g.Go(func() error { return watch.pulse.Run(gctx, "the journal", own.Turn) })
	err := g.Wait()
	log.Info("owner stops", "cause", context.Cause(ctx), "processes", own.Processes())
	return err
}

// housekeeping prunes the journal and ends everything once that cannot be written.
func housekeeping(ctx context.Context, own *owner.Owner) error {
	t := time.NewTicker(pruneEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-own.Failed():
			return own.Err()
		case <-t.C:
			if err := own.Prune(); err != nil {
				return err
			}
		}
	}
}
