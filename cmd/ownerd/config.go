package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/internal/shell"
	"coordinator/owner"

	"github.com/BurntSushi/toml"
)

const (
	// maxConfigBytes bounds owner.toml; the shipped one has about 2 KiB.
	maxConfigBytes = 64 << 10
	// maxProcesses bounds max_processes: each costs about six descriptors while it starts.
	maxProcesses = 100_000
	// defaultGroup is the terminal group that a new owner serves.
	defaultGroup = 1
)

// config is a validated owner.toml with paths made absolute.
type config struct {
	WitnessID        frames.WitnessID
	WitnessPublicKey [32]byte
	Groups           []frames.GroupID
	Socket           string
	QUIC             string // host:port, "" when not set
	MaxOutputBytes   uint64
	MaxProcesses     int
	Metrics          daemon.MonitorConfig
}

// tomlConfig is owner.toml as it stands in the file.
type tomlConfig struct {
	WitnessID        string  `toml:"witness_id"`
	WitnessPublicKey string  `toml:"witness_public_key"`
	Groups           []int64 `toml:"groups"`
	Socket           string  `toml:"socket"`
	QUIC             string  `toml:"quic"`
	MaxOutputBytes   int64   `toml:"max_output_bytes"`
	MaxProcesses     int64   `toml:"max_processes"`

	Metrics daemon.MonitorConfig `toml:"metrics"`
}

// stateDir is the --state flag as an absolute path.
func stateDir(flag string) (string, error) {
	if flag == "" {
		return "", daemon.Usage("--state is missing")
	}
	return filepath.Abs(flag)
}

// loadConfig reads owner.toml of a state directory. Its errors carry an exit code.
func loadConfig(dir string) (*config, error) {
	path := filepath.Join(dir, configFile)
	data, err := durable.ReadPrivate(path, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, daemon.Exit(daemon.ExitConfig, fmt.Errorf("%w; make an owner with: ownerd init --state %s", err, shell.Quote(dir)))
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
	raw := tomlConfig{
		Socket: socketFile, Groups: []int64{defaultGroup},
		MaxOutputBytes: owner.DefaultMaxOutput, MaxProcesses: owner.DefaultMaxProcesses,
	}
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
	c := &config{Socket: raw.Socket, QUIC: raw.QUIC, MaxOutputBytes: uint64(raw.MaxOutputBytes), MaxProcesses: int(raw.MaxProcesses), Metrics: raw.Metrics}
	if c.WitnessID, err = frames.ParseID[frames.WitnessID](raw.WitnessID); err != nil {
		return nil, errors.New("witness_id must be 32 hex digits, not all zero, as witnessd init prints it")
	}
	if c.WitnessPublicKey, err = handshake.ParsePublicKey(raw.WitnessPublicKey); err != nil {
		return nil, fmt.Errorf("witness_public_key: %w; it is the ed25519:… line that witnessd init prints", err)
	}
	if c.Groups, err = parseGroups(raw.Groups); err != nil {
		return nil, err
	}
	switch {
	case c.Socket == "":
		return nil, errors.New("socket is empty; remove the line or name a file")
	case raw.MaxOutputBytes < 1:
		return nil, errors.New("max_output_bytes must be at least 1")
	case raw.MaxProcesses < 1 || raw.MaxProcesses > maxProcesses:
		return nil, fmt.Errorf("max_processes is %d, allowed 1 to %d", raw.MaxProcesses, maxProcesses)
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
	return c, nil
}

// parseGroups checks and sorts the terminal groups.
func parseGroups(raw []int64) ([]frames.GroupID, error) {
	if len(raw) == 0 || len(raw) > owner.MaxGroups {
		return nil, fmt.Errorf("groups must name 1 to %d groups", owner.MaxGroups)
	}
	var out []frames.GroupID
	for _, g := range raw {
		if g < 0 || g > math.MaxUint32 {
			return nil, fmt.Errorf("group %d is out of range; a group is a number from 0 to %d", g, uint32(math.MaxUint32))
		}
		if slices.Contains(out, frames.GroupID(g)) {
			return nil, fmt.Errorf("group %d is named twice", g)
		}
		out = append(out, frames.GroupID(g))
	}
	slices.Sort(out)
	return out, nil
}

// configText renders the commented owner.toml that init writes.
func configText(c *config) []byte {
	var groups []string
	for _, g := range c.Groups {
		groups = append(groups, fmt.Sprint(uint32(g)))
	}
	return fmt.Appendf(nil, `# owner.toml: read once, when ownerd starts. Unknown keys are refused.

# The one witness whose certificates count, as witnessd init prints it. A coordinator must show
# a certificate of this witness before anything is started for it.
witness_id = "%s"
witness_public_key = "%s"

# The terminal groups that this owner serves, numbers that a run names to be placed. At least one.
groups = [%s]

# Where the owner listens: a file in a directory that only this user can enter. A relative path
# starts at this directory; the whole path may have 107 bytes.
socket = %q

# Where it listens for coordinators on other hosts, host:port over QUIC (UDP). Without the line
# it does not.
%s

# How much output of one process is stored in output/. What comes beyond is still read and
# counted, and covered by the evidence, but it cannot be read again.
max_output_bytes = %d

# How many processes may run at once. More are rejected.
max_processes = %d

# Which coordinators and readers may use this owner is not said here but in workload-keys: each
# record names one coordinator. Add one with
#   ownerd keys --state DIR add --coordinator HEX ed25519:HEX
# A key that only reads output takes --scope output.

# A process gets PATH, HOME, USER, LOGNAME, SHELL, LANG, LANGUAGE, LC_*, TZ, TMPDIR and
# XDG_RUNTIME_DIR from the environment of ownerd, TERM, and what its run adds; nothing else.
# Without a cwd it starts in the home directory.

`+daemon.MonitorText, c.WitnessID, handshake.FormatPublicKey(c.WitnessPublicKey), strings.Join(groups, ", "), socketFile, quicText(c.QUIC),
		c.MaxOutputBytes, c.MaxProcesses, "127.0.0.1:9466")
}

// quicText is the line of the file that says where it listens over QUIC.
func quicText(addr string) string {
	if addr == "" {
		return `# quic = "0.0.0.0:7742"`
	}
	return fmt.Sprintf("quic = %q", addr)
}
