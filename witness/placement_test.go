package witness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// coordinatorAt makes what a coordinator's state directory always holds.
func coordinatorAt(t *testing.T, dir string, lock bool) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "log"), 0o700))
	name := "state.db"
	if lock {
		name = "store.lock"
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
}

func TestC05_WitnessLivesApart(t *testing.T) {
	for _, tt := range []struct {
		name      string
		make      func(t *testing.T, root string) (dir, coordinator string)
		forbidden bool
	}{
		{"beside it", func(t *testing.T, root string) (string, string) {
			coordinatorAt(t, filepath.Join(root, "coordinator"), true)
			return filepath.Join(root, "witness"), filepath.Join(root, "coordinator")
		}, false},
		{"beside one that does not exist yet", func(t *testing.T, root string) (string, string) {
			return filepath.Join(root, "witness"), filepath.Join(root, "coordinator")
		}, false},
		{"the same directory, configured", func(t *testing.T, root string) (string, string) {
			return filepath.Join(root, "one"), filepath.Join(root, "one")
		}, true},
		{"inside a configured one that is empty", func(t *testing.T, root string) (string, string) {
			return filepath.Join(root, "coordinator", "witness"), filepath.Join(root, "coordinator")
		}, true},
		{"above a configured one that does not exist yet", func(t *testing.T, root string) (string, string) {
			return root, filepath.Join(root, "deep", "coordinator")
		}, true},
		{"the same directory, by its lock", func(t *testing.T, root string) (string, string) {
			coordinatorAt(t, root, true)
			return root, ""
		}, true},
		{"inside, by state.db and log", func(t *testing.T, root string) (string, string) {
			coordinatorAt(t, root, false)
			return filepath.Join(root, "a", "b", "witness"), ""
		}, true},
		{"above, by its lock", func(t *testing.T, root string) (string, string) {
			coordinatorAt(t, filepath.Join(root, "a", "coordinator"), true)
			return root, ""
		}, true},
		{"inside through a symbolic link", func(t *testing.T, root string) (string, string) {
			coordinatorAt(t, filepath.Join(root, "coordinator"), true)
			require.NoError(t, os.Mkdir(filepath.Join(root, "coordinator", "w"), 0o700))
			require.NoError(t, os.Symlink(filepath.Join(root, "coordinator", "w"), filepath.Join(root, "witness")))
			return filepath.Join(root, "witness"), ""
		}, true},
		{"a configured one that is a link to it", func(t *testing.T, root string) (string, string) {
			require.NoError(t, os.Mkdir(filepath.Join(root, "witness"), 0o700))
			require.NoError(t, os.Symlink(filepath.Join(root, "witness"), filepath.Join(root, "coordinator")))
			return filepath.Join(root, "witness"), filepath.Join(root, "coordinator")
		}, true},
		{"on the same file", func(t *testing.T, root string) (string, string) {
			coord, dir := filepath.Join(root, "coordinator"), filepath.Join(root, "witness")
			coordinatorAt(t, coord, false)
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Link(filepath.Join(coord, "state.db"), filepath.Join(dir, stateFile)))
			return dir, coord
		}, true},
		{"with its file behind a symbolic link", func(t *testing.T, root string) (string, string) {
			dir := filepath.Join(root, "witness")
			require.NoError(t, os.Mkdir(dir, 0o700))
			require.NoError(t, os.Symlink(filepath.Join(root, "elsewhere"), filepath.Join(dir, stateFile)))
			return dir, ""
		}, true},
		{"beside a directory with a log but no store", func(t *testing.T, root string) (string, string) {
			require.NoError(t, os.MkdirAll(filepath.Join(root, "log"), 0o700))
			return filepath.Join(root, "witness"), ""
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, coordinator := tt.make(t, t.TempDir())
			require.NoError(t, os.MkdirAll(dir, 0o700))
			err := CheckPlacement(dir, coordinator)
			if !tt.forbidden {
				require.NoError(t, err)
				return
			}
			var placement *PlacementError
			require.ErrorAs(t, err, &placement)
			require.Contains(t, err.Error(), "give the witness a directory of its own")
			if coordinator == "" {
				require.Error(t, Create(dir, testWitness))
			}
			o := options(startClock(), bootOne)
			o.CoordinatorDir = coordinator
			_, err = Open(dir, o)
			require.ErrorAs(t, err, &placement)
		})
	}
}
