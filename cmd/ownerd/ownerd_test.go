//go:build linux

package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/owner"

	"github.com/stretchr/testify/require"
)

func TestInitMakesAnOwnerOnce(t *testing.T) {
	dir := stateDirFor(t)
	code, out, errs := command(t, initArgs(dir)...)
	require.Equal(t, 0, code, errs)
	var id identity
	require.NoError(t, json.Unmarshal([]byte(out), &id))
	require.Equal(t, filepath.Join(dir, socketFile), id.Socket)
	require.Equal(t, []uint32{1}, id.Groups)
	for _, name := range []string{configFile, authorityKey, registryFile, "owner.db"} {
		st, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), st.Mode().Perm(), name)
	}
	code, _, errs = command(t, initArgs(dir)...)
	require.Equal(t, daemon.ExitConfig, code)
	require.Contains(t, errs, "already")
	code, again, _ := command(t, append(initArgs(dir), "--exist-ok")...)
	require.Equal(t, 0, code)
	require.Equal(t, out, again)
	// The shipped configuration is the default one, with a comment for each key.
	conf, err := loadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, testWitness, conf.WitnessID)
	require.EqualValues(t, owner.DefaultMaxOutput, conf.MaxOutputBytes)

	for _, args := range [][]string{
		{"init"}, {"init", "--state", dir}, {"init", "--state", dir, "--witness-id", "x"}, {"serve"}, {"nothing"},
		append(initArgs(dir), "--group", "-1"), append(initArgs(dir), "--group", "1,1"),
	} {
		code, _, _ := command(t, args...)
		require.Equal(t, daemon.ExitUsage, code, "%v", args)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	good := string(configText(&config{WitnessID: testWitness, WitnessPublicKey: witnessKey.Public(), Groups: []frames.GroupID{3, 1},
		MaxOutputBytes: 5, MaxProcesses: 6}))
	c, err := parseConfig("/x", []byte(good))
	require.NoError(t, err)
	require.Equal(t, []frames.GroupID{1, 3}, c.Groups)
	require.Equal(t, "/x/owner.sock", c.Socket)
	for old, bad := range map[string]string{
		`max_output_bytes = 5`:             `max_output_bytes = 0`,
		`max_processes = 6`:                `max_processes = 0`,
		`groups = [3, 1]`:                  `groups = []`,
		`witness_id = "`:                   `witness_id = "1`,
		`witness_public_key = "ed25519:`:   `witness_public_key = "`,
		`socket = "owner.sock"`:            `socket = ""`,
		`# quic = "0.0.0.0:7742"`:          `quic = "nowhere"`,
		"# owner.toml: read once":          "colour = 1 #",
		`# The terminal groups that this `: `= `,
	} {
		require.Contains(t, good, old)
		_, err := parseConfig("/x", []byte(strings.Replace(good, old, bad, 1)))
		require.Error(t, err, bad)
	}
}

func TestServeRefusals(t *testing.T) {
	code, _, errs := command(t, "serve", "--state", stateDirFor(t))
	require.Equal(t, daemon.ExitConfig, code)
	require.Contains(t, errs, "ownerd init")

	dir, id := made(t)
	p := serveIn(t, dir, "")
	code, _, errs = command(t, "serve", "--state", dir)
	require.Equal(t, daemon.ExitHeld, code, errs)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait())
	_, err := os.Lstat(id.Socket)
	require.ErrorIs(t, err, os.ErrNotExist)

	file := filepath.Join(dir, "owner.db")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data[:len(data)/2], 0o600))
	code, _, errs = command(t, "serve", "--state", dir)
	require.Equal(t, daemon.ExitCorrupt, code)
	require.Contains(t, errs, "owner.db is damaged")
	require.NoError(t, os.Remove(file))
	code, _, errs = command(t, "serve", "--state", dir)
	require.Equal(t, daemon.ExitCorrupt, code, errs)
	require.NoFileExists(t, file, "no empty one in its place")
	require.NoError(t, os.WriteFile(file, data, 0o644))
	require.NoError(t, os.Chmod(file, 0o644))
	code, _, errs = command(t, "serve", "--state", dir)
	require.Equal(t, daemon.ExitConfig, code, errs)
}

// TestC16_StopEndsProcessesAndRecordsIt: SIGTERM to the owner ends what runs, even what ignores
// SIGTERM, and the next start tells how.
func TestC16_StopEndsProcessesAndRecordsIt(t *testing.T) {
	dir, id := made(t)
	starts := filepath.Join(t.TempDir(), "starts")
	p := serveIn(t, dir, "")
	c := dial(t, id, 1, nil)
	a := c.spawn(stubborn(starts))
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	require.Eventually(t, func() bool { return len(pids(t, starts)) == 1 }, waitFor, 1e6)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.err.String())
	require.True(t, gone(pids(t, starts)[0]))

	serveIn(t, dir, "")
	c = dial(t, id, 2, nil)
	require.Equal(t, []frames.BindingID{binding(a)}, c.list)
	c.open(a)
	c.eventually("FACTS_END", func() bool { return c.ends[binding(a)] != 0 })
	last := c.facts[len(c.facts)-1]
	require.Equal(t, frames.FactClosed, last.Kind)
	v, err := last.DecodePayload()
	require.NoError(t, err)
	require.Equal(t, &frames.Closed{Known: true, Status: -int32(syscall.SIGKILL)}, v)
}

// TestC16_KilledOwnerLeavesNothingRunning: what ran under it is ended by the next start, found
// by group and start time; its facts are served, and nothing runs twice.
func TestC16_KilledOwnerLeavesNothingRunning(t *testing.T) {
	dir, id := made(t)
	starts := filepath.Join(t.TempDir(), "starts")
	p := serveIn(t, dir, "")
	c := dial(t, id, 1, nil)
	a := c.spawn(stubborn(starts))
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	c.open(a)
	c.eventually("output", func() bool { return len(c.facts) >= 2 })
	p.kill()
	pid := pids(t, starts)[0]
	require.False(t, gone(pid), "it ignores the hangup")

	code, out, errs := command(t, "status", "--state", dir, "-o", "json")
	require.Equal(t, 0, code, errs)
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(out), &st))
	require.False(t, st.Running)
	require.Len(t, st.Bindings, 1)
	require.Equal(t, "waiting", st.Bindings[0].State)

	serveIn(t, dir, "")
	require.True(t, gone(pid), "ended before the owner was ready")
	c = dial(t, id, 2, nil)
	require.Equal(t, frames.EffectSucceeded, c.lookUp(a).State)
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	c.open(a)
	c.eventually("FACTS_END", func() bool { return c.ends[binding(a)] != 0 })
	for _, f := range c.facts {
		require.NotEqual(t, frames.FactClosed, f.Kind, "nobody knows how it ended")
	}
	require.EqualValues(t, len(c.facts), c.ends[binding(a)])
	require.Equal(t, "ready\r\n", c.read(a))
	require.Len(t, pids(t, starts), 1)
	code, out, errs = command(t, "status", "--state", dir)
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, "1 succeeded")
}

func TestRevokedKeyIsCutOff(t *testing.T) {
	dir, id := made(t)
	serveIn(t, dir, "")
	c := dial(t, id, 1, nil)
	code, _, errs := command(t, "keys", "--state", dir, "revoke", "link")
	require.Equal(t, 0, code, errs)
	<-c.Done()
	var refused *owner.RefusedError
	require.ErrorAs(t, c.Err(), &refused)
	require.Equal(t, frames.CodeAuthenticationFailed, refused.Code)
	code, out, _ := command(t, "keys", "--state", dir, "list")
	require.Equal(t, 0, code)
	require.Contains(t, out, "revoked")
	require.Contains(t, out, "effects,facts,output")
}

// The same over QUIC.
func TestRunOverQUIC(t *testing.T) {
	dir, id := made(t)
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.LocalAddr().String()
	require.NoError(t, free.Close())
	path := filepath.Join(dir, configFile)
	conf, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(conf), `# quic = "0.0.0.0:7742"`, `quic = "`+addr+`"`, 1)), 0o600))
	p := serveIn(t, dir, "")
	pin, err := handshake.ParseFingerprint(id.Authority)
	require.NoError(t, err)
	c := dial(t, id, 1, func(o *owner.ClientOptions) {
		o.Socket, o.Dial = "", owner.QUICDialer(addr, pin, clock.System())
	})
	a := c.spawn(&owner.Document{Argv: []string{"/bin/sh", "-c", "stty -onlcr; seq 1 200000; exit 7"}})
	require.Equal(t, frames.EffectSucceeded, c.dispatch(a).State)
	c.open(a)
	c.eventually("CLOSED", func() bool { return len(c.facts) > 0 && c.facts[len(c.facts)-1].Kind == frames.FactClosed })
	require.Len(t, c.read(a), 1288895)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 0, p.wait(), p.err.String())
	<-c.Done()
}
