//go:build linux

package packaging

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/internal/docsh"
	"coordinator/internal/netlab"
)

// scp stands for the program of that name, between machines that have no network but the one
// under test: it puts files into the directory in which the other host's shell is. A private
// key is not to leave its host.
const scp = `#!/bin/sh
set -e
for last; do :; done
case $1 in *.ed25519) echo "scp: $1 is a private key" >&2; exit 1 ;; esac
case $last in
*:) to=$PWD/../../${last%:}/w ;;
*) echo "scp: this one knows no $last" >&2; exit 1 ;;
esac
while [ $# -gt 1 ]; do cp -p "$1" "$to/"; shift; done
`

// TestHostsDocument runs docs/hosts.md on four machines on one wire, from the package over a
// backup and a disaster to a system that goes on.
func TestHostsDocument(t *testing.T) {
	deb := debian(t)
	lab := netlab.New(t, netlab.Options{MTU: 1280})
	shared := sharedDir(t)
	machines := make(map[string]*machine)
	for _, name := range []string{"witness", "coordinator", "worker", "spare"} { // the order of their addresses
		m := newMachineWith(t, shared)
		lab.Join(name, filepath.Join("/proc", m.pid, "ns/net"))
		// What takes an installation its time, four times over: lists of packages from which none
		// is to come, and the index of this machine's manual.
		m.run("sh", "-c", "rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/lib/man-db/auto-update")
		machines[name] = m
	}
	bin := filepath.Join(shared, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "scp"), []byte(scp), 0o755))
	t.Setenv("TMPDIR", shared)
	dirs := make(map[string]string) // in which each host's shell is
	docsh.Run(t, "../../docs/hosts.md", docsh.Options{
		Bin: bin, Timeout: 2 * time.Minute,
		Prepare: func(host, dir string) error {
			dirs[host] = dir
			copyFile(t, deb, filepath.Join(dir, filepath.Base(deb)))
			return nil
		},
		Host: func(host string) []string {
			return append(machines[host].enter(), "--wdns="+dirs[host], "env", "-u", "XDG_STATE_HOME", "-u", "XDG_CONFIG_HOME", "-u", "TMPDIR", "HOME=/root")
		},
	})

	for name, unit := range map[string]string{"witness": "witnessd", "worker": "ownerd", "spare": "coordinatord"} {
		m := machines[name]
		require.Equal(t, "active", m.property(unit, "ActiveState"))
		require.Equal(t, "0", m.property(unit, "NRestarts"), m.status(unit))
	}
}
