package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("clock: CLOCK_BOOTTIME: %v", err)) // every supported kernel has it
	}
	return time.Duration(ts.Nano())
}
