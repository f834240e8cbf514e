//go:build linux

package netlab

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// waitFor bounds what will come.
const waitFor = 20 * time.Second

// listens, when it is set, makes this program wait so long for one datagram.
const listens = "NETLAB_LISTENS"

func TestMain(m *testing.M) {
	if wait, err := time.ParseDuration(os.Getenv(listens)); err == nil {
		os.Exit(listen(wait))
	}
	goleak.VerifyTestMain(m)
}

func listen(wait time.Duration) int {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 7000})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("up")
	c.SetReadDeadline(time.Now().Add(wait)) //nolint:errcheck // of a socket that is open
	if _, _, err := c.ReadFrom(make([]byte, 16)); err != nil {
		fmt.Println("none")
		return 0
	}
	fmt.Println("got")
	return 0
}

// reaches sends one datagram from a host, and says whether it came to another in that time.
func reaches(t *testing.T, from, to *Host, wait time.Duration) bool {
	t.Helper()
	c := to.Command(os.Args[0])
	c.Env = append(os.Environ(), listens+"="+wait.String())
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "up", lines.Text())
	require.NoError(t, from.Command("bash", "-c", "echo hello >/dev/udp/"+to.Addr.String()+"/7000").Run())
	require.True(t, lines.Scan())
	got := lines.Text()
	require.NoError(t, c.Wait())
	return got == "got"
}

// TestTheWire: what one host sends, the other receives, unless that way is cut or loses all;
// nothing else of the machine is reached; and names are the host's own.
func TestTheWire(t *testing.T) {
	l := New(t, Options{MTU: 1280})
	a, b, c := l.Host("a"), l.Host("b"), l.Host("c")
	require.True(t, reaches(t, a, b, waitFor))
	l.Cut(a, b)
	require.False(t, reaches(t, a, b, 300*time.Millisecond))
	require.True(t, reaches(t, a, c, waitFor))
	l.Heal(a, b)
	l.CutOneWay(b, a)
	require.True(t, reaches(t, a, b, waitFor))
	l.Fault(Faults{Loss: 1})
	require.False(t, reaches(t, a, b, 300*time.Millisecond))
	require.Positive(t, l.Lost())
	l.Fault(Faults{Delay: 300 * time.Millisecond, Jitter: 10 * time.Millisecond})
	began := time.Now()
	require.True(t, reaches(t, a, b, waitFor))
	require.Greater(t, time.Since(began), 300*time.Millisecond)

	a.Names(map[string]netip.Addr{"other.example": b.Addr})
	out, err := a.Command("getent", "hosts", "other.example").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), b.Addr.String())
	a.Names(map[string]netip.Addr{"other.example": c.Addr})
	out, err = a.Command("getent", "hosts", "other.example").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), c.Addr.String())
}
