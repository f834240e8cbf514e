package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/cmd/internal/progress"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/sock"
	"coordinator/server"
	"coordinator/witness"
)

func serveCommand(state *string) *cobra.Command {
	var logs daemon.LogFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "run the coordinator until it is told to stop",
		Long: "serve checks the store, waits for the lease of its predecessor to end, and serves until\n" +
			"SIGTERM, SIGINT or SIGHUP. The line on standard output that begins with ready says that it\n" +
			"serves; logs go to standard error.",
		Example: "  coordinatord serve --state /var/lib/coordinator\n  coordinatord serve --state /var/lib/coordinator --log-format json --log-connections=false",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			bar := progress.New(c.ErrOrStderr(), progress.Options{})
			defer bar.End()
			return coded(serve(c.Context(), dir, &logs, &teller{out: bar.Over(c.OutOrStdout()), bar: bar}, bar.Over(c.ErrOrStderr())))
		},
	}
	logs.Register(c.Flags())
	return c
}

// serve loads the configuration and runs the server on it. Lines that it tells are
// for whoever started it: what the start waits for, and one that begins with
// "ready" once the endpoint serves.
func serve(ctx context.Context, dir string, logs *daemon.LogFlags, tell *teller, stderr io.Writer) (err error) {
	log, err := logs.Logger(stderr)
	if err != nil {
		return err
	}
	manager, err := daemon.ManagerOf(ctx, os.Getenv, clock.System(), log)
	if err != nil {
		return err
	}
	defer func() { manager.End(err) }()
	cfg, err := loadConfig(dir)
	if err != nil {
		return err
	}
	owners, err := ownerLinks(cfg)
	if err != nil {
		return err
	}
	watch := server.NewMonitor(clock.System())
	monitor, err := daemon.StartMonitor(cfg.Metrics, daemon.Subject{
		Healthy: watch.Healthy, Ready: watch.Ready, Collect: daemon.Collect(collect(watch)), Clock: clock.System(), Logger: log,
	})
	if err != nil {
		return err
	}
	defer monitor.Close()
	var client *witness.Client
	defer func() {
		if client != nil {
			client.Close() //nolint:errcheck // the process is ending
		}
	}()
	defer daemon.TendHeap().Stop()
	procs := daemon.TendProcs()
	defer procs.Stop()
	err = server.Run(ctx, server.Options{
		Dir: cfg.StateDir, CoordinatorID: cfg.CoordinatorID, LeaseSeconds: cfg.LeaseSecs,
		QUIC: cfg.QUIC, Owners: owners, Quotas: cfg.Quotas, LowDiskBytes: cfg.LowDiskBytes, Logger: log,
		Monitor: watch, Descriptors: monitor.Descriptors(), Round: procs.Commit,
		Progress: func(line string) {
			manager.Status(line)
			tell.line(line)
		},
		Advance:  tell.advance,
		Working:  manager.Working,
		Stopping: manager.Stopping,
		PageCheck: func(path string) error {
			return whileChildrenWork(manager.Working, func() error { return pageCheck(ctx, path, tell) })
		},
		Witness: func() (witness.Authority, error) {
			tell.bar.End() // the store is open
			if client, err = dialWitness(cfg); err != nil {
				return nil, err
			}
			return client, nil
		},
		Ready: func(i server.Info) {
			tell.bar.End()
			manager.Ready(fmt.Sprintf("serving, epoch %d activation %d", i.Certificate.Epoch, i.Certificate.Activation), daemon.ProgressFunc(i.Turn))
			where := i.Socket
			if i.QUIC != "" {
				where += " quic " + i.QUIC
			}
			fmt.Fprintf(tell.out, "ready %s epoch %d activation %d authority %s\n",
				where, i.Certificate.Epoch, i.Certificate.Activation, handshake.FormatFingerprint(i.Fingerprint))
		},
	})
	return explainLink(cfg, err)
}

// explainLink says what to do where the witness does not accept the link key: it tells
// nobody why (§5.5), so the reason is looked up there.
func explainLink(cfg *config, err error) error {
	var refused *witness.RefusedError
	if !errors.As(err, &refused) || refused.Code != frames.CodeAuthenticationFailed {
		return err
	}
	key, kerr := handshake.LoadKey(cfg.path(linkKey))
	if kerr != nil {
		return err
	}
	return fmt.Errorf("%w; the witness does not accept the key of %s: look for %s in `witnessd keys --state WITNESS list`, and if it is missing, revoked or expired run: "+
		"witnessd keys --state WITNESS add --coordinator %s %s", err, cfg.path(linkKey), handshake.FormatKeyID(handshake.KeyIDOf(key.Public())),
		cfg.CoordinatorID, handshake.FormatPublicKey(key.Public()))
}

// dialWitness makes the client of the witness link. It connects when first used.
func dialWitness(cfg *config) (*witness.Client, error) {
	key, err := handshake.LoadKey(cfg.path(linkKey))
	if err != nil {
		return nil, err
	}
	return witnessClient(cfg, key)
}

// witnessClient is a client of the witness link for a key.
func witnessClient(cfg *config, key *handshake.Key) (*witness.Client, error) {
	if len(cfg.WitnessSocket) > sock.MaxPath {
		return nil, &sock.PathTooLongError{Path: cfg.WitnessSocket, Len: len(cfg.WitnessSocket), Max: sock.MaxPath}
	}
	o := witness.ClientOptions{
		Socket: cfg.WitnessSocket, Pin: cfg.WitnessPin, WitnessID: cfg.WitnessID,
		CoordinatorID: cfg.CoordinatorID, Key: key, Clock: clock.System(), Rand: rand.Reader,
	}
	if cfg.WitnessQUIC != "" {
		o.Addr, o.Dial = cfg.WitnessQUIC, witness.QUICDialer(cfg.WitnessQUIC, cfg.WitnessPin, o.Clock)
	}
	return witness.NewClient(o)
}
