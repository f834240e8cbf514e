package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/client"
)

func TestSetQUIC(t *testing.T) {
	const want = `quic = "h:1"`
	for _, tt := range []struct{ name, text, want string }{
		{"the example's place", "a = 1\n# quic = \"x:2\"\n\n[t]\nquic = \"w:3\"\n", "a = 1\n" + want + "\n\n[t]\nquic = \"w:3\"\n"},
		{"the old line's place", "# quic = \"x:2\"\n  quic=\"o:9\" # old\n[t]\n", "# quic = \"x:2\"\n" + want + "\n[t]\n"},
		{"no line yet", "a = 1\n[t]\nb = 2\n", "a = 1\n" + want + "\n[t]\nb = 2\n"},
		{"no table", "a = 1", "a = 1\n" + want + "\n"},
		{"as it is", want + "\n", want + "\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := setQUIC(tt.text, "h:1")
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	_, err := setQUIC("a = \"\"\"\n[t]\n\"\"\"\nquic = \"x:1\"\n", "h:1") // a string that looks like a table
	require.ErrorContains(t, err, "by hand")
}

func TestReachable(t *testing.T) {
	for in, want := range map[string]string{
		"0.0.0.0:1": "127.0.0.1:1", ":1": "127.0.0.1:1", "[::]:1": "[::1]:1", "10.1.2.3:1": "10.1.2.3:1", "host.example:1": "host.example:1",
	} {
		require.Equal(t, want, reachable(in), in)
	}
}

// freePort is a UDP port of this machine that nobody uses now.
func freePort(t *testing.T) string {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().String()
}

// interrupt ends an `up` in order.
func interrupt(t *testing.T, u *upped) {
	t.Helper()
	require.NoError(t, u.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, u.wait())
}

// TestUpQUIC goes from nothing to work over QUIC, adds QUIC to a state that had none, and
// is told what is wrong when nobody or somebody else is there.
func TestUpQUIC(t *testing.T) {
	t.Parallel()
	state := filepath.Join(t.TempDir(), "s")
	u := startUp(t, state).ready()
	require.NotContains(t, u.out.String(), "context-quic")
	interrupt(t, u)

	addr := freePort(t)
	u = startUp(t, state, "--quic", addr).ready()
	require.Contains(t, u.out.String(), "context-quic.toml")
	path := filepath.Join(state, "client", "context-quic.toml")
	c, err := client.LoadContext(path)
	require.NoError(t, err)
	require.Equal(t, addr, c.QUIC)

	remote := func(args ...string) ran { return u.ctl(append([]string{"--context", path}, args...)...) }
	got := remote("create", "objective", "--title", "From afar", "-o", "json")
	require.Zero(t, got.code, got.errout)
	got = remote("get", "objective")
	require.Zero(t, got.code, got.errout)
	require.Contains(t, got.out, "From afar")
	got = u.ctl("get", "objective")
	require.Zero(t, got.code, got.errout)
	require.Contains(t, got.out, "From afar")
	got = remote("status")
	require.Zero(t, got.code, got.errout)
	require.Contains(t, got.out, addr)
	require.NotContains(t, got.out, "socket")

	// Another authority than the pinned one.
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	i := strings.Index(string(text), "sha256:") + len("sha256:")
	if text[i] == '0' { // another hex digit
		text[i] = '1'
	} else {
		text[i] = '0'
	}
	wrong := filepath.Join(state, "client", "wrong.toml")
	require.NoError(t, os.WriteFile(wrong, text, 0o600))
	got = u.ctl("--context", wrong, "status")
	require.Equal(t, exitAuthentication, got.code)
	require.Contains(t, got.errout, "the context pins")

	interrupt(t, u)
	got = remote("create", "objective", "--title", "Nobody there")
	require.Equal(t, exitUnavailable, got.code)
	require.Contains(t, got.errout, "nothing listens at "+addr)
	require.Contains(t, got.errout, "nothing was sent")

	// The line in the file counts from now on.
	u = startUp(t, state).ready()
	require.Zero(t, remote("get", "objective").code)
	interrupt(t, u)
}

func TestUpRefusesABadQUICAddress(t *testing.T) {
	u := startUp(t, filepath.Join(t.TempDir(), "s"), "--quic", "nowhere")
	require.Error(t, u.wait())
	require.Contains(t, u.errout.String(), "host:port")
}
