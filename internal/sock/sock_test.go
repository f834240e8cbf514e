package sock

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"coordinator/internal/durable"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// shortDir returns a private directory whose path leaves room for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sk")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o700))
	return dir
}

func TestListenDialAndCredentials(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	l, err := Listen(path)
	require.NoError(t, err)
	st, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, durable.PrivateFile, st.Mode().Perm())

	c, err := Dial(context.Background(), path)
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	cred, err := SameUser(s)
	require.NoError(t, err)
	require.Equal(t, SelfCred(), cred)
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	require.NoError(t, l.Close())
	_, err = os.Lstat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = PeerCred(s)
	require.Error(t, err, "a closed connection has no peer")
}

func TestListenPathLength(t *testing.T) {
	dir := shortDir(t)
	name := func(n int) string { return dir + "/" + strings.Repeat("x", n-len(dir)-1) }
	l, err := Listen(name(MaxPath))
	require.NoError(t, err)
	require.NoError(t, l.Close())

	var long *PathTooLongError
	_, err = Listen(name(MaxPath + 2))
	require.ErrorAs(t, err, &long)
	require.Equal(t, PathTooLongError{Path: name(109), Len: 109, Max: 107}, *long)
	for _, want := range []string{name(109), "109", "107"} {
		require.Contains(t, err.Error(), want)
	}
	_, err = Dial(context.Background(), name(MaxPath+1))
	require.ErrorAs(t, err, &long)
	for _, bad := range []string{"", "@abstract", "a\x00b"} {
		_, err = Listen(bad)
		require.Error(t, err)
	}
}

func TestListenRefusesWhatIsInTheWay(t *testing.T) {
	for _, tt := range []struct {
		name string
		put  func(t *testing.T, path string)
	}{
		{"file", func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, []byte("x"), 0o600)) }},
		{"directory", func(t *testing.T, p string) { require.NoError(t, os.Mkdir(p, 0o700)) }},
		{"dangling symlink", func(t *testing.T, p string) { require.NoError(t, os.Symlink(p+".x", p)) }},
		{"symlink to a stale socket", func(t *testing.T, p string) {
			leaveStale(t, p+".x")
			require.NoError(t, os.Symlink(p+".x", p))
		}},
		{"live socket", func(t *testing.T, p string) {
			l, err := net.Listen("unix", p)
			require.NoError(t, err)
			t.Cleanup(func() { l.Close() })
		}},
		{"server that does not accept, backlog full", func(t *testing.T, p string) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: p}))
			require.NoError(t, unix.Listen(fd, 0))
			t.Cleanup(func() { unix.Close(fd) })
			for { // fill what the kernel grants
				c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				require.NoError(t, err)
				t.Cleanup(func() { unix.Close(c) })
				if err := unix.Connect(c, &unix.SockaddrUnix{Name: p}); errors.Is(err, unix.EAGAIN) {
					return
				}
			}
		}},
		{"datagram socket", func(t *testing.T, p string) {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p, Net: "unixgram"})
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "s")
			tt.put(t, path)
			before, err := os.Lstat(path)
			require.NoError(t, err)
			_, err = Listen(path)
			var occupied *OccupiedError
			require.ErrorAs(t, err, &occupied)
			after, err := os.Lstat(path)
			require.NoError(t, err)
			require.True(t, os.SameFile(before, after), "what was in the way was touched")
		})
	}
}

func leaveStale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
}

func TestListenRemovesAStaleSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	leaveStale(t, path)
	l, err := Listen(path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestListenRefusesAnOpenDirectory(t *testing.T) {
	dir := shortDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	_, err := Listen(filepath.Join(dir, "s"))
	var unsafe *durable.UnsafeFileError
	require.ErrorAs(t, err, &unsafe)
}

func TestCloseSparesASuccessor(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	first, err := Listen(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	second, err := Listen(path)
	require.NoError(t, err)
	require.NoError(t, first.Close())
	c, err := Dial(context.Background(), path)
	require.NoError(t, err, "the successor's socket must still be there")
	require.NoError(t, c.Close())
	require.NoError(t, second.Close())
}

// A hundred starts at once over one stale socket: one gets it, the others are
// refused, and the winner's socket survives them.
func TestDoubleStarts(t *testing.T) {
	dir := shortDir(t)
	path, lock := filepath.Join(dir, "s"), filepath.Join(dir, "lock")
	leaveStale(t, path)
	var won atomic.Pointer[Listener]
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			k, err := durable.Acquire(lock)
			if err != nil {
				var held *durable.HeldError
				if !errors.As(err, &held) {
					t.Error(err)
				}
				return
			}
			l, err := Listen(path)
			if err != nil { // the lock came free again: the winner is at work
				var occupied *OccupiedError
				if !errors.As(err, &occupied) || !occupied.Live {
					t.Error(err)
				}
			} else if !won.CompareAndSwap(nil, l) {
				t.Error("two listeners on one path")
			}
			if err := k.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NotNil(t, won.Load())
	c, err := Dial(context.Background(), path)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, won.Load().Close())
}
