package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// childArg makes this program a child: the next argument is its kind.
const childArg = "-child"

// childStop bounds how long a child may take to end by itself.
const childStop = 2 * time.Second

// A Child is this program again, as one server or sink in a process of its own. It prints
// one line of JSON when it is ready, and ends when its standard input does.
type Child struct {
	Ready map[string]string // what it printed

	cmd  *exec.Cmd
	in   io.WriteCloser
	exit <-chan error
}

// Spawn starts cmd so that it dies with this process, however this one ends. The kernel
// ties that to the thread which starts the process, so a goroutine holds that thread until
// the process has ended; exit then gives the outcome.
func Spawn(cmd *exec.Cmd) (exit <-chan error, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		ended <- cmd.Wait()
	}()
	return ended, <-started
}

// StartChild starts a child and waits until it is ready.
func StartChild(ctx context.Context, kind string, args ...string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Child{cmd: exec.Command(self, append([]string{childArg, kind}, args...)...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	read, write, err := os.Pipe() // Wait would close StdoutPipe's under its reader
	if err != nil {
		return nil, err
	}
	c.cmd.Stdout = write
	c.exit, err = Spawn(c.cmd)
	write.Close()
	if err != nil {
		read.Close()
		return nil, err
	}
	line := make(chan string, 1)
	go func() {
		defer read.Close()
		s, _ := bufio.NewReader(read).ReadString('\n') // an end is an empty line, which is no JSON
		line <- s
	}()
	select {
	case s := <-line:
		if err := json.Unmarshal([]byte(s), &c.Ready); err != nil {
			c.Stop()
			return nil, fmt.Errorf("%s did not become ready: %q", kind, s)
		}
		return c, nil
	case <-ctx.Done():
		c.Stop()
		return nil, fmt.Errorf("%s did not become ready: %w", kind, ctx.Err())
	}
}

// PID is the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Stop ends the child and returns once it has.
func (c *Child) Stop() {
	c.in.Close()
	select {
	case <-c.exit:
	case <-time.After(childStop):
		c.cmd.Process.Kill() //nolint:errcheck // it may have ended meanwhile
		<-c.exit
	}
}

// Serving is called by a child once it is ready, and returns when it shall end.
func Serving(ready map[string]string) error {
	line, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// RunChild runs the child that args ask for and ends the process, or returns when they ask
// for none.
func RunChild(args []string, kinds map[string]func(args []string) error) {
	if len(args) < 2 || args[0] != childArg {
		return
	}
	err := errors.New("no such child")
	if run := kinds[args[1]]; run != nil {
		err = run(args[2:])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", args[1], err)
		os.Exit(1)
	}
	os.Exit(0)
}
