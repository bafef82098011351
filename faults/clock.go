//go:build linux

package faults

import (
	"time"

	"golang.org/x/sys/unix"
)

// now is the monotonic clock of the machine, the one that Go's runtime reads too.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // there is no machine without it
	}
	return time.Duration(ts.Nano())
}

// monotonic is t on that clock, or a little earlier.
func monotonic(t time.Time) time.Duration {
	at := now()
	return at + time.Until(t)
}
