package packaging

import (
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
)

// debian is the package under test.
func debian(t *testing.T) string {
	t.Helper()
	path := os.Getenv("PACKAGE")
	if path == "" {
		t.Skip("no package was made; make check-packages makes one and sets PACKAGE")
	}
	return path
}

// TestWhatIsInThePackage unpacks it.
func TestWhatIsInThePackage(t *testing.T) {
	deb, root := debian(t), t.TempDir()
	out, err := exec.Command(tool(t, "dpkg-deb"), "--extract", deb, root).CombinedOutput()
	require.NoError(t, err, "%s", out)
	want := map[string]os.FileMode{
		"lib/sysusers.d/coordinator.conf": 0o644, "lib/tmpfiles.d/coordinator.conf": 0o644,
		"share/doc/coordinator/systemd.md": 0o644, "share/doc/coordinator/copyright": 0o644,
		"share/man/man1/coordctl.1.gz": 0o644, "share/man/man1/coordctl-run.1.gz": 0o644,
		"share/man/man8/coordinatord.8.gz": 0o644, "share/man/man8/witnessd-init.8.gz": 0o644,
		"share/man/man8/ownerd-keys-add.8.gz": 0o644,
	}
	for _, p := range []string{"coordctl", "coordinatord", "ownerd", "witnessd"} {
		want["bin/"+p] = 0o755
		want["share/bash-completion/completions/"+p] = 0o644
		want["share/zsh/vendor-completions/_"+p] = 0o644
		want["share/fish/vendor_completions.d/"+p+".fish"] = 0o644
	}
	for _, u := range units {
		want["lib/systemd/system/"+u+".service"] = 0o644
		installed, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system", u+".service"))
		require.NoError(t, err)
		source, err := os.ReadFile(filepath.Join("systemd", u+".service"))
		require.NoError(t, err)
		require.Equal(t, string(source), string(installed))
	}
	for _, name := range []string{"backup.md", "hosts.md", "logs.md", "metrics.md", "upgrades.md", "grafana-dashboard.json", "changelog.Debian.gz"} {
		want["share/doc/coordinator/"+name] = 0o644
	}
	for name, mode := range want {
		info, err := os.Lstat(filepath.Join(root, "usr", name))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), name)
		require.NotZero(t, info.Size(), name)
	}
	documents, err := filepath.Glob(filepath.Join(root, "usr/share/doc/coordinator/*.md"))
	require.NoError(t, err)
	for _, d := range documents {
		text, err := os.ReadFile(d)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([a-z-]+\.[a-z]+)\)`).FindAllSubmatch(text, -1) {
			require.FileExists(t, filepath.Join(filepath.Dir(d), string(link[1])), "%s leads nowhere", d)
		}
	}
	for _, p := range append([]string{"coordctl"}, units...) { // what a debugger needs is half of a program
		f, err := elf.Open(filepath.Join(root, "usr/bin", p))
		require.NoError(t, err)
		require.Nil(t, f.Section(".symtab"), p)
		require.Nil(t, f.Section(".debug_info"), p)
		require.NoError(t, f.Close())
	}
	// Nothing else is touched, and nothing is for its owner alone or for everybody.
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		require.True(t, rel == "usr" || strings.HasPrefix(rel, "usr/"), rel)
		info, err := d.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o022, rel)
		require.Zero(t, info.Mode()&(os.ModeSetuid|os.ModeSetgid), rel)
		return nil
	}))
	owners, err := exec.Command("dpkg-deb", "--contents", deb).Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(owners)) {
		require.Regexp(t, `^\S+ (root/root|0/0) `, line)
	}
	scripts := t.TempDir()
	out, err = exec.Command("dpkg-deb", "--control", deb, scripts).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		info, err := os.Stat(filepath.Join(scripts, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o755), info.Mode())
	}
	control, err := os.ReadFile(filepath.Join(scripts, "control"))
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^Version: (\S+)$`).FindSubmatch(control)
	require.Len(t, version, 2)
	changes, err := exec.Command("gzip", "-dc", filepath.Join(root, "usr/share/doc/coordinator/changelog.Debian.gz")).Output()
	require.NoError(t, err)
	require.Regexp(t, `^coordinator \(`+regexp.QuoteMeta(string(version[1]))+`\) unstable; urgency=medium\n\n  \* .+\n\n -- .+ <.+>  \w{3}, .+ [+-]\d{4}\n$`, string(changes))
	require.Contains(t, string(control), "Depends: systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles\n")
}

// TestInstallUnderAPrefix is `make install` on a system without dpkg: the units start what was
// installed beside them.
func TestInstallUnderAPrefix(t *testing.T) {
	debian(t) // with which everything was built
	root := t.TempDir()
	out, err := exec.Command("./install.sh", root, "/usr/local").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, u := range units {
		require.FileExists(t, filepath.Join(root, "usr/local/bin", u))
		installed, err := os.ReadFile(filepath.Join(root, "usr/local/lib/systemd/system", u+".service"))
		require.NoError(t, err)
		require.Contains(t, string(installed), "\nExecStart=/usr/local/bin/"+u+" serve ")
		require.NotContains(t, string(installed), "/usr/bin/")
		require.FileExists(t, filepath.Join(root, "usr/local/share/zsh/site-functions", "_"+u))
	}
	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestTheManualIsWhole has a page for every command that the programs name.
func TestTheManualIsWhole(t *testing.T) {
	deb, root := debian(t), t.TempDir()
	require.NoError(t, exec.Command(tool(t, "dpkg-deb"), "--extract", deb, root).Run())
	sub := regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +\S`)
	var walk func(program, section string, path ...string)
	walk = func(program, section string, path ...string) {
		page := strings.Join(append([]string{program}, path...), "-") + "." + section + ".gz"
		require.FileExists(t, filepath.Join(root, "usr/share/man/man"+section, page))
		help, err := exec.Command(filepath.Join(root, "usr/bin", program), append(path[:len(path):len(path)], "--help")...).Output()
		require.NoError(t, err)
		_, list, is := strings.Cut(string(help), "Available Commands:\n")
		if !is {
			return
		}
		list, _, _ = strings.Cut(list, "\n\n")
		for _, m := range sub.FindAllStringSubmatch(list, -1) {
			if m[1] != "help" && m[1] != "completion" {
				walk(program, section, append(path[:len(path):len(path)], m[1])...)
			}
		}
	}
	walk("coordctl", "1")
	for _, u := range units {
		walk(u, "8")
	}
}

// TestSystemdDocument runs docs/systemd.md on a machine, from the package to a system that
// works, and then does to that system what an operator's day does.
func TestSystemdDocument(t *testing.T) {
	deb := debian(t)
	m := newMachine(t)
	copyFile(t, deb, filepath.Join(m.shared, filepath.Base(deb)))
	t.Setenv("TMPDIR", m.shared)
	docsh.Run(t, "../../docs/systemd.md", docsh.Options{
		Bin: t.TempDir(), Timeout: 5 * time.Minute,
		Host: func(string) []string {
			return append(m.enter(), "env", "-u", "XDG_STATE_HOME", "-u", "XDG_CONFIG_HOME", "-u", "TMPDIR", "HOME=/root")
		},
	})

	require.Equal(t, "coordinator-owner", m.property("ownerd", "User"))
	for _, u := range units {
		require.Equal(t, "0", m.property(u, "NRestarts"), m.status(u))
		require.Equal(t, "active", m.property(u, "ActiveState"))
	}
	t.Run("the witness and the coordinator cannot read each other's state", func(t *testing.T) {
		for user, dir := range map[string]string{"coordinator": "/var/lib/coordinator-witness", "coordinator-witness": "/var/lib/coordinator", "coordinator-owner": "/var/lib/coordinator"} {
			out, err := m.tries("runuser", "-u", user, "--", "ls", dir)
			require.Error(t, err, out)
			require.Contains(t, out, "Permission denied")
		}
	})
	t.Run("processes outlive the coordinator and the witness", func(t *testing.T) {
		run := m.alice(`run --title long --cwd /var/lib/coordinator-jobs --detach -o json -- sh -c 'echo $$ >/var/lib/coordinator-jobs/pid; exec sleep 10000'`)
		require.Contains(t, run, "run_id")
		require.Eventually(t, func() bool { _, err := m.tries("test", "-s", "/var/lib/coordinator-jobs/pid"); return err == nil }, time.Minute, 100*time.Millisecond)
		pid := m.run("cat", "/var/lib/coordinator-jobs/pid")
		m.run("systemctl", "restart", "coordinatord", "witnessd")
		require.Contains(t, m.run("cat", "/proc/"+pid+"/cmdline"), "sleep")
		require.Contains(t, m.run("cat", "/proc/"+pid+"/cgroup"), "ownerd.service")
		require.Equal(t, "active", m.property("coordinatord", "ActiveState"), "restart waits for READY")
		m.alice("status")
		m.run("systemctl", "restart", "ownerd")
		_, err := m.tries("test", "-e", "/proc/"+pid)
		require.Error(t, err, "a stop of the owner ends its processes")
	})
	t.Run("a daemon that is killed comes back", func(t *testing.T) {
		for _, u := range units {
			m.run("systemctl", "kill", "--signal=KILL", "--kill-whom=main", u)
			m.becomes(u, "NRestarts", "1")
			m.becomes(u, "ActiveState", "active")
		}
		m.alice("status")
	})
	t.Run("without the witness there is no READY", func(t *testing.T) {
		m.run("systemctl", "stop", "witnessd")
		m.run("systemctl", "stop", "coordinatord")
		m.run("systemctl", "start", "--no-block", "coordinatord")
		m.becomes("coordinatord", "ActiveState", "activating")
		require.Eventually(t, func() bool {
			return strings.Contains(m.property("coordinatord", "StatusText"), "no answer from the witness")
		}, 2*time.Minute, 50*time.Millisecond)
		require.NotEqual(t, "active", m.property("coordinatord", "ActiveState"))
		m.run("systemctl", "start", "witnessd")
		m.becomes("coordinatord", "ActiveState", "active")
	})
	t.Run("a daemon that stands is ended by the watchdog", func(t *testing.T) {
		for _, u := range units {
			m.dropIn(u, "[Service]\nWatchdogSec=3\nTimeoutAbortSec=2")
			m.run("systemctl", "restart", u)
			before := m.property(u, "InvocationID")
			m.run("systemctl", "kill", "--signal=STOP", "--kill-whom=main", u)
			require.Eventually(t, func() bool {
				return m.property(u, "InvocationID") != before && m.property(u, "ActiveState") == "active"
			}, 4*time.Minute, 200*time.Millisecond, u)
			m.run("rm", "-r", "/run/systemd/system/"+u+".service.d")
			m.run("systemctl", "daemon-reload")
		}
		m.alice("status")
	})
	t.Run("what a restart cannot mend is not restarted", func(t *testing.T) {
		m.run("sh", "-c", "echo nonsense >>/var/lib/coordinator/coordinator.toml")
		_, err := m.tries("systemctl", "restart", "coordinatord")
		require.Error(t, err)
		require.Equal(t, "failed", m.property("coordinatord", "ActiveState"))
		require.Equal(t, "10", m.property("coordinatord", "ExecMainStatus"))
		m.run("sed", "-i", "$d", "/var/lib/coordinator/coordinator.toml")
		m.run("systemctl", "restart", "coordinatord")
	})
	t.Run("an upgrade leaves the owner alone", func(t *testing.T) {
		owner, coordinator := m.property("ownerd", "MainPID"), m.property("coordinatord", "MainPID")
		out := m.run("sh", "-c", "dpkg -i ./coordinator_*.deb")
		require.Contains(t, out, "ownerd still runs the former version")
		require.Equal(t, owner, m.property("ownerd", "MainPID"))
		require.NotEqual(t, coordinator, m.property("coordinatord", "MainPID"))
		m.alice("status")
	})
	t.Run("an upgrade of a daemon that does not come up is whole all the same", func(t *testing.T) {
		m.run("sh", "-c", "echo nonsense >>/var/lib/coordinator/coordinator.toml")
		out := m.run("sh", "-c", "dpkg -i ./coordinator_*.deb")
		require.Contains(t, out, "did not come up at once")
		require.Equal(t, "install ok installed", m.run("dpkg-query", "-W", "-f", "${Status}", "coordinator"))
		m.run("sed", "-i", "$d", "/var/lib/coordinator/coordinator.toml")
		m.run("systemctl", "restart", "coordinatord")
	})
	t.Run("state outlives the package", func(t *testing.T) {
		wants := "/etc/systemd/system/multi-user.target.wants/"
		m.run("test", "-L", wants+"coordinatord.service")
		m.run("systemctl", "mask", "ownerd") // which is no reason to keep the package
		m.run("dpkg", "--purge", "coordinator")
		m.run("sh", "-c", "! test -L "+wants+"coordinatord.service && ! test -L "+wants+"witnessd.service")
		for _, u := range units {
			_, err := m.tries("systemctl", "is-active", u)
			require.Error(t, err)
		}
		m.run("test", "-s", "/var/lib/coordinator/workload-authority.ed25519")
		m.run("test", "-s", "/var/lib/coordinator-witness/workload-authority.ed25519")
	})
}

// alice runs coordctl as the user whom the document made.
func (m *machine) alice(line string) string {
	m.t.Helper()
	return m.run("runuser", "-u", "alice", "--", "env", "HOME=/home/alice", "sh", "-c", "coordctl --context /home/alice/context.toml --wait 60s --timeout 120s "+line)
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()
	out, err := os.Create(to)
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}
