package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/failpoint"
	"coordinator/internal/shell"
	"coordinator/server/authority"
	"coordinator/server/backup"
	"coordinator/server/store"
	"coordinator/server/work"
)

// initFlags are what init cannot make up by itself.
type initFlags struct {
	witnessSocket, witnessQUIC, witnessAuthority, witnessID, quic string
	leaseSecs                                                     int64
	output                                                        string
}

// initReport is what init prints with -o json. The names are those of the files
// that need the values.
type initReport struct {
	StateDir           string `json:"state"`
	CoordinatorID      string `json:"coordinator_id"`
	Authority          string `json:"authority"`
	AuthorityPublicKey string `json:"authority_public_key"`
	LinkPublicKey      string `json:"link_public_key"`
	Socket             string `json:"socket"`
	Config             string `json:"config"`
	LeaseSecs          uint16 `json:"lease_secs"`
}

func initCommand(state *string) *cobra.Command {
	var f initFlags
	c := &cobra.Command{
		Use:   "init",
		Short: "make a state directory: configuration, keys, an empty registry and an empty store",
		Long: "init makes a new coordinator. It needs the pins of its witness, which\n" +
			"`witnessd init` printed, and never replaces a key, a store or a configuration.",
		Example: "  coordinatord init --state /var/lib/coordinator --witness-quic 10.0.0.2:7741 \\\n" +
			"    --witness-id 31c0… --witness-authority sha256:…",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			if err := daemon.CheckOutput(f.output); err != nil {
				return err
			}
			report, err := initialise(dir, &f)
			if err != nil {
				return coded(err)
			}
			return report.print(c.OutOrStdout(), f.output)
		},
	}
	c.Flags().StringVar(&f.witnessSocket, "witness-socket", "", "path of the witness's socket")
	c.Flags().StringVar(&f.witnessQUIC, "witness-quic", "", "HOST:PORT of a witness on another host, instead of its socket")
	c.Flags().StringVar(&f.witnessAuthority, "witness-authority", "", "sha256:HEX fingerprint of the witness's key (required)")
	c.Flags().StringVar(&f.witnessID, "witness-id", "", "32 hex digits of the witness's id (required)")
	c.Flags().StringVar(&f.quic, "quic", "", "HOST:PORT to serve clients on other hosts at (default: the Unix socket alone)")
	c.Flags().Int64Var(&f.leaseSecs, "lease-secs", defaultLeaseSecs, "seconds that one certificate lasts, 6 to 60")
	daemon.AddOutput(c, &f.output)
	return c
}

// initialise makes the directory, or goes on where an interrupted init stopped.
// coordinator.toml gets its name last: a directory without it was never a
// coordinator's, unless the file has been lost since.
func initialise(dir string, f *initFlags) (*initReport, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	cfg, err := f.config(dir)
	if err != nil {
		return nil, err
	}
	if err := durable.MkdirPrivate(dir); err != nil {
		return nil, err
	}
	lock, err := authority.LockStore(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Release() //nolint:errcheck // the process is ending
	file := cfg.path(configFile)
	if _, err := os.Lstat(file); err == nil {
		return nil, &configError{File: file, Problem: "exists: this directory is a coordinator's already; start it with `coordinatord serve`"}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if backup.Interrupted(dir) { // the keys there are the backup's
		return nil, unfinishedRestore(file)
	}
	key, err := keyFile(cfg.path(authorityKey))
	if err != nil {
		return nil, err
	}
	link, err := keyFile(cfg.path(linkKey))
	if err != nil {
		return nil, err
	}
	if err := handshake.CreateRegistry(cfg.path(registryFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := createConfigured(cfg); err != nil {
		return nil, err
	}
	return &initReport{
		StateDir: dir, CoordinatorID: cfg.CoordinatorID.String(),
		Authority:          handshake.FormatFingerprint(handshake.FingerprintOf(key.Public())),
		AuthorityPublicKey: handshake.FormatPublicKey(key.Public()),
		LinkPublicKey:      handshake.FormatPublicKey(link.Public()),
		Socket:             cfg.path(socketFile), Config: file, LeaseSecs: cfg.LeaseSecs,
	}, nil
}

// unfinishedSuffix is that of coordinator.toml until there is a store for it. What
// has that name says under which id an interrupted init began its store.
const unfinishedSuffix = ".new"

// createConfigured makes the store, and then coordinator.toml for it.
func createConfigured(cfg *config) error {
	file := cfg.path(configFile)
	resumed, err := resume(cfg, file+unfinishedSuffix)
	if err != nil {
		return err
	}
	if err := durable.Replace(file+unfinishedSuffix, configText(cfg), durable.PrivateFile); err != nil {
		return err
	}
	failpoint.Hit("init-configured")
	err = createStore(cfg)
	if errors.Is(err, store.ErrExists) && resumed {
		err = unused(cfg)
	}
	if errors.Is(err, store.ErrExists) {
		return &configError{File: cfg.StateDir, Problem: "holds a store but no " + configFile + "; bring that file back from a backup, " +
			"or choose another directory if no coordinator ever ran here"}
	}
	if err != nil {
		return err
	}
	failpoint.Hit("init-stored")
	if err := os.Rename(file+unfinishedSuffix, file); err != nil {
		return err
	}
	return durable.SyncDir(cfg.StateDir)
}

// resume takes over the id under which an interrupted init began, and reports
// whether there was one.
func resume(cfg *config, path string) (bool, error) {
	data, err := durable.ReadPrivate(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	begun, err := parseConfig(cfg.StateDir, path, data)
	if err != nil {
		return false, err
	}
	cfg.CoordinatorID = begun.CoordinatorID
	return true, nil
}

// unused reports store.ErrExists unless the store is this coordinator's and no
// activation was ever installed in it.
func unused(cfg *config) error {
	st, err := store.Open(cfg.StateDir, store.Options{})
	if err != nil {
		return err
	}
	state := st.State()
	if err := st.Close(); err != nil {
		return err
	}
	if state.CoordinatorID != cfg.CoordinatorID || state.Activation != 0 {
		return store.ErrExists
	}
	return nil
}

// config checks the flags by the rules of the file that they go into.
func (f *initFlags) config(dir string) (*config, error) {
	if (f.witnessSocket == "") == (f.witnessQUIC == "") || f.witnessAuthority == "" || f.witnessID == "" {
		return nil, daemon.Usage("--witness-socket (or --witness-quic), --witness-authority and --witness-id are required; `witnessd init` prints all three")
	}
	id, err := frames.NewID[frames.CoordinatorID](rand.Reader)
	if err != nil {
		return nil, err
	}
	raw := tomlConfig{CoordinatorID: id.String(), LeaseSecs: f.leaseSecs, LowDiskBytes: defaultReserveBytes, QUIC: f.quic}
	if raw.Witness.QUIC = f.witnessQUIC; f.witnessSocket != "" {
		if raw.Witness.Socket, err = filepath.Abs(f.witnessSocket); err != nil {
			return nil, err
		}
	}
	raw.Witness.Authority, raw.Witness.WitnessID = f.witnessAuthority, f.witnessID
	raw.Retention.OperationResultSecs = work.DefaultOperationResultSecs
	raw.Retention.EventBytes = work.DefaultEventBytes
	raw.Retention.ArtifactBytes = work.DefaultArtifactBytes
	cfg, err := raw.validate(dir, "init")
	if err != nil {
		return nil, daemon.Usage("%w", err)
	}
	return cfg, nil
}

// keyFile makes a key, or loads the one that an interrupted init left.
func keyFile(path string) (*handshake.Key, error) {
	key, err := handshake.CreateKey(path, rand.Reader)
	if errors.Is(err, fs.ErrExist) {
		return handshake.LoadKey(path)
	}
	return key, err
}

// createStore makes the empty store with its RETENTION record.
func createStore(cfg *config) error {
	change, err := work.GenesisRetention(frames.Retention{
		OperationResultSecs: cfg.OperationResultSecs, EventBytes: cfg.EventBytes, ArtifactBytes: cfg.ArtifactBytes,
	})
	if err != nil {
		return err
	}
	incarnation, err := frames.NewID[frames.IncarnationID](rand.Reader)
	if err != nil {
		return err
	}
	return store.Create(cfg.StateDir, store.Genesis{
		CoordinatorID: cfg.CoordinatorID,
		Incarnation:   incarnation,
		Rows:          []store.Row{{Record: change.Record, Live: change.Live, Annex: change.Annex}},
		CreatedAt:     time.Now(),
	}, store.Options{})
}

// print writes the report for people or for programs.
func (r *initReport) print(w io.Writer, output string) error {
	if output == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	_, err := fmt.Fprintf(w, `coordinator %s
  state      %s
  socket     %s
  authority  %s
  link key   %s

Enrol the link key at the witness, then a client's key here, then serve:
  witnessd keys --state WITNESS add --coordinator %s %s
  coordinatord keys --state %s add ed25519:…
  coordinatord serve --state %s
`, r.CoordinatorID, r.StateDir, r.Socket, r.Authority, r.LinkPublicKey,
		r.CoordinatorID, r.LinkPublicKey, shell.Quote(r.StateDir), shell.Quote(r.StateDir))
	return err
}
