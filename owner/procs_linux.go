package owner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"coordinator/internal/clock"

	"golang.org/x/sys/unix"
)

const (
	// endWait bounds the wait for what a SIGKILL was sent to.
	endWait = 5 * time.Second
	// endPoll is how long one look waits for one process.
	endPoll = 100 * time.Millisecond
	// orphanSweep is how often an owner that is process 1 looks for orphans.
	orphanSweep = time.Second
)

// procStat is what /proc/PID/stat says of a process.
type procStat struct {
	pid                    int
	state                  byte
	parent, group, session int
	start                  uint64 // clock ticks since boot
}

func readStat(pid int) (procStat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The name in parentheses may hold anything, the last parenthesis ends it.
	_, rest, ok := bytes.Cut(raw[max(0, bytes.LastIndexByte(raw, ')')):], []byte(") "))
	f := bytes.Fields(rest)
	if !ok || len(f) < 20 {
		return procStat{}, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	st := procStat{pid: pid, state: f[0][0]}
	var errs [4]error
	st.parent, errs[0] = strconv.Atoi(string(f[1]))
	st.group, errs[1] = strconv.Atoi(string(f[2]))
	st.session, errs[2] = strconv.Atoi(string(f[3]))
	st.start, errs[3] = strconv.ParseUint(string(f[19]), 10, 64)
	return st, errors.Join(errs[:]...)
}

// eachProcess calls fn for every process there is. Those that end meanwhile are left out.
func eachProcess(fn func(procStat)) error {
	dir, err := os.Open("/proc")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil {
			fn(st)
		}
	}
	return nil
}

// BootID names within what process ids and start times compare: this boot of the machine, and
// this instance of the process's pid namespace. When a container is started again the boot goes
// on, its processes are gone all the same, and their small numbers are soon others'. The first
// process of the namespace tells the instances apart.
func BootID() (string, error) {
	boot, err := clock.BootID()
	if err != nil {
		return "", err
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", err
	}
	start := uint64(0) // a /proc that hides the others' processes leaves the number of the namespace alone
	if first, err := readStat(1); err == nil {
		start = first.start
	}
	return fmt.Sprintf("%s/%s/%d", boot, space, start), nil
}

// alive leaves out what only waits to be reaped.
func (s *procStat) alive() bool { return s.state != 'Z' && s.state != 'X' }

// members are the living processes of a group whose first process was id. When that one is
// there, its start time decides whether the group is ours at all. When it is gone, its number
// cannot have been given anew as long as anybody is left in its session; a member then has the
// session too and did not start earlier.
func members(id identity) ([]procStat, error) {
	group := int(id.group)
	if first, err := readStat(group); err == nil && first.start != id.start {
		return nil, nil // the number belongs to somebody else
	}
	var list []procStat
	err := eachProcess(func(st procStat) {
		if st.group == group && st.session == group && st.start >= id.start && st.alive() {
			list = append(list, st)
		}
	})
	return list, err
}

// signalMembers signals all members, each through a pidfd whose process was looked at after it
// was opened, so that no other process can be meant.
func signalMembers(id identity, sig syscall.Signal) (n int, err error) {
	list, err := members(id)
	if err != nil {
		return 0, err
	}
	for _, m := range list {
		fd, err := openMember(m)
		if err != nil {
			continue
		}
		if unix.PidfdSendSignal(fd, sig, nil, 0) == nil {
			n++
		}
		unix.Close(fd)
	}
	return n, nil
}

// openMember opens a pidfd of exactly that process.
func openMember(m procStat) (int, error) {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return -1, err
	}
	if now, err := readStat(m.pid); err != nil || now.start != m.start || now.group != m.group {
		unix.Close(fd)
		return -1, errNoProcess
	}
	return fd, nil
}

// endFormer kills until nobody is left: a process may have forked between look and signal.
func (ptyLauncher) endFormer(id identity) error {
	for end := time.Now().Add(endWait); ; {
		list, err := members(id)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, m := range list {
			fd, err := openMember(m)
			if err != nil {
				continue
			}
			if err := unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0); err == nil {
				awaitPidfd(fd, endPoll)
			}
			unix.Close(fd)
		}
		if time.Now().After(end) {
			return fmt.Errorf("process group %d does not end after SIGKILL; it may wait for a disk or a network file system", id.group)
		}
	}
}

func awaitPidfd(fd int, d time.Duration) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(d); ; {
		_, err := unix.Poll(fds, int(max(0, time.Until(end)).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ownChildren are the processes that an owner in this program waits for itself, by pid.
var ownChildren sync.Map

// ReapOrphans reaps, until ctx ends, processes that were left to this one because it is process
// 1 or a subreaper. A process that somebody in this program waits for is reaped by them at
// once; only what was already dead a whole sweep earlier is nobody's.
func ReapOrphans(ctx context.Context) error {
	t := time.NewTicker(orphanSweep)
	defer t.Stop()
	dead := map[int]uint64{} // pid to start time of those that the last sweep saw
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		seen := map[int]uint64{}
		err := eachProcess(func(st procStat) {
			if st.parent != os.Getpid() || st.state != 'Z' {
				return
			}
			if _, own := ownChildren.Load(st.pid); own {
				return
			}
			if dead[st.pid] == st.start {
				syscall.Wait4(st.pid, nil, syscall.WNOHANG, nil) //nolint:errcheck // it may be gone
				return
			}
			seen[st.pid] = st.start
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for orphans: %w", err)
		}
		dead = seen
	}
}
