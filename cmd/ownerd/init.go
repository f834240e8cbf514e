package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/shell"
	"coordinator/owner"

	"github.com/spf13/cobra"
)

// identity is what others need to know of an owner, as init prints it.
type identity struct {
	PublicKey string   `json:"public_key"`
	Authority string   `json:"authority"`
	Groups    []uint32 `json:"groups"`
	Socket    string   `json:"socket"`
	QUIC      string   `json:"quic,omitempty"`
	State     string   `json:"state"`
}

func initCommand(state *string) *cobra.Command {
	var output, witnessID, witnessKey, quic string
	var groups []int64
	var existOK bool
	c := &cobra.Command{
		Use:   "init",
		Short: "make an owner: authority key, empty registry and journal, owner.toml",
		Long: "init makes a new owner. It needs the id and the public key of the witness, which\n" +
			"`witnessd init` printed: certificates of that one count and no others.",
		Example: "  ownerd init --state /var/lib/coordinator-owner --witness-id 31c0… --witness-public-key ed25519:…",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			conf := &config{MaxOutputBytes: owner.DefaultMaxOutput, MaxProcesses: owner.DefaultMaxProcesses}
			var err error
			if conf.WitnessID, err = frames.ParseID[frames.WitnessID](witnessID); err != nil {
				return daemon.Usage("--witness-id: %w; witnessd init prints it", err)
			}
			if conf.WitnessPublicKey, err = handshake.ParsePublicKey(witnessKey); err != nil {
				return daemon.Usage("--witness-public-key: %w; witnessd init prints it", err)
			}
			if conf.Groups, err = parseGroups(groups); err != nil {
				return daemon.Usage("--group: %w", err)
			}
			if conf.QUIC = quic; quic != "" {
				if err := quicnet.CheckAddr(quic); err != nil {
					return daemon.Usage("--quic must be the host:port to listen on: %w", err)
				}
			}
			dir, err := stateDir(*state)
			if err != nil {
				return err
			}
			id, err := initialise(dir, conf, existOK)
			if err != nil {
				return err
			}
			if output == "json" {
				return daemon.PrintJSON(c.OutOrStdout(), id)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), `owner in %s
authority   %s
public key  %s
groups      %v
socket      %s
next: enrol the coordinator's link key, then serve
  ownerd keys --state %s add --coordinator HEX ed25519:HEX
  ownerd serve --state %s
`, id.State, id.Authority, id.PublicKey, id.Groups, id.Socket, shell.Quote(dir), shell.Quote(dir))
			return err
		},
	}
	c.Flags().StringVar(&witnessID, "witness-id", "", "32 hex digits of the witness whose certificates count (required)")
	c.Flags().StringVar(&witnessKey, "witness-public-key", "", "its public key, ed25519:HEX (required)")
	c.Flags().Int64SliceVar(&groups, "group", []int64{defaultGroup}, "terminal groups to serve")
	c.Flags().StringVar(&quic, "quic", "", "HOST:PORT to serve coordinators of other users and hosts at (default: the Unix socket alone)")
	c.Flags().BoolVar(&existOK, "exist-ok", false, "print the owner that is there already instead of refusing")
	daemon.AddOutput(c, &output)
	return c
}

// initialise makes whatever a new owner lacks. owner.toml comes last: as long as it is missing
// an interrupted init can be run again, and once it is there nothing is made any more, so that
// a lost journal is never taken for a new owner's.
func initialise(dir string, conf *config, existOK bool) (*identity, error) {
	if err := durable.MkdirPrivate(dir); err != nil {
		return nil, fmt.Errorf("owner directory: %w", err)
	}
	path := filepath.Join(dir, configFile)
	if _, err := os.Lstat(path); err == nil {
		if !existOK {
			return nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%s exists: there is an owner already; start it with serve, or choose another --state", path))
		}
		return describe(dir)
	}
	if _, err := handshake.CreateKey(filepath.Join(dir, authorityKey), rand.Reader); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	key, err := handshake.LoadKey(filepath.Join(dir, authorityKey))
	if err != nil {
		return nil, daemon.Exit(daemon.ExitConfig, err)
	}
	if err := handshake.CreateRegistry(filepath.Join(dir, registryFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := owner.Create(dir, handshake.FingerprintOf(key.Public())); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, coded(err)
	}
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
	id := &identity{
		PublicKey: handshake.FormatPublicKey(key.Public()),
		Authority: handshake.FormatFingerprint(handshake.FingerprintOf(key.Public())),
		Socket:    conf.Socket, QUIC: conf.QUIC, State: dir,
	}
	for _, g := range conf.Groups {
		id.Groups = append(id.Groups, uint32(g))
	}
	return id, nil
}
