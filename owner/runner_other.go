//go:build !linux

package owner

import (
	"context"
	"runtime"

	"coordinator/internal/clock"
)

// newLauncher says what is missing: processes are identified by /proc and pidfds, and their
// terminals drained by Linux's rules.
func newLauncher() (launcher, error) {
	return nil, &UnsupportedError{System: runtime.GOOS, Missing: "the identity of a process across restarts (/proc start times and pidfds)"}
}

// BootID names this boot of the machine.
func BootID() (string, error) { return clock.BootID() }

// RunHeld returns: no held process is ever started here.
func RunHeld() {}

// ReapOrphans waits for ctx: nothing is run here, so nothing is left behind.
func ReapOrphans(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
