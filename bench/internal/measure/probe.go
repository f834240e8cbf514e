package measure

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockTick is the unit of CPU time in /proc: USER_HZ, which is 100 on every Linux port
// that Go has.
const clockTick = 10 * time.Millisecond

// ProcCPU is the user and system time of a process, zero when it has none to tell.
func ProcCPU(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return parseStat(string(raw))
}

// parseStat reads utime and stime of /proc/PID/stat. The name, in brackets, may hold anything.
func parseStat(s string) time.Duration {
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * clockTick
}

// SelfCPU is the user and system time of this process.
func SelfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// RSSAnon is the resident anonymous memory of a process in bytes.
func RSSAnon(pid int) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d: the kernel tells no RssAnon", pid)
}

// flushField is the index of completed flush requests in /sys/dev/block/*/stat.
const flushField = 15

// Flushes is how many cache flushes the disk under dir has completed: those of the whole
// device, whoever asked. ok is false where the kernel does not count them.
func Flushes(dir string) (n int64, ok bool) {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil {
		return 0, false
	}
	major, minor := (st.Dev>>8)&0xfff, (st.Dev&0xff)|((st.Dev>>12)&0xfff00)
	raw, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", major, minor))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(raw))
	if len(fields) <= flushField {
		return 0, false
	}
	n, err = strconv.ParseInt(fields[flushField], 10, 64)
	return n, err == nil
}

// Jiffies are the CPU time of the whole machine, and how much of it other guests took.
func Jiffies() (total, steal int64) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, s := range strings.Fields(line) {
		if i == 0 || i > 8 { // the word cpu, and guest time, which user time holds already
			continue
		}
		v, _ := strconv.ParseInt(s, 10, 64)
		total += v
		if i == 8 {
			steal = v
		}
	}
	return total, steal
}

// A Probe is what the counters said at one instant.
type Probe struct {
	At           time.Time
	Server, Self time.Duration // CPU
	Flushes      int64
	HasFlushes   bool
}

// Probe reads the counters; a pid of zero has no CPU time.
func (e *Env) Probe(pid int) Probe {
	p := Probe{At: time.Now(), Self: SelfCPU()}
	p.Flushes, p.HasFlushes = Flushes(e.Dir)
	if pid > 0 {
		p.Server = ProcCPU(pid)
	}
	return p
}

// Calibrate takes a quick look at one core and at the disk, so that parts that ran at
// different times can be compared.
func Calibrate(dir string) (shaGBs, syncsPerSec float64) {
	buf := make([]byte, 1<<20)
	h := sha256.New()
	began, n := time.Now(), 0
	for ; time.Since(began) < 50*time.Millisecond; n++ {
		h.Write(buf)
	}
	shaGBs = float64(n) * float64(len(buf)) / 1e9 / time.Since(began).Seconds()
	f, err := os.CreateTemp(dir, "calibrate")
	if err != nil {
		return shaGBs, 0
	}
	defer os.Remove(f.Name())
	defer f.Close()
	began, n = time.Now(), 0
	for ; time.Since(began) < 100*time.Millisecond; n++ {
		if _, err := f.WriteAt(buf[:4096], int64(n)*4096); err != nil {
			return shaGBs, 0
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return shaGBs, 0
		}
	}
	return shaGBs, float64(n) / time.Since(began).Seconds()
}
