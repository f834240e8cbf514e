package packaging

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/daemon"
)

var units = []string{"coordinatord", "ownerd", "witnessd"}

// A unit is what a unit file assigns: section and key, then every value in order.
type unit map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	f, err := os.Open(filepath.Join("systemd", name+".service"))
	require.NoError(t, err)
	defer f.Close()
	u, section := unit{}, ""
	in := bufio.NewScanner(f)
	for in.Scan() {
		line := strings.TrimSpace(in.Text())
		switch key, value, is := strings.Cut(line, "="); {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		default:
			require.True(t, is, "%s: %s", name, line)
			u[section+"."+key] = append(u[section+"."+key], value)
		}
	}
	require.NoError(t, in.Err())
	return u
}

func (u unit) one(t *testing.T, key string) string {
	t.Helper()
	require.Len(t, u[key], 1, key)
	return u[key][0]
}

func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// TestUnitsAreWellFormed asks systemd itself, which is silent about a unit without faults.
func TestUnitsAreWellFormed(t *testing.T) {
	analyze := tool(t, "systemd-analyze")
	dir := t.TempDir()
	var paths []string
	for _, name := range units {
		raw, err := os.ReadFile(filepath.Join("systemd", name+".service"))
		require.NoError(t, err)
		// The programs are not installed where this runs.
		text := strings.Replace(string(raw), "ExecStart=/usr/bin/"+name, "ExecStart=/bin/sh", 1)
		require.NotEqual(t, string(raw), text)
		paths = append(paths, filepath.Join(dir, name+".service"))
		require.NoError(t, os.WriteFile(paths[len(paths)-1], []byte(text), 0o600))
	}
	out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, paths...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for line := range strings.Lines(string(out)) {
		require.NotContains(t, line, dir, "%s", out) // what it says of other units is not ours
	}
}

// TestTheScoresInTheDocument compares with what this machine's systemd says. Versions of it
// weigh a little differently.
func TestTheScoresInTheDocument(t *testing.T) {
	analyze := tool(t, "systemd-analyze")
	document, err := os.ReadFile("../../docs/systemd.md")
	require.NoError(t, err)
	overall := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	for _, name := range units {
		row := regexp.MustCompile("\\| `" + name + "\\.service` \\| ([0-9.]+) \\|").FindSubmatch(document)
		require.Len(t, row, 2, "docs/systemd.md has no score of %s", name)
		path, err := filepath.Abs(filepath.Join("systemd", name+".service"))
		require.NoError(t, err)
		out, err := exec.Command(analyze, "security", "--offline=true", "--no-pager", path).CombinedOutput()
		if err != nil && strings.Contains(string(out), "offline") {
			t.Skipf("this systemd-analyze judges no unit files: %s", out)
		}
		require.NoError(t, err, "%s", out)
		said := overall.FindSubmatch(out)
		require.Len(t, said, 2, "%s", out)
		have, err := strconv.ParseFloat(string(said[1]), 64)
		require.NoError(t, err)
		want, err := strconv.ParseFloat(string(row[1]), 64)
		require.NoError(t, err)
		t.Logf("%s: %v", name, have)
		require.LessOrEqual(t, math.Abs(have-want), 0.5, "%s: docs/systemd.md says %v, systemd-analyze %v", name, want, have)
	}
}

// TestRestartsHelpOrAreNotTried: the codes are those of package daemon, and the document says
// the same. Go's runtime ends a crash with the code of a wrong command line.
func TestRestartsHelpOrAreNotTried(t *testing.T) {
	document, err := os.ReadFile("../../docs/systemd.md")
	require.NoError(t, err)
	for _, name := range units {
		u := readUnit(t, name)
		require.Equal(t, "on-failure", u.one(t, "Service.Restart"))
		require.Equal(t, "0", u.one(t, "Unit.StartLimitIntervalSec"), "a witness may be away for long")
		never := []string{strconv.Itoa(daemon.ExitConfig), strconv.Itoa(daemon.ExitCorrupt), strconv.Itoa(daemon.ExitSchema)}
		if name == "coordinatord" {
			never = append(never, strconv.Itoa(daemon.ExitRolledBack))
		}
		require.Equal(t, never, strings.Fields(u.one(t, "Service.RestartPreventExitStatus")))
		require.NotContains(t, never, strconv.Itoa(daemon.ExitUsage))
	}
	for code := daemon.ExitFailure; code <= daemon.ExitRolledBack; code++ {
		if code > daemon.ExitUsage && code < daemon.ExitConfig {
			continue
		}
		is := "yes"
		if slices.Contains([]int{daemon.ExitConfig, daemon.ExitCorrupt, daemon.ExitSchema, daemon.ExitRolledBack}, code) {
			is = "no"
		}
		require.Regexp(t, fmt.Sprintf(`(?m)^\| %d \| .* \| %s \|$`, code, is), string(document))
	}
}

// TestUnitsUsersAndDirectoriesAgree: no two daemons share a user or a directory, and what a
// unit names is made.
func TestUnitsUsersAndDirectoriesAgree(t *testing.T) {
	users, err := os.ReadFile("systemd/coordinator.sysusers")
	require.NoError(t, err)
	dirs, err := os.ReadFile("systemd/coordinator.tmpfiles")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, name := range units {
		u := readUnit(t, name)
		require.Equal(t, "notify", u.one(t, "Service.Type"))
		require.Equal(t, "main", u.one(t, "Service.NotifyAccess"))
		require.NotEmpty(t, u.one(t, "Service.WatchdogSec"))
		user := u.one(t, "Service.User")
		require.False(t, seen[user], "%s shares its user", name)
		seen[user] = true
		require.Regexp(t, `(?m)^u `+user+` +- `, string(users))
		state := strings.Fields(u.one(t, "Service.StateDirectory"))
		for _, dir := range state {
			require.False(t, seen[dir+"/"], "%s shares its directory", name)
			seen[dir+"/"] = true
			require.Regexp(t, `(?m)^d /var/lib/`+dir+` +0700 `+user+` +`+user+` `, string(dirs))
		}
		require.Equal(t, []string{"/usr/bin/" + name, "serve", "--state", "/var/lib/" + state[0]}, strings.Fields(u.one(t, "Service.ExecStart")))
		require.Equal(t, "0700", u.one(t, "Service.StateDirectoryMode"))
		require.Equal(t, []string{""}, u["Service.CapabilityBoundingSet"])
		for _, key := range []string{"Requires", "BindsTo", "PartOf"} {
			require.Empty(t, u["Unit."+key], "the end of one daemon would take another with it")
		}
	}
	owner := readUnit(t, "ownerd")
	require.Equal(t, "continue", owner.one(t, "Service.OOMPolicy"))
	require.Equal(t, "mixed", owner.one(t, "Service.KillMode"))
}

func TestScriptsAreSound(t *testing.T) {
	scripts, err := filepath.Glob("scripts/*")
	require.NoError(t, err)
	require.Len(t, scripts, 3)
	out, err := exec.Command(tool(t, "shellcheck"), append(scripts, "install.sh", "changelog.sh")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
