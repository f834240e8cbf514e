package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"coordinator/cmd/internal/daemon"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/shell"
	"coordinator/witness"

	"github.com/spf13/cobra"
)

// identity is what others need to know of a witness, as init prints it.
type identity struct {
	WitnessID string `json:"witness_id"`
	PublicKey string `json:"public_key"`
	Authority string `json:"authority"`
	Socket    string `json:"socket"`
	State     string `json:"state"`
}

func initCommand(state *string) *cobra.Command {
	var output, coordinatorDir, quic string
	var maxLease uint16
	var existOK bool
	var after successor
	c := &cobra.Command{
		Use:   "init",
		Short: "make a witness: id, authority key, empty registry and state, witness.toml",
		Long: "init makes a new witness and prints what coordinators and owners pin of it. With --above it\n" +
			"takes the place of one that is lost, whose grants it must not go below.",
		Example: "  witnessd init --state /var/lib/coordinator-witness --quic 10.0.0.2:7741\n" +
			"  witnessd init --state /var/lib/coordinator-witness --above 12,12 --coordinator 5a1e…",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			if maxLease < minLeaseSecs || maxLease > witness.MaxLeaseSecs {
				return daemon.Usage("--max-lease-secs is %d, allowed %d to %d", maxLease, minLeaseSecs, witness.MaxLeaseSecs)
			}
			if quic != "" {
				if err := quicnet.CheckAddr(quic); err != nil {
					return daemon.Usage("--quic must be the host:port to listen on: %w", err)
				}
			}
			if _, err := after.predecessor(); err != nil {
				return err
			}
			dir, err := stateDir(*state)
			if err != nil {
				return err
			}
			if coordinatorDir != "" {
				if coordinatorDir, err = filepath.Abs(coordinatorDir); err != nil {
					return err
				}
			}
			id, err := initialise(dir, &config{MaxLeaseSecs: maxLease, CoordinatorDir: coordinatorDir, QUIC: quic}, &after, existOK)
			if err != nil {
				return err
			}
			if output == "json" {
				return daemon.PrintJSON(c.OutOrStdout(), id)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), `witness in %s
witness_id  %s
public key  %s
authority   %s
socket      %s
next: enrol the coordinator's link key, then serve
  witnessd keys --state %s add --coordinator HEX ed25519:HEX
  witnessd serve --state %s
`, id.State, id.WitnessID, id.PublicKey, id.Authority, id.Socket, shell.Quote(dir), shell.Quote(dir))
			return err
		},
	}
	c.Flags().StringVar(&coordinatorDir, "coordinator-dir", "", "the coordinator's state directory, to be kept apart from")
	c.Flags().Uint16Var(&maxLease, "max-lease-secs", witness.MaxLeaseSecs, "the longest lease that a coordinator may ask for")
	c.Flags().StringVar(&quic, "quic", "", "HOST:PORT to serve coordinators of other users and hosts at (default: the Unix socket alone)")
	c.Flags().BoolVar(&existOK, "exist-ok", false, "print the witness that is there already instead of refusing")
	after.register(c.Flags())
	daemon.AddOutput(c, &output)
	return c
}

// initialise makes whatever a new witness lacks. witness.toml comes last: as long as it is
// missing an interrupted init can be run again, and once it is there nothing is made any more,
// so that a lost state file is never taken for a new witness's.
func initialise(dir string, conf *config, after *successor, existOK bool) (*identity, error) {
	_, missing := os.Lstat(dir)
	if err := durable.MkdirPrivate(dir); err != nil {
		return nil, fmt.Errorf("witness directory: %w", err)
	}
	path := filepath.Join(dir, configFile)
	if _, err := os.Lstat(path); err == nil {
		if !existOK {
			return nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%s exists: there is a witness already; start it with serve, or choose another --state", path))
		}
		return describe(dir)
	}
	if err := witness.CheckPlacement(dir, conf.CoordinatorDir); err != nil {
		if errors.Is(missing, fs.ErrNotExist) {
			os.Remove(dir) //nolint:errcheck // it was made to be looked at, and nothing is in it
		}
		return nil, coded(err)
	}
	key := filepath.Join(dir, authorityKey)
	if _, err := os.Lstat(key); after.witnessID != "" && errors.Is(err, fs.ErrNotExist) {
		if errors.Is(missing, fs.ErrNotExist) {
			os.Remove(dir) //nolint:errcheck // likewise
		}
		return nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%s is missing, and only with the lost witness's key is anybody taken for it: "+
			"put it there first, or leave out --witness-id and be another witness", key))
	}
	if _, err := handshake.CreateKey(key, rand.Reader); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := handshake.CreateRegistry(filepath.Join(dir, registryFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	id, err := after.create(dir)
	if err != nil {
		return nil, err
	}
	conf.WitnessID = id
	if err := durable.Create(path, configText(conf), durable.PrivateFile); err != nil {
		return nil, err
	}
	return describe(dir)
}

// describe reads back what is in dir.
func describe(dir string) (*identity, error) {
	conf, err := loadConfig(dir)
	if err != nil {
		return nil, err
	}
	key, err := handshake.LoadKey(filepath.Join(dir, authorityKey))
	if err != nil {
		return nil, daemon.Exit(daemon.ExitConfig, err)
	}
	return &identity{
		WitnessID: conf.WitnessID.String(),
		PublicKey: handshake.FormatPublicKey(key.Public()),
		Authority: handshake.FormatFingerprint(handshake.FingerprintOf(key.Public())),
		Socket:    conf.Socket,
		State:     dir,
	}, nil
}
