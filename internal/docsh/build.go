package docsh

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
)

var programs struct {
	sync.Mutex
	main bool // Main runs, and removes dir
	dir  string
	err  error
}

// Main runs the tests of a package that uses [Run] and removes the programs that were
// built for them. It returns the exit code.
func Main(m *testing.M) int {
	programs.main = true
	code := m.Run()
	if programs.dir != "" {
		os.RemoveAll(programs.dir)
	}
	return code
}

// Programs returns the directory of coordctl, coordinatord, ownerd and witnessd as they are
// in this checkout, built by the first call of the process. It needs [Main].
func Programs() (string, error) {
	programs.Lock()
	defer programs.Unlock()
	if !programs.main {
		return "", errors.New("docsh: TestMain of this package is not docsh.Main, which removes the programs that are built")
	}
	if programs.dir == "" && programs.err == nil {
		programs.dir, programs.err = build()
	}
	return programs.dir, programs.err
}

func build() (string, error) {
	dir, err := os.MkdirTemp("", "bin")
	if err != nil {
		return "", err
	}
	// As `make build` does it in a copy of the sources, which has no history to be stamped with.
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir,
		"coordinator/cmd/coordctl", "coordinator/cmd/coordinatord", "coordinator/cmd/ownerd", "coordinator/cmd/witnessd")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("docsh: go build: %w\n%s", err, out)
	}
	return dir, nil
}
