package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	require.NoError(t, MkdirPrivate(dir))
	return dir
}

func TestReadPrivateRefusesUnsafeFiles(t *testing.T) {
	for _, tt := range []struct {
		name    string
		damage  func(t *testing.T, path string)
		problem string // of the *UnsafeFileError; "" means another error
	}{
		{"readable by others", func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0o644)) }, "has mode 0644"},
		{"no access at all", func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0)) }, "has mode 0000"},
		{"executable", func(t *testing.T, p string) { require.NoError(t, os.Chmod(p, 0o700)) }, "has mode 0700"},
		{"directory open to the group", func(t *testing.T, p string) { require.NoError(t, os.Chmod(filepath.Dir(p), 0o750)) }, "has mode 0750"},
		{"symbolic link", func(t *testing.T, p string) {
			require.NoError(t, os.Rename(p, p+".real"))
			require.NoError(t, os.Symlink(p+".real", p))
		}, "is a symbolic link"},
		{"directory", func(t *testing.T, p string) {
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Mkdir(p, 0o700))
		}, "is not a regular file"},
		{"fifo", func(t *testing.T, p string) {
			require.NoError(t, os.Remove(p))
			require.NoError(t, syscall.Mkfifo(p, 0o600))
		}, "is not a regular file"},
		{"too large", func(t *testing.T, p string) { require.NoError(t, os.WriteFile(p, make([]byte, 65), 0o600)) }, "holds 65 bytes, more than the 64 allowed"},
		{"another owner", func(t *testing.T, p string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root to give a file away")
			}
			require.NoError(t, os.Chown(p, 12345, -1))
		}, "belongs to uid 12345, not to uid 0"},
		{"missing", func(t *testing.T, p string) { require.NoError(t, os.Remove(p)) }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(privateDir(t), "secret")
			require.NoError(t, os.WriteFile(path, []byte("content"), 0o600))
			got, err := ReadPrivate(path, 64)
			require.NoError(t, err)
			require.Equal(t, "content", string(got))

			tt.damage(t, path)
			got, err = ReadPrivate(path, 64)
			require.Nil(t, got)
			var unsafe *UnsafeFileError
			if tt.problem == "" {
				require.ErrorIs(t, err, fs.ErrNotExist)
				return
			}
			require.ErrorAs(t, err, &unsafe)
			require.Equal(t, tt.problem, unsafe.Problem)
			require.NotEmpty(t, unsafe.Mend)
			require.NotContains(t, err.Error(), "content")
		})
	}
}

// TestRootIsNotToldToTakeADaemonsFiles: whoever administers a machine runs a command as root
// first, and does what it says.
func TestRootIsNotToldToTakeADaemonsFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give a directory away")
	}
	dir := privateDir(t)
	file := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for uid, says := range map[int]string{1: "run this as that user: runuser -u daemon -- …", 12345: "run this as that user, or "} {
		require.NoError(t, os.Chown(file, uid, -1))
		_, err := ReadPrivate(file, 16)
		require.ErrorContains(t, err, says)
		require.NoError(t, os.Chown(dir, uid, -1))
		require.ErrorContains(t, CheckPrivateDir(dir), says)
		require.NoError(t, os.Chown(dir, 0, -1))
	}
}

func TestMkdirPrivate(t *testing.T) {
	base := t.TempDir()
	deep := filepath.Join(base, "a", "b", "c")
	require.NoError(t, MkdirPrivate(deep))
	require.NoError(t, MkdirPrivate(deep), "an existing private directory is fine")
	st, err := os.Stat(deep)
	require.NoError(t, err)
	require.Equal(t, PrivateDir, st.Mode().Perm())

	var unsafe *UnsafeFileError
	open := filepath.Join(base, "open")
	require.NoError(t, os.Mkdir(open, 0o755))
	require.ErrorAs(t, MkdirPrivate(open), &unsafe)
	require.Equal(t, "run: chmod 700 "+open, unsafe.Mend)
	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorAs(t, MkdirPrivate(file), &unsafe)
}

func TestReplaceLeavesOldOrNew(t *testing.T) {
	dir := privateDir(t)
	path := filepath.Join(dir, "f")
	require.NoError(t, Replace(path, []byte("one"), PrivateFile))
	require.NoError(t, Replace(path, []byte("two"), PrivateFile))
	got, err := ReadPrivate(path, 10)
	require.NoError(t, err)
	require.Equal(t, "two", string(got))

	// A directory in the way fails the rename; no temporary file stays behind.
	blocked := filepath.Join(dir, "blocked")
	require.NoError(t, os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
	require.Error(t, Replace(blocked, []byte("three"), PrivateFile))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2)
}

// TestContentIsFlushedBeforeItsNameAndTheNameAfterwards: a file has all its content on the disk
// before it is called what it will be called, and its directory is flushed once it is.
func TestContentIsFlushedBeforeItsNameAndTheNameAfterwards(t *testing.T) {
	made := func(old []byte) ([]byte, error) { return []byte("new"), nil }
	for name, write := range map[string]func(path string) error{
		"Replace":     func(path string) error { return Replace(path, []byte("new"), PrivateFile) },
		"Create":      func(path string) error { return Create(path, []byte("new"), PrivateFile) },
		"CreateOwned": func(path string) error { return CreateOwned(path, []byte("new")) },
		"Update":      func(path string) error { return Update(path, 10, made) },
		"UpdateOwned": func(path string) error { return UpdateOwned(path, 10, made) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := privateDir(t)
			path := filepath.Join(dir, "f")
			var flushed []string
			fsync = func(f *os.File) error {
				there, _ := os.ReadFile(path)
				what := "the directory"
				if f.Name() != dir {
					raw, err := os.ReadFile(f.Name())
					require.NoError(t, err)
					what = "a file with " + string(raw)
				}
				flushed = append(flushed, fmt.Sprintf("%s, while %q is there", what, there))
				return f.Sync()
			}
			defer func() { fsync = (*os.File).Sync }()
			require.NoError(t, write(path))
			require.Equal(t, []string{`a file with new, while "" is there`, `the directory, while "new" is there`}, flushed)
		})
	}
}

// TestANewDirectoryIsInAFlushedOne: so is each that was missing above it.
func TestANewDirectoryIsInAFlushedOne(t *testing.T) {
	dir := privateDir(t)
	var flushed []string
	fsync = func(f *os.File) error { flushed = append(flushed, f.Name()); return f.Sync() }
	defer func() { fsync = (*os.File).Sync }()
	require.NoError(t, MkdirPrivate(filepath.Join(dir, "a", "b")))
	require.Equal(t, []string{dir, filepath.Join(dir, "a")}, flushed)
}

func TestCreateNeverReplaces(t *testing.T) {
	dir := privateDir(t)
	path := filepath.Join(dir, "key")
	require.NoError(t, Create(path, []byte("first"), PrivateFile))
	require.ErrorIs(t, Create(path, []byte("second"), PrivateFile), fs.ErrExist)
	got, err := ReadPrivate(path, 10)
	require.NoError(t, err)
	require.Equal(t, "first", string(got))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1)
}

func TestUpdateLosesNoChange(t *testing.T) {
	path := filepath.Join(privateDir(t), "count")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			err := Update(path, 1024, func(old []byte) ([]byte, error) {
				return append(bytes.Clone(old), byte('a'+i)), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := ReadPrivate(path, 1024)
	require.NoError(t, err)
	require.Len(t, got, 16)

	sentinel := errors.New("no")
	require.ErrorIs(t, Update(path, 1024, func([]byte) ([]byte, error) { return nil, sentinel }), sentinel)
	require.Error(t, Update(path, 20, func([]byte) ([]byte, error) { return make([]byte, 21), nil }))
	again, err := ReadPrivate(path, 1024)
	require.NoError(t, err)
	require.Equal(t, got, again)
}

func TestLockExcludesAndNamesTheHolder(t *testing.T) {
	path := filepath.Join(privateDir(t), "store.lock")
	l, err := Acquire(path)
	require.NoError(t, err)
	require.NoError(t, l.Check())

	_, err = Acquire(path)
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, os.Getpid(), held.PID)
	require.Contains(t, err.Error(), strconv.Itoa(os.Getpid()))

	require.NoError(t, l.Release())
	again, err := Acquire(path)
	require.NoError(t, err)
	require.NoError(t, again.Release())
}

func TestLockNoticesThatItsFileIsGone(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed":  os.Remove,
		"renamed":  func(p string) error { return os.Rename(p, p+".old") },
		"replaced": func(p string) error { return Replace(p, nil, PrivateFile) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(privateDir(t), "store.lock")
			l, err := Acquire(path)
			require.NoError(t, err)
			require.NoError(t, lose(path))
			require.ErrorIs(t, l.Check(), ErrLockLost)
			require.NoError(t, l.Release())
		})
	}
}

func TestLockDiesWithItsProcess(t *testing.T) {
	path := os.Getenv("DURABLE_TEST_LOCK")
	if path != "" { // the child
		if _, err := Acquire(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		select {}
	}
	path = filepath.Join(privateDir(t), "store.lock")
	child := exec.Command(os.Args[0], "-test.run=^TestLockDiesWithItsProcess$")
	child.Env = append(os.Environ(), "DURABLE_TEST_LOCK="+path)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	buf := make([]byte, 4)
	_, err = out.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "held", string(buf))

	_, err = Acquire(path)
	var held *HeldError
	require.ErrorAs(t, err, &held)
	require.Equal(t, child.Process.Pid, held.PID)

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	l, err := Acquire(path)
	require.NoError(t, err)
	require.NoError(t, l.Release())
}

func TestLockRefusesLinks(t *testing.T) {
	dir := privateDir(t)
	require.NoError(t, os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "store.lock")))
	_, err := Acquire(filepath.Join(dir, "store.lock"))
	var unsafe *UnsafeFileError
	require.ErrorAs(t, err, &unsafe)
}

func TestFreeBytesOfNoDirectoryIsPlenty(t *testing.T) {
	require.Equal(t, uint64(math.MaxUint64), FreeBytes(filepath.Join(t.TempDir(), "none")))
	free := FreeBytes(t.TempDir())
	require.Positive(t, free)
	require.Less(t, free, uint64(math.MaxUint64))
}
