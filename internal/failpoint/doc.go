// Package failpoint lets a test stop the process at a named step.
//
// It is compiled in only with the build tag failpoint; without it Hit is empty
// and costs nothing. The environment variable COORDINATOR_FAILPOINT arms steps
// of a process as NAME=ACTION[@N], several separated by commas; the action is
// taken at the N-th hit (the first without @N) and at no other:
//
//	kill        SIGKILL to this process
//	stop        SIGSTOP to this process
//	exit        exit status 99 at once
//	sleep:DUR   sleep
package failpoint
