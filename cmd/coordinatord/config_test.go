package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/internal/sock"
	"coordinator/server/quota"
)

// goodConfig is a file as init writes it.
func goodConfig(t *testing.T) string {
	t.Helper()
	f := initFlags{
		witnessSocket: "/run/w/witness.sock", witnessAuthority: "sha256:" + strings.Repeat("ab", 32),
		witnessID: strings.Repeat("cd", 16), leaseSecs: defaultLeaseSecs,
	}
	cfg, err := f.config("/state")
	require.NoError(t, err)
	return string(configText(cfg))
}

func TestTheWrittenConfigReadsBack(t *testing.T) {
	cfg, err := parseConfig("/state", "/state/coordinator.toml", []byte(goodConfig(t)))
	require.NoError(t, err)
	require.EqualValues(t, defaultLeaseSecs, cfg.LeaseSecs)
	require.Equal(t, quota.Defaults(), cfg.Quotas)
	require.EqualValues(t, frames.MinOperationRetained, cfg.OperationResultSecs)
	require.Equal(t, "/run/w/witness.sock", cfg.WitnessSocket)
}

func TestCommentedQuotasAreTheDefaults(t *testing.T) {
	text := goodConfig(t)
	for _, r := range quota.Resources() {
		text = strings.ReplaceAll(text, "# "+r.Key()+" = ", r.Key()+" = ")
	}
	cfg, err := parseConfig("/state", "f", []byte(text))
	require.NoError(t, err)
	require.Equal(t, quota.Defaults(), cfg.Quotas)
}

func TestConfigRefusals(t *testing.T) {
	for _, tt := range []struct {
		name, from, to string
		want           []string // all in the message
	}{
		{"unknown key", "lease_secs = 15", "lease_secs = 15\nlease_seconds = 3", []string{"lease_seconds", "not a known key"}},
		{"unknown table", "[witness]", "[wittness]", []string{"not a known key"}},
		{"proofless mode", "lease_secs = 15", "lease_secs = 15\nproofless = true", []string{"proofless", "no such mode"}},
		{"lease too short", "lease_secs = 15", "lease_secs = 5", []string{"lease_secs", "5", "6 to 60"}},
		{"lease too long", "lease_secs = 15", "lease_secs = 61", []string{"lease_secs", "61", "6 to 60"}},
		{"lease as text", "lease_secs = 15", `lease_secs = "15"`, []string{"lease_secs"}},
		{"not TOML", "lease_secs = 15", "lease_secs = = 15", []string{"line"}},
		{"coordinator id", `coordinator_id = "`, `coordinator_id = "zz`, []string{"coordinator_id", "32 hex"}},
		{"relative witness socket", "/run/w/witness.sock", "witness.sock", []string{"witness.socket", "absolute"}},
		{"witness pin", "sha256:abab", "sha256:ABAB", []string{"witness.authority", "sha256:"}},
		{"witness id", `witness_id = "cdcd`, `witness_id = "cd`, []string{"witness.witness_id", "32 hex"}},
		{"retention too short", "operation_result_secs = 2592000", "operation_result_secs = 2591999", []string{"retention.operation_result_secs", "2592000 or more"}},
		{"no event bytes", "event_bytes           = 1073741824", "event_bytes = 0", []string{"retention.event_bytes", "1 or more"}},
		{"no artifact bytes", "artifact_bytes        = 8589934592", "artifact_bytes = -1", []string{"retention.artifact_bytes"}},
		{"tiny reserve", "low_disk_reserve_bytes = 268435456", "low_disk_reserve_bytes = 1", []string{"low_disk_reserve_bytes", "16777216"}},
		{"principal above server", "[quota.principal]", "[quota.principal]\nconnections = 257", []string{"quota.principal.connections", "257", "1 to 256"}},
		{"server below principal", "[quota.server]", "[quota.server]\nleases = 15", []string{"quota.principal.leases", "16", "1 to 15"}},
		{"no connection for a principal", "[quota.principal]", "[quota.principal]\nconnections = 0", []string{"quota.principal.connections", "is 0", "1 to 256"}},
		{"nothing may be pending", "[quota.server]", "[quota.server]\npending = 0", []string{"quota.server.pending", "is 0", "1 to"}},
		{"no room for one lease", "[quota.principal]", "[quota.principal]\npinned_bytes = 2097151", []string{"quota.principal.pinned_bytes", "2097152 to 536870912"}},
		{"a mistyped server", "[quota.server]", "[quota.server]\nconnections = 100000000", []string{"quota.server.connections", "1 to 65536"}},
		{"negative quota", "[quota.server]", "[quota.server]\nleases = -1", []string{"quota.server.leases", "-1"}},
		{"unknown quota", "[quota.server]", "[quota.server]\nlease = 3", []string{"quota.server.lease", "pinned_bytes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := goodConfig(t)
			require.Contains(t, text, tt.from)
			_, err := parseConfig("/state", "/state/coordinator.toml", []byte(strings.Replace(text, tt.from, tt.to, 1)))
			require.Error(t, err)
			require.Contains(t, err.Error(), "/state/coordinator.toml")
			for _, w := range tt.want {
				require.Contains(t, err.Error(), w)
			}
			require.Equal(t, daemon.ExitConfig, daemon.Code(coded(err)))
		})
	}
}

// TestUnsafeFilesAreNamed starts a coordinator on a directory with one thing
// wrong: the message names the file, and no lease was taken.
func TestUnsafeFilesAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	for _, tt := range []struct {
		name, file string
		spoil      func(path string) error
		code       int
	}{
		{"readable authority key", authorityKey, func(p string) error { return os.Chmod(p, 0o644) }, daemon.ExitConfig},
		{"short authority key", authorityKey, func(p string) error { return os.WriteFile(p, []byte("short"), 0o600) }, daemon.ExitConfig},
		{"authority key is a link", authorityKey, func(p string) error { os.Rename(p, p+".real"); return os.Symlink(p+".real", p) }, daemon.ExitConfig},
		{"no link key", linkKey, os.Remove, daemon.ExitConfig},
		{"writable registry", registryFile, func(p string) error { return os.Chmod(p, 0o666) }, daemon.ExitConfig},
		{"bad registry", registryFile, func(p string) error { return os.WriteFile(p, []byte("ed25519:00 scope=all\n"), 0o600) }, daemon.ExitConfig},
		{"no registry", registryFile, os.Remove, daemon.ExitConfig},
		{"readable configuration", configFile, func(p string) error { return os.Chmod(p, 0o644) }, daemon.ExitConfig},
		{"no configuration", configFile, os.Remove, daemon.ExitConfig},
		{"open directory", "", func(p string) error { return os.Chmod(p, 0o755) }, daemon.ExitConfig},
		{"a file where the socket belongs", socketFile, func(p string) error { return os.WriteFile(p, nil, 0o600) }, daemon.ExitConfig},
		{"a directory where the socket belongs", socketFile, func(p string) error { return os.Mkdir(p, 0o700) }, daemon.ExitConfig},
	} {
		path := at(tt.file)
		var whole []byte
		if tt.file != "" && tt.file != socketFile {
			var err error
			whole, err = os.ReadFile(path)
			require.NoError(t, err)
		}
		require.NoError(t, tt.spoil(path), tt.name)
		p := r.serve()
		require.Equal(t, tt.code, p.ends(), "%s: %s", tt.name, p.output())
		require.Contains(t, p.output(), path, tt.name)
		require.NotContains(t, p.output(), "ready ", tt.name)
		switch {
		case tt.file == "":
			require.NoError(t, os.Chmod(path, 0o700))
		case tt.file == socketFile:
			require.NoError(t, os.Remove(path))
		default:
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.WriteFile(path, whole, 0o600))
		}
	}
	stale := at(socketFile) // a socket that nobody listens on is replaced
	l, err := sock.Listen(stale)
	require.NoError(t, err)
	require.NoError(t, os.Rename(stale, stale+".kept")) // so that Close leaves it
	require.NoError(t, l.Close())
	require.NoError(t, os.Rename(stale+".kept", stale))
	r.serve().ready()
}

func TestALongPathIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	long := filepath.Join(r.root, strings.Repeat("d", sock.MaxPath))
	require.NoError(t, os.Rename(r.dir, long))
	r.dir = long
	p := r.serve()
	require.Equal(t, daemon.ExitConfig, p.ends(), p.output())
	require.Contains(t, p.output(), "107")
}

func TestInitRefusesWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	again := []string{"init", "--state", r.dir, "--witness-socket", "/w", "--witness-authority", "sha256:" + strings.Repeat("ab", 32), "--witness-id", strings.Repeat("cd", 16)}
	before, err := os.ReadFile(filepath.Join(r.dir, configFile))
	require.NoError(t, err)
	code, _, errs := run(t, coordinatord, again...)
	require.Equal(t, daemon.ExitConfig, code)
	require.Contains(t, errs, "exists")
	after, err := os.ReadFile(filepath.Join(r.dir, configFile))
	require.NoError(t, err)
	require.Equal(t, before, after)

	require.NoError(t, os.Remove(filepath.Join(r.dir, configFile)))
	code, _, errs = run(t, coordinatord, again...)
	require.Equal(t, daemon.ExitConfig, code)
	require.Contains(t, errs, "holds a store")
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{}, {"serve"}, {"serve", "--nope"}, {"init", "--state", "/tmp/x"}, {"verify"}, {"keys"}, {"nonsense"},
		{"serve", "--state", "/tmp/x", "--log-level", "loud"},
	} {
		code, _, errs := run(t, coordinatord, args...)
		require.Equal(t, daemon.ExitUsage, code, "%v: %s", args, errs)
	}
}
