//go:build !linux

package owner

import (
	"context"
	"runtime"
)

// newLauncher says what is missing: processes are identified by /proc and pidfds, and their
// terminals drained by Linux's rules.
func newLauncher() (launcher, error) {
	return nil, &UnsupportedError{System: runtime.GOOS, Missing: "the identity of a process across restarts (/proc start times and pidfds)"}
}

// RunHeld returns: no held process is ever started here.
func RunHeld() {}

// ReapOrphans waits for ctx: nothing is run here, so nothing is left behind.
func ReapOrphans(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
