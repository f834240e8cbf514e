package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/shell"
	"coordinator/witness"

	"github.com/BurntSushi/toml"
)

const (
	// maxConfigBytes bounds witness.toml; the shipped one has about 1 KiB.
	maxConfigBytes = 64 << 10
	// minLeaseSecs is the shortest max_lease_secs: a coordinator asks for 6 or more.
	minLeaseSecs = 6
)

// config is a validated witness.toml with paths made absolute.
type config struct {
	WitnessID      frames.WitnessID
	MaxLeaseSecs   uint16
	Socket         string
	QUIC           string // host:port, "" when not set
	CoordinatorDir string // "" when not set
	Metrics        daemon.MonitorConfig
}

// tomlConfig is witness.toml as it stands in the file.
type tomlConfig struct {
	WitnessID      string `toml:"witness_id"`
	MaxLeaseSecs   int64  `toml:"max_lease_secs"`
	Socket         string `toml:"socket"`
	QUIC           string `toml:"quic"`
	CoordinatorDir string `toml:"coordinator_dir"`

	Metrics daemon.MonitorConfig `toml:"metrics"`
}

// stateDir is the --state flag as an absolute path.
func stateDir(flag string) (string, error) {
	if flag == "" {
		return "", daemon.Usage("--state is missing")
	}
	return filepath.Abs(flag)
}

// loadConfig reads witness.toml of a state directory. Its errors carry an exit code.
func loadConfig(dir string) (*config, error) {
	path := filepath.Join(dir, configFile)
	data, err := durable.ReadPrivate(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%w; make a witness with: witnessd init --state %s", err, shell.Quote(dir)))
	} else if err != nil {
		return nil, daemon.Exit(daemon.ExitConfig, err)
	}
	c, err := parseConfig(dir, data)
	if err != nil {
		return nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%s: %w", path, err))
	}
	return c, nil
}

func parseConfig(dir string, data []byte) (*config, error) {
	raw := tomlConfig{MaxLeaseSecs: witness.MaxLeaseSecs, Socket: socketFile}
	md, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&raw)
	if err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			return nil, fmt.Errorf("line %d: %s", pe.Position.Line, pe.Message)
		}
		return nil, err
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("%s is not a known key; remove it or correct its spelling", unknown[0])
	}
	c := &config{Socket: raw.Socket, QUIC: raw.QUIC, CoordinatorDir: raw.CoordinatorDir, Metrics: raw.Metrics}
	if c.WitnessID, err = frames.ParseID[frames.WitnessID](raw.WitnessID); err != nil {
		return nil, fmt.Errorf("witness_id must be 32 hex digits, not all zero, as init wrote it")
	}
	if raw.MaxLeaseSecs < minLeaseSecs || raw.MaxLeaseSecs > witness.MaxLeaseSecs {
		return nil, fmt.Errorf("max_lease_secs is %d, allowed %d to %d", raw.MaxLeaseSecs, minLeaseSecs, witness.MaxLeaseSecs)
	}
	c.MaxLeaseSecs = uint16(raw.MaxLeaseSecs)
	if c.Socket == "" {
		return nil, fmt.Errorf("socket is empty; remove the line or name a file")
	}
	if !filepath.IsAbs(c.Socket) {
		c.Socket = filepath.Join(dir, c.Socket)
	}
	if c.QUIC != "" {
		if err := quicnet.CheckAddr(c.QUIC); err != nil {
			return nil, fmt.Errorf("quic must be the host:port to listen on: %w", err)
		}
	}
	if err := c.Metrics.Check(); err != nil {
		return nil, err
	}
	if c.CoordinatorDir != "" && !filepath.IsAbs(c.CoordinatorDir) {
		c.CoordinatorDir = filepath.Join(dir, c.CoordinatorDir)
	}
	return c, nil
}

// configText renders the commented witness.toml that init writes.
func configText(c *config) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `# witness.toml: read once, when witnessd starts. Unknown keys are refused.

# Who this witness is to its coordinators and their clients. Never change it: it is pinned.
witness_id = "%s"

# The longest lease that a coordinator may ask for, %d to %d seconds.
max_lease_secs = %d

# Where the witness listens: a file in a directory that only this user can enter. A relative
# path starts at this directory; the whole path may have 107 bytes.
socket = %q

# Where it listens for coordinators on other hosts, host:port over QUIC (UDP). Without the
# line it does not.
%s

# Which coordinators may use this witness is not said here but in workload-keys: each record
# names one coordinator. Add one with
#   witnessd keys --state DIR add --coordinator HEX ed25519:HEX

# The coordinator's state directory when it is on this machine. The witness refuses to share
# a directory with it: whoever copies the one must not copy the other.
`, c.WitnessID, minLeaseSecs, witness.MaxLeaseSecs, c.MaxLeaseSecs, socketFile, quicText(c.QUIC))
	if c.CoordinatorDir == "" {
		b.WriteString("# coordinator_dir = \"/path/to/coordinator\"\n")
	} else {
		fmt.Fprintf(&b, "coordinator_dir = %q\n", c.CoordinatorDir)
	}
	fmt.Fprintf(&b, "\n"+daemon.MonitorText, "127.0.0.1:9465")
	return b.Bytes()
}

// quicText is the line of the file that says where it listens over QUIC.
func quicText(addr string) string {
	if addr == "" {
		return `# quic = "0.0.0.0:7741"`
	}
	return fmt.Sprintf("quic = %q", addr)
}
