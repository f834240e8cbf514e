package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// File descriptors of a held process beside its terminal.
const (
	heldOrders = 3
	heldReport = 4
)

// Exit statuses of a held process that did not become its command.
const (
	heldOrphaned = 125 // its owner ended first
	heldFailed   = 127
)

// RunHeld is the first thing that a program with an owner in it calls: when the program was
// started to be a held process it does not return.
func RunHeld() {
	if len(os.Args) == 1 && os.Args[0] == heldName {
		os.Exit(beHeld())
	}
}

// beHeld waits for the command and becomes it. The orders' end without a command means that
// the owner has died: whatever it would have started must not start.
func beHeld() int {
	unix.CloseOnExec(heldOrders)
	unix.CloseOnExec(heldReport)
	c, err := decodeOrder(os.NewFile(heldOrders, "orders"))
	if err != nil {
		return heldOrphaned
	}
	err = become(c)
	fmt.Fprint(os.NewFile(heldReport, "report"), err) //nolint:errcheck // nobody else could be told
	return heldFailed
}

// become returns only when the command could not be started. The text is for its coordinator.
func become(c command) error {
	if err := os.Chdir(c.cwd); err != nil {
		return fmt.Errorf("cwd: %w", cause(err))
	}
	path, err := lookPath(c.argv[0], c.env)
	if err != nil {
		return fmt.Errorf("argv[0]: %w", cause(err))
	}
	// What is ignored stays so over an exec, as SIGHUP is under nohup. A caught signal goes
	// back to its default.
	if ignored := ignoredSignals(); len(ignored) > 0 {
		signal.Notify(make(chan os.Signal, 1), ignored...)
	}
	return fmt.Errorf("argv[0]: %w", cause(syscall.Exec(path, c.argv, c.env)))
}

func ignoredSignals() (list []os.Signal) {
	for s := syscall.Signal(1); s < 32; s++ {
		if s != syscall.SIGKILL && s != syscall.SIGSTOP && signal.Ignored(s) {
			list = append(list, s)
		}
	}
	return list
}

// cause strips the path from an error: a path may hold what nobody else should read.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// lookPath finds a program in the PATH that it will run with. An empty element is not the
// working directory.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	list := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			list = v
		}
	}
	found := error(syscall.ENOENT)
	for _, dir := range filepath.SplitList(list) {
		if dir == "" {
			continue
		}
		path := filepath.Join(dir, name)
		st, err := os.Stat(path)
		switch {
		case err != nil || st.IsDir():
		case unix.Access(path, unix.X_OK) != nil:
			found = syscall.EACCES
		default:
			return path, nil
		}
	}
	return "", found
}
