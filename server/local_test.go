package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"coordinator/server/quota"
)

// TestLimitsOfOpenFiles: what the limit leaves for clients, and when it leaves too little.
func TestLimitsOfOpenFiles(t *testing.T) {
	var have unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &have))
	set := func(n uint64) {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: have.Max}))
	}
	defer set(have.Cur)
	var out bytes.Buffer
	o := Options{Quotas: quota.Defaults(), Logger: slog.New(slog.NewTextHandler(&out, nil))}
	wanted := int(o.Quotas[quota.OfServer][quota.Connections]) + maxUnauthenticated + 1

	set(uint64(wanted) + reservedDescriptors)
	room, err := localRoom(o)
	require.NoError(t, err)
	require.Equal(t, wanted, room)
	require.Empty(t, out.String())

	set(uint64(wanted) + reservedDescriptors - 1)
	room, err = localRoom(o)
	require.NoError(t, err)
	require.Equal(t, wanted-1, room)
	require.Contains(t, out.String(), fmt.Sprintf("needed=%d", wanted+reservedDescriptors))

	o.Descriptors = 1
	set(reservedDescriptors + minLocal)
	_, err = localRoom(o)
	require.Equal(t, &DescriptorError{Have: reservedDescriptors + minLocal, Need: reservedDescriptors + minLocal + 1}, err)
	o.Descriptors = 0
	set(reservedDescriptors + minLocal - 1)
	_, err = localRoom(o)
	require.Equal(t, &DescriptorError{Have: reservedDescriptors + minLocal - 1, Need: reservedDescriptors + minLocal}, err)
}

// TestSparesAreThereWhenNothingElseIs fills this process's descriptors up.
func TestSparesAreThereWhenNothingElseIs(t *testing.T) {
	var have unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &have))
	kept := new(spares)
	require.NoError(t, kept.fill())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(openFiles(t)) + 3, Max: have.Max}))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &have) //nolint:errcheck // it was so before
	var all []*os.File
	defer func() {
		for _, f := range all {
			f.Close()
		}
	}()
	fill := func() (n int) {
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				require.True(t, passing(err), "%v", err)
				return n
			}
			all = append(all, f)
			n++
		}
	}
	fill()
	kept.release()
	require.Error(t, func() error { fill(); return kept.fill() }(), "others have them now")
	require.GreaterOrEqual(t, len(all), spareDescriptors)
	kept.release()
}

// openFiles counts this process's descriptors, or gives the highest of them if that is more.
func openFiles(t *testing.T) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, name := range names {
		var fd int
		_, err := fmt.Sscan(filepath.Base(name), &fd)
		require.NoError(t, err)
		n = max(n, fd+1)
	}
	return n
}

// noFiles is a listener that has no descriptor for any connection.
type noFiles struct{}

func (noFiles) Accept() (*net.UnixConn, error) { return nil, unix.EMFILE }

// TestAFailedAcceptTakesNoRoom fails more often than there is room.
func TestAFailedAcceptTakesNoRoom(t *testing.T) {
	stop := make(chan struct{})
	l := roomy{noFiles{}, make(chan struct{}, 2), stop}
	for range 5 {
		_, err := l.Accept()
		require.ErrorIs(t, err, unix.EMFILE)
	}
	require.Empty(t, l.room)
	l.room <- struct{}{}
	l.room <- struct{}{}
	close(stop)
	_, err := l.Accept()
	require.ErrorIs(t, err, net.ErrClosed, "a full one waits, and ends with the server")
}
