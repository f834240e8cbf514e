package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
	"coordinator/internal/quicnet"
	"coordinator/server/backup"
	"coordinator/server/quota"
)

// Names of the files in a coordinator's state directory.
const (
	configFile   = "coordinator.toml"
	authorityKey = "workload-authority.ed25519"
	linkKey      = "link.ed25519"
	registryFile = "workload-keys"
	lockFile     = "store.lock"
	socketFile   = "coordinator.sock"
)

// maxConfigBytes bounds coordinator.toml; the shipped one is 3 KiB.
const maxConfigBytes = 64 << 10

// Ranges of configured values (protocol.md §4 [D-59], §5.6).
const (
	minLeaseSecs, maxLeaseSecs, defaultLeaseSecs = 6, 60, 15

	defaultEventBytes    = 1 << 30
	defaultArtifactBytes = 8 << 30
	minReserveBytes      = 16 << 20
	defaultReserveBytes  = 256 << 20
)

// A configError names the file, the key and what would be right.
type configError struct {
	File, Key, Problem string
}

// Error is one line for the operator.
func (e *configError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s: %s", e.File, e.Problem)
	}
	return fmt.Sprintf("%s: %s %s", e.File, e.Key, e.Problem)
}

// tomlConfig is coordinator.toml as it stands in the file.
type tomlConfig struct {
	CoordinatorID   string `toml:"coordinator_id"`
	LeaseSecs       int64  `toml:"lease_secs"`
	LowDiskBytes    int64  `toml:"low_disk_reserve_bytes"`
	ProoflessClient bool   `toml:"proofless"`
	QUIC            string `toml:"quic"`
	Witness         struct {
		Socket    string `toml:"socket"`
		QUIC      string `toml:"quic"`
		Authority string `toml:"authority"`
		WitnessID string `toml:"witness_id"`
	} `toml:"witness"`
	Owners []struct {
		Name      string `toml:"name"`
		Socket    string `toml:"socket"`
		QUIC      string `toml:"quic"`
		Authority string `toml:"authority"`
	} `toml:"owner"`
	Retention struct {
		OperationResultSecs int64 `toml:"operation_result_secs"`
		EventBytes          int64 `toml:"event_bytes"`
		ArtifactBytes       int64 `toml:"artifact_bytes"`
	} `toml:"retention"`
	Metrics daemon.MonitorConfig `toml:"metrics"`
	Quota   struct {
		Principal map[string]int64 `toml:"principal"`
		Server    map[string]int64 `toml:"server"`
	} `toml:"quota"`
}

// config is a validated coordinator.toml with paths made absolute.
type config struct {
	StateDir      string
	CoordinatorID frames.CoordinatorID
	LeaseSecs     uint16
	LowDiskBytes  uint64

	QUIC string // host:port to listen on; empty: off

	WitnessSocket string // empty when WitnessQUIC is set
	WitnessQUIC   string // host:port
	WitnessPin    frames.Fingerprint
	WitnessID     frames.WitnessID

	Owners []ownerConfig // on which runs can be started

	OperationResultSecs uint64
	EventBytes          uint64
	ArtifactBytes       uint64

	Quotas quota.Limits

	Metrics daemon.MonitorConfig
}

// path returns the state directory's file of that name.
func (c *config) path(name string) string { return filepath.Join(c.StateDir, name) }

// loadConfig reads and validates coordinator.toml of a state directory. Values
// that are wrong are a *[configError], unsafe files a *durable.UnsafeFileError.
func loadConfig(dir string) (*config, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, configFile)
	data, err := durable.ReadPrivate(file, maxConfigBytes)
	if errors.Is(err, fs.ErrNotExist) && backup.Interrupted(dir) {
		return nil, unfinishedRestore(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &configError{File: file, Problem: "is missing; make a coordinator with `coordinatord init`, or bring the file back from a backup"}
	}
	if err != nil {
		return nil, err
	}
	return parseConfig(dir, file, data)
}

// unfinishedRestore refuses a directory that an interrupted restore left.
func unfinishedRestore(file string) error {
	return &configError{File: file, Problem: "is missing: a restore into this directory was interrupted; run `coordinatord restore` once more, or remove the directory"}
}

func parseConfig(dir, file string, data []byte) (*config, error) {
	raw := tomlConfig{LeaseSecs: defaultLeaseSecs, LowDiskBytes: defaultReserveBytes}
	raw.Retention.OperationResultSecs = frames.MinOperationRetained
	raw.Retention.EventBytes = defaultEventBytes
	raw.Retention.ArtifactBytes = defaultArtifactBytes
	md, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&raw)
	if err != nil {
		var pe toml.ParseError
		if errors.As(err, &pe) {
			return nil, &configError{File: file, Problem: fmt.Sprintf("line %d: %s", pe.Position.Line, pe.Message)}
		}
		return nil, &configError{File: file, Problem: err.Error()}
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return nil, &configError{file, unknown[0].String(), "is not a known key; remove it or correct its spelling"}
	}
	if raw.ProoflessClient {
		return nil, &configError{file, "proofless", "asks for connections without a workload proof; there is no such mode, remove the key"}
	}
	return raw.validate(dir, file)
}

// validate turns the file's values into a config, or names the first bad one.
func (raw *tomlConfig) validate(dir, file string) (*config, error) {
	c := &config{StateDir: dir, Quotas: quota.Defaults()}
	bad := func(key, format string, args ...any) error {
		return &configError{file, key, fmt.Sprintf(format, args...)}
	}
	var err error
	if c.CoordinatorID, err = frames.ParseID[frames.CoordinatorID](raw.CoordinatorID); err != nil {
		return nil, bad("coordinator_id", "must be 32 hex digits, not all zero")
	}
	if raw.LeaseSecs < minLeaseSecs || raw.LeaseSecs > maxLeaseSecs {
		return nil, bad("lease_secs", "is %d, allowed %d to %d", raw.LeaseSecs, minLeaseSecs, maxLeaseSecs)
	}
	c.LeaseSecs = uint16(raw.LeaseSecs)
	if raw.LowDiskBytes < minReserveBytes {
		return nil, bad("low_disk_reserve_bytes", "is %d, allowed %d or more", raw.LowDiskBytes, minReserveBytes)
	}
	c.LowDiskBytes = uint64(raw.LowDiskBytes)
	if c.QUIC = raw.QUIC; c.QUIC != "" {
		if err := quicnet.CheckAddr(c.QUIC); err != nil {
			return nil, bad("quic", "must be the host:port to listen on: %v", err)
		}
	}
	c.WitnessSocket, c.WitnessQUIC = raw.Witness.Socket, raw.Witness.QUIC
	switch {
	case c.WitnessQUIC == "":
		if !filepath.IsAbs(c.WitnessSocket) {
			return nil, bad("witness.socket", "must be the absolute path of the witness's socket")
		}
	case c.WitnessSocket != "":
		return nil, bad("witness.quic", "is given beside witness.socket; leave one of them out")
	default:
		if err := quicnet.CheckAddr(c.WitnessQUIC); err != nil {
			return nil, bad("witness.quic", "must be the witness's host:port: %v", err)
		}
	}
	if c.WitnessPin, err = handshake.ParseFingerprint(raw.Witness.Authority); err != nil {
		return nil, bad("witness.authority", "must be sha256: and 64 lowercase hex digits, as `witnessd init` printed it")
	}
	if c.WitnessID, err = frames.ParseID[frames.WitnessID](raw.Witness.WitnessID); err != nil {
		return nil, bad("witness.witness_id", "must be 32 hex digits, as `witnessd init` printed it")
	}
	if c.Owners, err = raw.owners(bad); err != nil {
		return nil, err
	}
	if err := raw.Metrics.Check(); err != nil {
		return nil, &configError{File: file, Problem: err.Error()}
	}
	c.Metrics = raw.Metrics
	r := raw.Retention
	if r.OperationResultSecs < frames.MinOperationRetained {
		return nil, bad("retention.operation_result_secs", "is %d, allowed %d or more", r.OperationResultSecs, frames.MinOperationRetained)
	}
	if r.EventBytes < 1 {
		return nil, bad("retention.event_bytes", "is %d, allowed 1 or more", r.EventBytes)
	}
	if r.ArtifactBytes < 1 {
		return nil, bad("retention.artifact_bytes", "is %d, allowed 1 or more", r.ArtifactBytes)
	}
	c.OperationResultSecs, c.EventBytes, c.ArtifactBytes = uint64(r.OperationResultSecs), uint64(r.EventBytes), uint64(r.ArtifactBytes)
	if err := c.setQuotas("quota.principal", quota.OfPrincipal, raw.Quota.Principal, bad); err != nil {
		return nil, err
	}
	if err := c.setQuotas("quota.server", quota.OfServer, raw.Quota.Server, bad); err != nil {
		return nil, err
	}
	var le *quota.LimitError
	if err := c.Quotas.Validate(); errors.As(err, &le) {
		return nil, bad(fmt.Sprintf("quota.%s.%s", le.Level, le.Resource.Key()), "is %d, allowed %d to %d", le.Have, le.Min, le.Max)
	}
	return c, nil
}

// setQuotas writes the configured values of one level over the defaults (§2.3 [D-4]).
func (c *config) setQuotas(table string, level quota.Level, set map[string]int64, bad func(key, format string, args ...any) error) error {
	var known []string
	for _, r := range quota.Resources() {
		known = append(known, r.Key())
		v, ok := set[r.Key()]
		if !ok {
			continue
		}
		if v < 0 {
			return bad(table+"."+r.Key(), "is %d, it must not be negative", v)
		}
		c.Quotas[level][r] = uint64(v)
	}
	for _, key := range slices.Sorted(maps.Keys(set)) {
		if !slices.Contains(known, key) {
			return bad(table+"."+key, "is not a known quota; they are %s", strings.Join(known, ", "))
		}
	}
	return nil
}

// configText renders the commented coordinator.toml that init writes.
func configText(c *config) []byte {
	var b bytes.Buffer
	quic := " Without the line\n# only the Unix socket serves.\n# quic = \"0.0.0.0:7740\""
	if c.QUIC != "" {
		quic = fmt.Sprintf("\nquic = %q", c.QUIC)
	}
	witness := fmt.Sprintf("socket     = %q", c.WitnessSocket)
	if c.WitnessQUIC != "" {
		witness = fmt.Sprintf("quic       = %q", c.WitnessQUIC)
	}
	fmt.Fprintf(&b, `# coordinator.toml: read once, when coordinatord starts. Unknown keys are refused.

# Who this coordinator is to its clients and its witness. Never change it.
coordinator_id = "%s"

# How long one certificate of the witness lasts, %d to %d seconds. A coordinator
# that dies without a clean stop keeps its successor waiting that long.
lease_secs = %d

# Below this much free disk, work that is new is refused so that cancels,
# results and activations still fit.
low_disk_reserve_bytes = %d

# Where clients on other hosts are served, host:port over QUIC (UDP).%s

# The witness that grants the one lease, and the pins that prove it is the one.
# One on another host is reached by quic = "host:port" instead of socket.
[witness]
%s
authority  = "%s"
witness_id = "%s"

# Process owners on which runs can be started, each with the pin that proves it is
# the one. One on another host is reached by quic = "host:port" instead of socket.
# Its "ownerd keys" must know this coordinator's link key, with the scopes effects
# and facts. A removed owner's bindings end as lost.
%s
# Written into the store when it is made. Afterwards only the CHANGE_RETENTION
# command changes them; editing them here has no effect on an existing store.
[retention]
operation_result_secs = %d   # %d or more
event_bytes           = %d   # bound of the event log
artifact_bytes        = %d   # sum of the latest artifact manifests

# Aggregate quotas. A principal's must not be above the server's.
`, c.CoordinatorID, minLeaseSecs, maxLeaseSecs, c.LeaseSecs, c.LowDiskBytes,
		quic, witness, handshake.FormatFingerprint(c.WitnessPin), c.WitnessID, ownersText(c.Owners),
		c.OperationResultSecs, frames.MinOperationRetained, c.EventBytes, c.ArtifactBytes)
	for _, level := range []quota.Level{quota.OfPrincipal, quota.OfServer} {
		fmt.Fprintf(&b, "[quota.%s]\n", level)
		for _, r := range quota.Resources() {
			fmt.Fprintf(&b, "# %s = %d\n", r.Key(), c.Quotas[level][r])
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, daemon.MonitorText, "127.0.0.1:9464")
	return b.Bytes()
}
