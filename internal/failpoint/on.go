//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Enabled says whether this binary has fail points.
const Enabled = true

const variable = "COORDINATOR_FAILPOINT"

type point struct {
	at   int // the hit that acts; 0 means every one
	hits int
	act  func()
}

var (
	mu     sync.Mutex
	points = map[string]*point{}
)

func init() {
	if err := arm(os.Getenv(variable)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", variable, err)
		os.Exit(2) // a test that thinks it armed a point must not pass without it
	}
}

func arm(spec string) error {
	for item := range strings.SplitSeq(spec, ",") {
		if item == "" {
			continue
		}
		name, action, ok := strings.Cut(item, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q is not NAME=ACTION", item)
		}
		at := 1
		if a, n, ok := strings.Cut(action, "@"); ok {
			v, err := strconv.Atoi(n)
			if err != nil || v < 1 {
				return fmt.Errorf("%q: the hit is not a positive number", item)
			}
			action, at = a, v
		}
		act, err := parseAction(action)
		if err != nil {
			return fmt.Errorf("%q: %w", item, err)
		}
		points[name] = &point{at: at, act: act}
	}
	return nil
}

func parseAction(s string) (func(), error) {
	if dur, ok := strings.CutPrefix(s, "sleep:"); ok {
		d, err := time.ParseDuration(dur)
		if err != nil {
			return nil, err
		}
		return func() {
			fmt.Fprintln(os.Stderr, "failpoint sleeps", d) // so that a test knows that it is here
			time.Sleep(d)
		}, nil
	}
	switch s {
	case "kill":
		return func() { signalSelf(syscall.SIGKILL) }, nil
	case "stop":
		return func() { signalSelf(syscall.SIGSTOP) }, nil
	case "exit":
		return func() { os.Exit(99) }, nil
	}
	return nil, fmt.Errorf("unknown action %q", s)
}

func signalSelf(sig syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		panic(fmt.Sprintf("failpoint: %v", err))
	}
	if sig == syscall.SIGKILL {
		select {} // the signal may arrive a moment later; nothing more may run
	}
}

// Hit marks that execution has come to the step called name.
func Hit(name string) {
	mu.Lock()
	p := points[name]
	if p == nil {
		mu.Unlock()
		return
	}
	p.hits++
	act := p.at == 0 || p.hits == p.at
	f := p.act
	mu.Unlock()
	if act {
		f()
	}
}

// Set runs f at every hit of name, on the goroutine that hits it, until undo
// is called, which restores what was there before.
func Set(name string, f func()) (undo func()) {
	mu.Lock()
	defer mu.Unlock()
	old := points[name]
	points[name] = &point{act: f}
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if old == nil {
			delete(points, name)
			return
		}
		points[name] = old
	}
}
