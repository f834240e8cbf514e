package owner

import (
	"errors"
	"syscall"

	"coordinator/frames"
)

// heldName is the argv[0] under which this program is started again to be the held child.
const heldName = "owner-held-process"

// errNoProcess says that a process and all of its group have ended.
var errNoProcess = errors.New("the process has ended")

// An identity is what a process is known by when its owner's process is gone: its group, which
// is its own id, and when it started in clock ticks since boot.
type identity struct {
	group uint32
	start uint64
}

// A command is what a held process becomes.
type command struct {
	argv, env []string
	cwd       string
}

// A launcher starts processes. The real one runs each on a PTY of its own, in its own session
// and process group.
type launcher interface {
	// hold starts a process that waits, and ends when this process does.
	hold(rows, cols uint16) (held, error)
	// endFormer kills what is left of a process of a former incarnation on this boot, found
	// by its group and start time, and returns once that is gone.
	endFormer(identity) error
}

// held is a process that waits.
type held interface {
	id() identity
	// release turns it into the command. After a *startError there is no process any more.
	release(command) (child, error)
	// abandon ends it.
	abandon()
}

// A startError says why a command could not be started, in words for its coordinator.
type startError struct{ text string }

func (e *startError) Error() string { return e.text }

// child is a running process and its terminal.
type child interface {
	// Read reads what the process and its descendants write. It returns io.EOF once none of
	// them has the terminal open any more, or after cut.
	Read(p []byte) (int, error)
	// wait returns the exit status once the process has been reaped. It is called once.
	wait() frames.Closed
	// signal signals the process group; errNoProcess when there is nobody in it.
	signal(syscall.Signal) error
	// held says whether a descendant has the terminal open. It is asked after the reap.
	held() bool
	// cut ends the reading: Read goes on with what is there at once, and then returns io.EOF.
	cut()
	// hangup closes the terminal. It must be called once, when nobody reads any more.
	hangup()
}
