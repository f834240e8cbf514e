package cirunner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"coordinator/client"
	"coordinator/docs/examples/cirunner"
	"coordinator/frames"
)

// A build of three stages whose coordinator is killed with SIGKILL in the middle of the second. The
// stage ends while there is no coordinator; the runner goes on when there is one again. Each stage
// appends a line to a file, which shows that it ran once.
func Example() {
	daemons := up() // `coordctl up` with a lease of 6 s
	defer daemons.down()
	c, err := client.LoadContext(filepath.Join(daemons.state, "client", "context.toml"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()

	work := filepath.Join(daemons.state, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		log.Fatal(err)
	}
	sh := func(script string) []string { return []string{"sh", "-c", script} }
	pipeline := cirunner.Pipeline{Title: "Nightly build", Dir: work, Artifacts: []string{"app.tar"}, Stages: []cirunner.Stage{
		{Name: "lint", Argv: sh("echo lint >>ran; echo nothing to say")},
		{Name: "test", Argv: sh("echo test >>ran; until [ -e killed ]; do sleep 0.02; done; echo ok")},
		{Name: "package", Argv: sh("echo package >>ran; tar cf app.tar ran")},
	}}

	go func() {
		for !strings.Contains(daemons.read(work, "ran"), "test") {
			time.Sleep(20 * time.Millisecond)
		}
		daemons.killCoordinator()
		if err := os.WriteFile(filepath.Join(work, "killed"), nil, 0o600); err != nil {
			log.Fatal(err)
		}
	}()
	runner := cirunner.Runner{Context: c}
	passed, err := runner.Build(ctx, pipeline, filepath.Join(daemons.state, "build"))
	var failed *cirunner.StageError
	if errors.As(err, &failed) {
		log.Fatalf("stage %s ended with status %d", failed.Stage, failed.Status)
	} else if err != nil {
		log.Fatal(err) // not over: call Build again with the same directory
	}
	for _, p := range passed {
		fmt.Printf("%s passed, and its evidence verifies: %t\n", p.Stage, p.Proof.Facts > 0)
	}
	fmt.Print(daemons.read(work, "ran"))
	for _, m := range artifacts(ctx, c) {
		fmt.Println("artifacts:", strings.Join(m, ", "))
	}
	// Output:
	// lint passed, and its evidence verifies: true
	// test passed, and its evidence verifies: true
	// package passed, and its evidence verifies: true
	// lint
	// test
	// package
	// artifacts: app.tar
}

// artifacts are the names in the manifests of builds.
func artifacts(ctx context.Context, c *client.Context) (out [][]string) {
	replica, err := client.OpenReplica(c, client.ReplicaOptions{Options: client.Options{Offered: frames.CapArtifactManifests}})
	if err != nil {
		log.Fatal(err)
	}
	defer replica.Close()
	view, err := replica.WaitFor(ctx, func(*client.View) bool { return true })
	if err != nil {
		log.Fatal(err)
	}
	for r := range view.Kind(frames.KindArtifactManifest) {
		var digests map[string]string
		if m := view.Manifest(frames.ArtifactID(r.ID())); json.Unmarshal(m.Manifest, &digests) == nil { // else it is evidence
			var names []string
			for name := range digests {
				names = append(names, name)
			}
			out = append(out, names)
		}
	}
	return out
}

// killCoordinator ends it without a warning. Its lock file holds its process id.
func (u *upped) killCoordinator() {
	pid := 0
	if _, err := fmt.Sscan(u.read(u.state, "coordinator", "store.lock"), &pid); err != nil {
		log.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		log.Fatal(err)
	}
}
