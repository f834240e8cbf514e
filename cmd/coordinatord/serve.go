package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
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
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			return coded(serve(c.Context(), dir, &logs, c.OutOrStdout(), c.ErrOrStderr()))
		},
	}
	logs.Register(c.Flags())
	return c
}

// serve loads the configuration and runs the server on it. Lines on stdout are
// for whoever started it: what the start waits for, and one that begins with
// "ready" once the endpoint serves.
func serve(ctx context.Context, dir string, logs *daemon.LogFlags, stdout, stderr io.Writer) error {
	log, err := logs.Logger(stderr)
	if err != nil {
		return err
	}
	cfg, err := loadConfig(dir)
	if err != nil {
		return err
	}
	var client *witness.Client
	defer func() {
		if client != nil {
			client.Close() //nolint:errcheck // the process is ending
		}
	}()
	return server.Run(ctx, server.Options{
		Dir: cfg.StateDir, CoordinatorID: cfg.CoordinatorID, LeaseSeconds: cfg.LeaseSecs,
		Quotas: cfg.Quotas, LowDiskBytes: cfg.LowDiskBytes, Logger: log,
		Progress:  func(line string) { fmt.Fprintln(stdout, line) },
		PageCheck: func(path string) error { return pageCheck(ctx, path, stdout) },
		Witness: func() (witness.Authority, error) {
			if client, err = dialWitness(cfg); err != nil {
				return nil, err
			}
			return client, nil
		},
		Ready: func(i server.Info) {
			fmt.Fprintf(stdout, "ready %s epoch %d activation %d authority %s\n",
				i.Socket, i.Certificate.Epoch, i.Certificate.Activation, handshake.FormatFingerprint(i.Fingerprint))
		},
	})
}

// dialWitness makes the client of the witness link. It connects when first used.
func dialWitness(cfg *config) (*witness.Client, error) {
	key, err := handshake.LoadKey(cfg.path(linkKey))
	if err != nil {
		return nil, err
	}
	if len(cfg.WitnessSocket) > sock.MaxPath {
		return nil, &sock.PathTooLongError{Path: cfg.WitnessSocket, Len: len(cfg.WitnessSocket), Max: sock.MaxPath}
	}
	return witness.NewClient(witness.ClientOptions{
		Socket: cfg.WitnessSocket, Pin: cfg.WitnessPin, WitnessID: cfg.WitnessID,
		CoordinatorID: cfg.CoordinatorID, Key: key, Clock: clock.System(), Rand: rand.Reader,
	})
}
