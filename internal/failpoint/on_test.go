//go:build failpoint

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSetAndUndo(t *testing.T) {
	n := 0
	undo := Set("step", func() { n++ })
	Hit("step")
	Hit("other")
	Hit("step")
	undo()
	Hit("step")
	require.Equal(t, 2, n)
}

func TestArmRefuses(t *testing.T) {
	for _, bad := range []string{"x", "=kill", "x=fly", "x=kill@0", "x=kill@y", "x=sleep:1"} {
		require.Error(t, arm(bad), bad)
	}
	require.NoError(t, arm("a=sleep:1ns@2,,b=stop@3"))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 2, points["a"].at)
	require.Equal(t, 3, points["b"].at)
	delete(points, "a")
	delete(points, "b")
}

func TestProcessDiesAtTheNthHit(t *testing.T) {
	if os.Getenv("FAILPOINT_TEST_CHILD") != "" {
		Hit("w")
		os.Stdout.WriteString("1")
		Hit("w")
		os.Stdout.WriteString("2")
		os.Exit(0)
	}
	for _, tt := range []struct {
		spec, out string
		signal    syscall.Signal
		code      int
	}{
		{"w=kill", "", syscall.SIGKILL, -1},
		{"w=kill@2", "1", syscall.SIGKILL, -1},
		{"w=exit@2", "1", 0, 99},
		{"w=sleep:1ns,other=kill", "12", 0, 0},
		{"w=fly", "", 0, 2},
	} {
		child := exec.Command(os.Args[0], "-test.run=^TestProcessDiesAtTheNthHit$")
		child.Env = append(os.Environ(), "FAILPOINT_TEST_CHILD=1", variable+"="+tt.spec)
		child.WaitDelay = time.Minute
		out, err := child.Output()
		require.Equal(t, tt.out, string(out), tt.spec)
		var exit *exec.ExitError
		if tt.code == 0 {
			require.NoError(t, err, tt.spec)
			continue
		}
		require.True(t, errors.As(err, &exit), tt.spec)
		require.Equal(t, tt.code, exit.ExitCode(), tt.spec)
		if tt.signal != 0 {
			require.Equal(t, tt.signal, exit.Sys().(syscall.WaitStatus).Signal(), tt.spec)
		}
	}
}
