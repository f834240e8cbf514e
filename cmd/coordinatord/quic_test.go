package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
)

// freePort is a UDP port of this machine that nobody uses now.
func freePort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().String()
}

// edit replaces the one line that matches in a configuration.
func edit(t *testing.T, file, line, by string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	re := regexp.MustCompile(`(?m)^` + line + `$`)
	require.Len(t, re.FindAll(text, -1), 1, "%s", text)
	require.NoError(t, os.WriteFile(file, re.ReplaceAll(text, []byte(by)), 0o600))
}

// TestEverythingOverQUIC runs a coordinator whose witness and whose client are reached by
// UDP alone, and kills it: the lease is waited for and the client hears of it at once.
func TestEverythingOverQUIC(t *testing.T) {
	r := newRig(t)
	r.witness.signal(syscall.SIGTERM)
	<-r.witness.exited
	witnessAddr, addr := freePort(t), freePort(t)
	edit(t, filepath.Join(r.root, "w", "witness.toml"), `# quic = .*`, `quic = "`+witnessAddr+`"`)
	edit(t, filepath.Join(r.dir, configFile), `# quic = .*`, `quic = "`+addr+`"`)
	edit(t, filepath.Join(r.dir, configFile), `socket     = .*`, `quic = "`+witnessAddr+`"`)
	r.witness = launch(t, nil, witnessd, "serve", "--state", filepath.Join(r.root, "w"))
	r.witness.ready()
	require.NoError(t, os.Remove(filepath.Join(r.root, "w", "witness.sock"))) // nobody can come that way

	first := r.serve()
	epoch, activation := first.authority()
	require.Contains(t, first.output(), " quic "+addr)
	r.ctx.Socket, r.ctx.QUIC = "", addr
	conn := r.connect()
	require.Equal(t, addr, conn.Info().QUIC)
	cmd, id := create(t)
	_, err := conn.Command(t.Context(), cmd)
	require.NoError(t, err)

	first.signal(syscall.SIGKILL)
	<-first.exited
	second := r.serve()
	nextEpoch, nextActivation := second.authority()
	require.Greater(t, nextEpoch, epoch)
	require.Greater(t, nextActivation, activation)
	// The connection of the killed process is answered by its successor, and ended.
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	defer cancel()
	_, err = conn.Command(ctx, cmd)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "nobody told the client")

	conn = r.connect()
	_, err = conn.Command(t.Context(), cmd) // the same operation: it does not run again
	require.NoError(t, err)
	require.NotZero(t, id)
	second.signal(syscall.SIGTERM)
	<-second.exited
	require.Zero(t, second.cmd.ProcessState.ExitCode(), second.output())
	require.NoError(t, conn.Close())
	_, err = client.Dial(t.Context(), r.ctx, client.Options{})
	require.ErrorContains(t, err, "nothing listens there")
}

func TestQUICConfiguration(t *testing.T) {
	full := []byte(goodConfig(t))
	for _, tt := range []struct{ name, old, new, want string }{
		{"no port", `# quic = "0.0.0.0:7740"`, `quic = "0.0.0.0"`, "quic must be"},
		{"port zero", `# quic = "0.0.0.0:7740"`, `quic = ":0"`, "quic must be"},
		{"witness on both", `[witness]`, "[witness]\nquic = \"w.example:1\"", "witness.quic"},
		{"witness without a port", `socket     = "/run/w/witness.sock"`, `quic = "w.example"`, "witness.quic"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Contains(t, string(full), tt.old)
			_, err := parseConfig("/d", "f", bytes.Replace(full, []byte(tt.old), []byte(tt.new), 1))
			require.ErrorContains(t, err, tt.want)
		})
	}
	c, err := parseConfig("/d", "f", bytes.Replace(full, []byte(`socket     = "/run/w/witness.sock"`), []byte(`quic = "w.example:1"`), 1))
	require.NoError(t, err)
	require.Equal(t, "w.example:1", c.WitnessQUIC)
	c.QUIC = "[::]:7740"
	again, err := parseConfig("/d", "f", configText(c))
	require.NoError(t, err)
	require.Equal(t, c, again)

	code, _, errs := run(t, coordinatord, "init", "--state", t.TempDir()+"/c", "--witness-socket", "/w", "--witness-quic", "h:1",
		"--witness-authority", "sha256:00", "--witness-id", "00")
	require.Equal(t, daemon.ExitUsage, code, errs)
}

// TestAnAddressThatIsNotThereTakesNoLease: neither one that the machine does not have nor one
// that another process has costs an activation, and both are said in words.
func TestAnAddressThatIsNotThereTakesNoLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	edit(t, filepath.Join(r.dir, configFile), `# quic = .*`, `quic = "192.0.2.1:7740"`)
	p := r.serve()
	require.Equal(t, daemon.ExitFailure, p.ends(), "it may be there at the next start")
	require.Contains(t, p.output(), "this machine has no address 192.0.2.1")

	taken, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	edit(t, filepath.Join(r.dir, configFile), `quic = .*`, `quic = "`+taken.LocalAddr().String()+`"`)
	p = r.serve()
	require.Equal(t, daemon.ExitHeld, p.ends())
	require.Contains(t, p.output(), "another process listens there")

	require.NoError(t, taken.Close())
	p = r.serve()
	p.ready()
	epoch, activation := p.authority()
	require.EqualValues(t, 1, epoch)
	require.EqualValues(t, 1, activation)
}
