package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// childrenEvery is how often the children of a start are looked at.
const childrenEvery = time.Second

// whileChildrenWork runs f, and calls working for as long as the children that it waits for
// use the processor: one that hangs in a disk proves nothing.
func whileChildrenWork(working func(), f func() error) error {
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		t := time.NewTicker(childrenEvery)
		defer t.Stop()
		last := childrenUse()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if now := childrenUse(); now != last {
				last = now
				working()
			}
		}
	})
	defer watching.Wait()
	defer cancel()
	return f()
}

// childrenUse is the processor time of each child of this process, as the kernel prints it;
// empty where it does not say.
func childrenUse() string {
	var all strings.Builder
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return ""
	}
	for _, list := range lists {
		pids, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(pids)) {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil {
				continue // the child has ended
			}
			// Behind the name, which may hold anything: utime and stime are the 12th and 13th.
			if f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])); len(f) > 12 {
				all.WriteString(pid + " " + f[11] + " " + f[12] + "\n")
			}
		}
	}
	return all.String()
}
