package witness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Bounds of the search below a witness directory, which holds a handful of files: enough to
// find a coordinator that someone put there, never a walk over a whole disk.
const (
	placementDepth   = 4
	placementEntries = 4096
)

// CheckPlacement refuses a witness directory that is, lies in, or lies above a coordinator's
// directory, or whose state file is one of the coordinator's files, with a *[PlacementError].
// coordinatorDir may be empty or not exist yet; a coordinator's directory is also recognised by
// its layout. dir must exist.
func CheckPlacement(dir, coordinatorDir string) error {
	real, err := resolve(dir)
	if err != nil {
		return fmt.Errorf("witness directory: %w", err)
	}
	if coordinatorDir != "" {
		if err := checkAgainst(real, coordinatorDir); err != nil {
			return err
		}
	}
	for d := real; ; d = filepath.Dir(d) {
		if isCoordinator(d) {
			return &PlacementError{Dir: dir, Coordinator: d, Relation: relation(d == real, "is", "lies inside")}
		}
		if d == filepath.Dir(d) {
			break
		}
	}
	return checkBelow(real)
}

// checkAgainst compares with a coordinator's directory that is known.
func checkAgainst(dir, coordinatorDir string) error {
	coord, err := resolveExisting(coordinatorDir)
	if err != nil {
		return fmt.Errorf("coordinator directory: %w", err)
	}
	switch {
	case sameFile(dir, coord):
		return &PlacementError{Dir: dir, Coordinator: coord, Relation: "is"}
	case within(dir, coord):
		return &PlacementError{Dir: dir, Coordinator: coord, Relation: "lies inside"}
	case within(coord, dir):
		return &PlacementError{Dir: dir, Coordinator: coord, Relation: "lies above"}
	}
	for _, name := range []string{"state.db", "store.lock"} {
		for _, own := range []string{stateFile, lockFile} {
			if sameFile(filepath.Join(dir, own), filepath.Join(coord, name)) {
				return &PlacementError{Dir: dir, Coordinator: filepath.Join(coord, name), Relation: "has " + own + " on the same file as"}
			}
		}
	}
	return nil
}

// checkBelow looks for a coordinator's directory under dir, and for a state file that has
// another name somewhere, which would be a second way in.
func checkBelow(dir string) error {
	for _, own := range []string{stateFile, lockFile} {
		if st, err := os.Lstat(filepath.Join(dir, own)); err == nil && st.Mode()&fs.ModeSymlink != 0 {
			return &PlacementError{Dir: dir, Coordinator: "or another directory through a symbolic link", Relation: "has " + own + " in"}
		}
	}
	seen := 0
	base := depth(dir)
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return fs.SkipDir // not ours to read, so not a coordinator that we could damage
			}
			return err
		}
		if seen++; seen > placementEntries {
			return fmt.Errorf("witness directory %s holds more than %d entries; give the witness a directory of its own", dir, placementEntries)
		}
		switch {
		case !d.IsDir():
			return nil
		case isCoordinator(path):
			return &PlacementError{Dir: dir, Coordinator: path, Relation: "lies above"}
		case depth(path)-base >= placementDepth:
			return fs.SkipDir
		}
		return nil
	})
}

// isCoordinator recognises a coordinator's state directory by what it always holds.
func isCoordinator(dir string) bool {
	return isRegular(filepath.Join(dir, "store.lock")) ||
		isRegular(filepath.Join(dir, "state.db")) && isDir(filepath.Join(dir, "log"))
}

func isRegular(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

func sameFile(a, b string) bool {
	sa, err := os.Stat(a)
	if err != nil {
		return false
	}
	sb, err := os.Stat(b)
	return err == nil && os.SameFile(sa, sb)
}

// within says whether path is dir or lies below it, judged by the directories themselves, so
// that bind mounts and other names of one directory do not hide it.
func within(path, dir string) bool {
	for {
		if path == dir || sameFile(path, dir) {
			return true
		}
		up := filepath.Dir(path)
		if up == path {
			return false
		}
		path = up
	}
}

func resolve(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// resolveExisting resolves as much of dir as exists.
func resolveExisting(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(abs)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || abs == filepath.Dir(abs) {
			return "", err
		}
		rest = filepath.Join(filepath.Base(abs), rest)
		abs = filepath.Dir(abs)
	}
}

func depth(path string) (n int) {
	for up := filepath.Dir(path); up != path; path, up = up, filepath.Dir(up) {
		n++
	}
	return n
}

func relation(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}
