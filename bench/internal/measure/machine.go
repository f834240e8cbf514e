package measure

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
)

// Machine describes this machine and the disk under dir.
func Machine(dir string) map[string]string {
	m := map[string]string{"cores": strconv.Itoa(runtime.NumCPU()), "go": runtime.Version(), "arch": runtime.GOARCH}
	read := func(path string) string {
		raw, _ := os.ReadFile(path) // what the kernel does not tell is left empty
		return strings.TrimSpace(string(raw))
	}
	m["kernel"], m["load before"] = read("/proc/sys/kernel/osrelease"), read("/proc/loadavg")
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m["cpu"] = strings.TrimSpace(v)
		}
	}
	for line := range strings.Lines(read("/proc/meminfo")) {
		if v, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			m["memory"] = strings.TrimSpace(v)
		}
	}
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) == nil {
		m["file system"] = fmt.Sprintf("%#x", st.Type)
	}
	return m
}

// Modules gives the versions of the named modules that this program is built with.
func Modules(names ...string) map[string]string {
	m := map[string]string{}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return m
	}
	for _, dep := range info.Deps {
		for _, name := range names {
			if dep.Path == name {
				m[name] = dep.Version
			}
		}
	}
	return m
}
