//go:build !linux

package clock

import "time"

var started = time.Now()

// bootTime counts from the start of the process, and may stand still while the machine
// sleeps. That serves a client, whose questions are all for the wall clock; the daemons
// need a real BOOTTIME and do not start here, where [BootID] fails and no socket can be
// listened on.
func bootTime() time.Duration { return time.Since(started) }
