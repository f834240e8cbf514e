package cirunner_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"coordinator/internal/docsh"
)

func TestMain(m *testing.M) {
	code := docsh.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// upped is a running `coordctl up`: a witness, an owner and a coordinator as processes.
type upped struct {
	state string
	cmd   *exec.Cmd
	said  *bytes.Buffer // after down
	ended chan struct{}
}

// up starts it in a directory of its own and waits until it serves.
func up() *upped {
	bin, err := docsh.Programs()
	if err != nil {
		log.Fatal(err)
	}
	state, err := os.MkdirTemp("", "ci") // short, for socket paths
	if err != nil {
		log.Fatal(err)
	}
	u := &upped{state: state, said: new(bytes.Buffer), ended: make(chan struct{})}
	u.cmd = exec.Command(filepath.Join(bin, "coordctl"), "up", "--state", state, "--lease", "6")
	u.cmd.Stderr = u.said
	out, err := u.cmd.StdoutPipe()
	if err == nil {
		err = u.cmd.Start()
	}
	if err != nil {
		log.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		defer close(u.ended)
		line := &untilReady{ready: ready}
		io.Copy(line, out) //nolint:errcheck // it takes everything
		u.cmd.Wait()       //nolint:errcheck // it was told to end
	}()
	select {
	case <-ready:
	case <-u.ended:
		log.Fatalf("up ended before it served:\n%s", u.said)
	case <-time.After(time.Minute):
		log.Fatal("up does not serve")
	}
	return u
}

// untilReady closes ready when "\nready" has come.
type untilReady struct {
	seen  []byte
	ready chan struct{}
}

func (w *untilReady) Write(p []byte) (int, error) {
	if w.seen = append(w.seen, p...); w.ready != nil && bytes.Contains(w.seen, []byte("\nready")) {
		close(w.ready)
		w.ready = nil
	}
	return len(p), nil
}

// down ends it with everything that it runs.
func (u *upped) down() {
	if err := u.cmd.Process.Signal(syscall.SIGINT); err != nil {
		log.Fatal(err)
	}
	<-u.ended
	if err := os.RemoveAll(u.state); err != nil {
		log.Fatal(err)
	}
}

// read is what a file holds; nothing when it is not there.
func (u *upped) read(path ...string) string {
	raw, err := os.ReadFile(filepath.Join(path...))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Fatal(err)
	}
	return string(raw)
}
