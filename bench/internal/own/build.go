package own

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Build builds the coordinator's programs from the module at root into bin, as `make build`
// does. With profiles, coordinatord serves net/http/pprof at the address in the environment
// variable BENCH_PPROF: a file is laid over its sources for that, which the product has not.
func Build(ctx context.Context, root, bin string, profiles bool) error {
	args := []string{"build", "-C", root, "-trimpath", "-o", bin + string(filepath.Separator)}
	if profiles {
		overlay, err := writeOverlay(root, bin)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/coordinatord", "./cmd/witnessd")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the coordinator: %w\n%s", err, out)
	}
	return nil
}

// pprofEnv is the variable that the overlaid file reads.
const pprofEnv = "BENCH_PPROF"

const pprofSource = `package main

import (
	"net/http"
	_ "net/http/pprof"
	"os"
	"runtime"
)

func init() {
	if addr := os.Getenv("` + pprofEnv + `"); addr != "" {
		runtime.SetBlockProfileRate(100_000)
		runtime.SetMutexProfileFraction(100)
		go http.ListenAndServe(addr, nil)
	}
}
`

func writeOverlay(root, bin string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	source := filepath.Join(bin, "pprof.go")
	if err := os.WriteFile(source, []byte(pprofSource), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "cmd", "coordinatord", "pprof_overlay.go"): source},
	})
	if err != nil {
		return "", err
	}
	path := filepath.Join(bin, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}
