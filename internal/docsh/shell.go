package docsh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// driver is the loop of the long-lived shell: a path of a block on descriptor 3, its exit
// code on descriptor 4. A block never sees these two, or a daemon that it starts would keep
// them open. The trap names the command by which set -e ended the shell.
const driver = `
trap 'printf "%s\n%s\n" "$LINENO" "$BASH_COMMAND" >"$DOCSH_FAILED"' ERR
while IFS= read -r -u 3 DOCSH_KIND && IFS= read -r -u 3 DOCSH_BLOCK; do
	if [ "$DOCSH_KIND" = fails ]; then
		set +e
		( trap - ERR; set -e; . "$DOCSH_BLOCK" ) </dev/null >"$DOCSH_BLOCK.out" 2>&1 3<&- 4>&-
		DOCSH_CODE=$?
		set -e
	else
		. "$DOCSH_BLOCK" </dev/null >"$DOCSH_BLOCK.out" 2>&1 3<&- 4>&-
		DOCSH_CODE=0
	fi
	printf '%s\n' "$DOCSH_CODE" >&4
done
`

// A shell is one long-lived bash. Its blocks run one after another.
type shell struct {
	dir     string // of the blocks and their output
	mark    string // assignment that everything it starts inherits
	cmd     *exec.Cmd
	blocks  *os.File
	codes   *os.File
	replies chan string // closed when the shell has ended and has been waited for
	count   int
}

// start runs bash, under prefix if there is one, in work with env.
func start(dir, work string, prefix, env []string) (*shell, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	args := append(prefix[:len(prefix):len(prefix)], "bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", driver)
	s := &shell{dir: dir, mark: "DOCSH=" + dir, cmd: exec.Command(args[0], args[1:]...), replies: make(chan string)}
	s.cmd.Dir = work
	s.cmd.Env = append(env, s.mark, "DOCSH_FAILED="+s.failed())
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	own, err := os.OpenFile(filepath.Join(dir, "shell.out"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer own.Close()
	blocks, err := s.pipes()
	if err != nil {
		return nil, err
	}
	defer blocks[0].Close()
	defer blocks[1].Close()
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.ExtraFiles = own, own, blocks[:]
	if err := s.cmd.Start(); err != nil {
		s.blocks.Close()
		s.codes.Close()
		return nil, err
	}
	go s.listen()
	return s, nil
}

// pipes makes the two pipes and returns the ends that bash gets.
func (s *shell) pipes() (theirs [2]*os.File, err error) {
	if theirs[0], s.blocks, err = os.Pipe(); err != nil {
		return theirs, err
	}
	if s.codes, theirs[1], err = os.Pipe(); err != nil {
		theirs[0].Close()
		s.blocks.Close()
	}
	return theirs, err
}

// listen passes the exit codes of blocks on, until the shell ends.
func (s *shell) listen() {
	defer close(s.replies)
	in := bufio.NewScanner(s.codes)
	for in.Scan() {
		s.replies <- in.Text()
	}
	_ = s.cmd.Wait() // its state says all
}

// run runs one block to its end and returns what it printed. A nil error says that it
// ended as it should.
func (s *shell) run(ctx context.Context, b *Block) (string, error) {
	s.count++
	dir := filepath.Join(s.dir, strconv.Itoa(s.count))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	// The text lies at its own line in a file of the document's name, so that bash's own
	// messages point into the document.
	path := filepath.Join(dir, b.File)
	if err := os.WriteFile(path, []byte(strings.Repeat("\n", b.Line-1)+b.script()), 0o600); err != nil {
		return "", err
	}
	_ = os.Remove(s.failed())
	kind := "runs"
	if b.Fails != 0 {
		kind = "fails"
	}
	fail := &Error{Block: b, Line: b.Line, Command: strings.TrimSpace(b.script())}
	if _, err := fmt.Fprintf(s.blocks, "%s\n%s\n", kind, path); err != nil {
		fail.What = "the shell had already ended"
		return "", fail
	}
	select {
	case <-ctx.Done():
		fail.What = fmt.Sprintf("%v; these still run: %s", context.Cause(ctx), s.running())
	case reply, alive := <-s.replies:
		if alive && reply == strconv.Itoa(b.Fails) {
			return s.output(path), nil
		}
		fail.What = "exit code " + reply
		if !alive {
			fail.What = "the shell ended with exit code " + strconv.Itoa(s.cmd.ProcessState.ExitCode())
			s.name(fail)
		} else if b.Fails != 0 {
			fail.What += ", where the document says " + strconv.Itoa(b.Fails)
		}
	}
	fail.Output = s.output(path)
	return "", fail
}

// output is what a block has printed so far.
func (s *shell) output(path string) string {
	raw, err := os.ReadFile(path + ".out")
	if errors.Is(err, os.ErrNotExist) {
		raw, _ = os.ReadFile(filepath.Join(s.dir, "shell.out"))
	}
	return string(raw)
}

// failed is the file that the trap writes: a line number, a line feed and the command.
func (s *shell) failed() string { return filepath.Join(s.dir, "failed") }

// name puts the command that ended the shell into an error.
func (s *shell) name(e *Error) {
	raw, _ := os.ReadFile(s.failed())
	line, command, ok := strings.Cut(string(raw), "\n")
	if n, err := strconv.Atoi(line); ok && err == nil {
		e.Line, e.Command = n, strings.TrimSpace(command)
	}
}

func (s *shell) running() string {
	var names []string
	for _, p := range left(s.cmd.Process.Pid, s.mark) {
		if p.pid != s.cmd.Process.Pid {
			names = append(names, p.command)
		}
	}
	return strings.Join(names, "; ")
}

// close ends the shell and everything that it started.
func (s *shell) close() {
	s.blocks.Close()
	end(s.cmd.Process.Pid, s.mark)
	for range s.replies {
		continue // a block that ended after its time
	}
	s.codes.Close()
}
