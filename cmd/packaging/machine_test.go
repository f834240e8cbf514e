package packaging

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// boot makes a machine of its own out of this one: namespaces, this machine's files under an
// overlay that takes every change, and systemd as PID 1 with nothing but what is asked of it.
const boot = `
set -e
root=$1 group=$2 shared=$3
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$root"
mkdir "$root/upper" "$root/work" "$root/groups" "$root/m"
mount -t cgroup2 none "$root/groups"
mkdir "$root/groups/$group"
echo 0 >"$root/groups/$group/cgroup.procs"
ip link set lo up
exec unshare --cgroup sh -ec '
	root=$1 shared=$2
	m=$root/m
	mount -t overlay none -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$m"
	mount -t proc none "$m/proc"
	mount -t tmpfs -o mode=755 none "$m/run"
	mount --rbind /dev "$m/dev"
	mount -t tmpfs none "$m/sys"
	mkdir -p "$m/sys/fs/cgroup" "$m/run/systemd/system"
	mount -t cgroup2 none "$m/sys/fs/cgroup"
	mount --bind "$shared" "$m$shared"
	printf "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n" >"$m/run/systemd/system/bare.target"
	exec chroot "$m" env container=test /lib/systemd/systemd --system --unit=bare.target
' sh "$root" "$shared"
`

// sweep removes the control groups that a machine leaves behind.
const sweep = `
mount -t cgroup2 none "$1"
find "$1/$2" -depth -type d -exec rmdir {} \;
`

// bootTime is how long a systemd with nothing to start may take to say that it has.
const bootTime = 2 * time.Minute

// A machine runs systemd as its PID 1.
type machine struct {
	t      *testing.T
	shared string // a directory that it has in common with the test, at the same path
	pid    string // of its PID 1, as this machine sees it
}

// newMachine boots one. It skips the test where that is not possible.
func newMachine(t *testing.T) *machine {
	t.Helper()
	return newMachineWith(t, sharedDir(t))
}

// sharedDir makes a directory for machines to have in common with the test.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ms") // short, for socket paths
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// newMachineWith is newMachine with a directory that is there.
func newMachineWith(t *testing.T, shared string) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can boot a machine in namespaces")
	}
	for _, name := range []string{"unshare", "nsenter", "chroot", "ip", "dpkg"} {
		tool(t, name)
	}
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Skip("systemd is not installed")
	}
	dir, err := os.MkdirTemp("", "mc") // short, for socket paths
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	root, group := filepath.Join(dir, "r"), filepath.Base(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Mkdir(root, 0o700))
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	t.Cleanup(func() { log.Close() })
	c := exec.Command("unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "--kill-child", "sh", "-c", boot, "sh", root, group, shared)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no machine outlives the test
	begun, gone := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(gone)
		runtime.LockOSThread() // whose end is what Pdeathsig means
		err := c.Start()
		if begun <- err; err == nil {
			c.Wait() //nolint:errcheck // it is killed in the end
		}
	}()
	require.NoError(t, <-begun)
	m := &machine{t: t, shared: shared}
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(m.pid); err == nil {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // and all that it started with it
		}
		c.Process.Kill() //nolint:errcheck // it may have ended by itself
		<-gone
		require.Eventually(t, func() bool {
			return exec.Command("unshare", "--mount", "sh", "-c", sweep, "sh", root, group).Run() == nil
		}, time.Minute, 100*time.Millisecond, "the control groups of the machine stay behind")
	})
	children := fmt.Sprintf("/proc/%d/task/%d/children", c.Process.Pid, c.Process.Pid)
	up := false
	ask := func() bool {
		raw, err := os.ReadFile(children)
		if m.pid = strings.TrimSpace(string(raw)); err != nil || m.pid == "" {
			return false
		}
		out, _ := m.command(t.Context(), "systemctl", "is-system-running").Output()
		state := strings.TrimSpace(string(out))
		return state == "running" || state == "degraded"
	}
	slow, tick := time.After(bootTime), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting && !up; {
		select {
		case <-gone:
			waiting = false
		case <-slow:
			fmt.Fprintf(log, "systemd has not come up in %v\n", bootTime)
			waiting = false
		case <-tick.C:
			up = ask()
		}
	}
	if !up {
		m.pid = ""
		said, _ := os.ReadFile(log.Name())
		t.Skipf("no machine can be booted here: %s", said)
	}
	return m
}

// enter is the command line that leads into the machine.
func (m *machine) enter() []string {
	return []string{"nsenter", "--target", m.pid, "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wdns=" + m.shared}
}

func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append(m.enter(), args...)
	return exec.CommandContext(ctx, all[0], all[1:]...)
}

// tries runs a command as root.
func (m *machine) tries(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Minute)
	defer cancel()
	out, err := m.command(ctx, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run is tries of a command that succeeds.
func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.tries(args...)
	require.NoError(m.t, err, "%v: %s", args, out)
	return out
}

// property is what systemd says of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return m.run("systemctl", "show", "--property", name, "--value", unit)
}

// becomes waits until a property of a unit has that value.
func (m *machine) becomes(unit, name, value string) {
	m.t.Helper()
	last := ""
	defer func() {
		if m.t.Failed() {
			m.t.Logf("%s of %s is %q\n%s", name, unit, last, m.status(unit))
		}
	}()
	require.Eventually(m.t, func() bool {
		last = m.property(unit, name)
		return last == value
	}, 4*time.Minute, 200*time.Millisecond)
}

func (m *machine) status(unit string) string {
	out, _ := m.tries("systemctl", "status", "--no-pager", "--full", unit)
	return out
}

// dropIn adds to a unit.
func (m *machine) dropIn(unit, text string) {
	m.t.Helper()
	m.run("sh", "-c", `mkdir -p "/run/systemd/system/$1.service.d" && printf "%s\n" "$2" >"/run/systemd/system/$1.service.d/zz-test.conf" && systemctl daemon-reload`, "sh", unit, text)
}
