package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
	"coordinator/handshake"
)

const lostCoordinator = "0123456789abcdef0123456789abcdef"

// TestInitAboveALostWitness: the successor begins above it, with a lease that nobody holds,
// and goes by its name and key where those were kept.
func TestInitAboveALostWitness(t *testing.T) {
	lost, id := made(t)
	dir := stateDirFor(t)
	require.NoError(t, os.Mkdir(dir, 0o700))
	for _, name := range []string{authorityKey, registryFile} {
		raw, err := os.ReadFile(filepath.Join(lost, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
	}
	code, out, errs := command(t, "init", "--state", dir, "--above", "12,14", "--coordinator", lostCoordinator, "--witness-id", id.WitnessID, "-o", "json")
	require.Equal(t, 0, code, errs)
	var have identity
	require.NoError(t, json.Unmarshal([]byte(out), &have))
	require.Equal(t, id.WitnessID, have.WitnessID)
	require.Equal(t, id.PublicKey, have.PublicKey)

	var st statusJSON
	code, out, errs = command(t, "status", "--state", dir, "-o", "json")
	require.Equal(t, 0, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &st))
	require.Len(t, st.Coordinators, 1)
	l := st.Coordinators[0]
	require.Equal(t, lostCoordinator, l.CoordinatorID)
	require.EqualValues(t, 12, l.LastAuthorityEpoch)
	require.EqualValues(t, 14, l.ActivationSequence)
	require.Equal(t, "live", l.Lease)
	require.Greater(t, l.LeaseRemainingSecs, uint64(0))

	// Without the key nobody would take it for the lost one, so it does not go by its name.
	keyless := stateDirFor(t)
	code, _, errs = command(t, "init", "--state", keyless, "--above", "12,14", "--coordinator", lostCoordinator, "--witness-id", id.WitnessID)
	require.Equal(t, daemon.ExitConfig, code)
	require.Contains(t, errs, filepath.Join(keyless, authorityKey)+" is missing")
	require.NoDirExists(t, keyless)

	// Without what was kept it is somebody else.
	other, strange := made(t, "--above", "1,1", "--coordinator", lostCoordinator)
	require.NotEqual(t, id.WitnessID, strange.WitnessID)
	key, err := handshake.LoadKey(filepath.Join(other, authorityKey))
	require.NoError(t, err)
	require.NotEqual(t, id.PublicKey, handshake.FormatPublicKey(key.Public()))
}

func TestInitAboveIsChecked(t *testing.T) {
	dir := stateDirFor(t)
	for _, args := range [][]string{
		{"--above", "12"}, {"--above", "12,"}, {"--above", "0,1"}, {"--above", "1,0"}, {"--above", "1,1,1"}, {"--above", "-1,1"},
		{"--above", "1,1", "--coordinator", "zz"}, {"--coordinator", lostCoordinator}, {"--witness-id", lostCoordinator},
	} {
		if strings.HasPrefix(args[0], "--above") && len(args) == 2 {
			args = append(args, "--coordinator", lostCoordinator)
		}
		code, _, errs := command(t, append([]string{"init", "--state", dir}, args...)...)
		require.Equal(t, daemon.ExitUsage, code, "%v: %s", args, errs)
		require.NoDirExists(t, dir, "%v", args)
	}

	// What an init with other flags left is not taken for a successor's, nor the reverse.
	for _, first := range [][]string{nil, {"--above", "5,5", "--coordinator", lostCoordinator}} {
		left, _ := made(t, first...)
		require.NoError(t, os.Remove(filepath.Join(left, configFile)))
		code, _, errs := command(t, "init", "--state", left, "--above", "6,6", "--coordinator", lostCoordinator)
		require.Equal(t, daemon.ExitConfig, code, errs)
		require.Contains(t, errs, "what an init with other flags left")
		code, _, errs = command(t, append([]string{"init", "--state", left}, first...)...)
		require.Equal(t, 0, code, errs)
	}
}
