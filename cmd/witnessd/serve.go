package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/quicnet"
	"coordinator/internal/sock"
	"coordinator/witness"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

func serveCommand(state *string) *cobra.Command {
	var logFlags daemon.LogFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "run the witness; prints a line that begins with ready once it listens",
		Long: "serve runs the witness until SIGTERM, SIGINT or SIGHUP. While it is\n" +
			"away no lease is renewed, and coordinators stop before theirs ends.",
		Example: "  witnessd serve --state /var/lib/coordinator-witness",
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
				fmt.Fprintf(c.OutOrStdout(), "ready: witness %s listens on %s\n", dir, socket)
			})
			manager.End(err)
			return coded(err)
		},
	}
	logFlags.Register(c.Flags())
	return c
}

// serve runs the witness in dir until ctx ends. ready is called once it listens.
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
	boot, err := clock.BootID()
	if err != nil {
		return err
	}
	incarnation, err := frames.NewID[frames.IncarnationID](rand.Reader)
	if err != nil {
		return err
	}
	// The lock comes with the witness: everything below runs in one process at a time.
	w, err := witness.Open(dir, witness.Options{
		ID: conf.WitnessID, Key: key, MaxLeaseSecs: conf.MaxLeaseSecs, CoordinatorDir: conf.CoordinatorDir,
		BootID: boot, Clock: clock.System(), Rand: rand.Reader, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rules := registryRules()
	registry, err := handshake.OpenRegistry(filepath.Join(dir, registryFile), handshake.RegistryOptions{
		Clock: clock.System(), Logger: log, KnownScopes: rules.Scopes, NeedCoordinator: rules.NeedCoordinator,
	})
	if err != nil {
		return daemon.Exit(daemon.ExitConfig, err)
	}
	server, err := witness.NewServer(witness.ServerOptions{
		Witness: w, Clock: clock.System(), Logger: log,
		Handshake: &handshake.Server{
			Service: witness.HandshakeService(), Authority: key, Incarnation: incarnation,
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
	log.Info("witness serves", "witness", conf.WitnessID.String(), "authority", handshake.FingerprintOf(key.Public()).String(),
		"incarnation", incarnation.String(), "socket", conf.Socket, "quic", conf.QUIC)
	watch.set(w, server)
	defer watch.set(nil, nil)
	watch.pulse.Serves(true)
	manager.Ready("serving at "+conf.Socket, w)
	ready(conf.Socket)
	return run(ctx, log, watch, w, registry, server, listener, remote)
}

// run serves until ctx ends or the server fails, and joins everything. remote may be nil.
func run(ctx context.Context, log *slog.Logger, watch *watch, w *witness.Witness, registry *handshake.Registry, server *witness.Server, listener witness.Listener, remote *quicnet.Listener) error {
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
	g.Go(func() error { return watch.pulse.Run(gctx, "the witness", w.Turn) })
	err := g.Wait()
	log.Info("witness stops", "cause", context.Cause(ctx))
	return err
}
