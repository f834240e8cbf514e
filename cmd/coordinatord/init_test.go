package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
)

// initArgs are those of an init in dir, with pins of a witness that need not be there.
func initArgs(dir string) []string {
	return []string{"init", "--state", dir, "--witness-socket", "/w/witness.sock", "--witness-authority", "sha256:" + strings.Repeat("ab", 32),
		"--witness-id", strings.Repeat("cd", 16), "-o", "json"}
}

// TestCrashedInitCanBeRepeated kills init on both sides of the store's making: the
// same command then finishes it, under the id and the keys that it began with.
func TestCrashedInitCanBeRepeated(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"init-configured", "init-stored"} {
		dir := filepath.Join(t.TempDir(), "c")
		cmd := exec.Command(coordinatord, initArgs(dir)...)
		cmd.Env = append(os.Environ(), "COORDINATOR_FAILPOINT="+step+"=kill")
		require.Error(t, cmd.Run())
		require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
		require.NoFileExists(t, filepath.Join(dir, configFile))
		begun, err := os.ReadFile(filepath.Join(dir, configFile+unfinishedSuffix))
		require.NoError(t, err)
		key, err := os.ReadFile(filepath.Join(dir, linkKey))
		require.NoError(t, err)
		code, _, errs := run(t, coordinatord, "serve", "--state", dir)
		require.Equal(t, daemon.ExitConfig, code, errs)

		var report initReport
		require.NoError(t, json.Unmarshal([]byte(ok(t, coordinatord, initArgs(dir)...)), &report))
		require.Contains(t, string(begun), report.CoordinatorID)
		require.NoFileExists(t, filepath.Join(dir, configFile+unfinishedSuffix))
		after, err := os.ReadFile(filepath.Join(dir, linkKey))
		require.NoError(t, err)
		require.Equal(t, key, after)
		cfg, err := loadConfig(dir)
		require.NoError(t, err)
		require.Equal(t, report.CoordinatorID, cfg.CoordinatorID.String())
		require.NoError(t, unused(cfg))
		ok(t, coordinatord, "verify", "--state", dir)
	}
}

// TestALostConfigurationIsNoUnfinishedInit takes away the configuration of a coordinator
// that has served: whatever is left, init makes nothing of it.
func TestALostConfigurationIsNoUnfinishedInit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := r.serve()
	p.ready()
	require.Equal(t, 0, p.stop())
	file := filepath.Join(r.dir, configFile)
	require.NoError(t, os.Rename(file, file+unfinishedSuffix))
	for range 2 {
		code, _, errs := run(t, coordinatord, initArgs(r.dir)...)
		require.Equal(t, daemon.ExitConfig, code, errs)
		require.Contains(t, errs, "holds a store")
		require.NoFileExists(t, file)
		require.NoError(t, os.RemoveAll(file+unfinishedSuffix))
	}
}

// TestTwoInitsAtOnce lets both finish or name each other; the directory has one identity.
func TestTwoInitsAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "c")
	const n = 4
	codes := make(chan int, n)
	for range n {
		go func() {
			cmd := exec.Command(coordinatord, initArgs(dir)...)
			cmd.Run() //nolint:errcheck // the code says it
			codes <- cmd.ProcessState.ExitCode()
		}()
	}
	done := 0
	for range n {
		code := <-codes
		require.Contains(t, []int{0, daemon.ExitConfig, daemon.ExitHeld}, code)
		if code == 0 {
			done++
		}
	}
	require.Equal(t, 1, done)
	cfg, err := loadConfig(dir)
	require.NoError(t, err)
	require.NoError(t, unused(cfg))
}

// TestVerifyLeavesOtherDirectoriesAlone checks a directory that holds no store.
func TestVerifyLeavesOtherDirectoriesAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	code, _, errs := run(t, coordinatord, "verify", "--state", dir)
	require.Equal(t, daemon.ExitCorrupt, code, errs)
	require.Contains(t, errs, "no store here")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "verify changes nothing")
}
