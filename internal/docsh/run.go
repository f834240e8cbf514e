package docsh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Options say how a document is run. The zero value is of use.
type Options struct {
	// Bin holds the product's programs. Empty builds them; TestMain is then [Main].
	Bin string
	// Langs are the languages of blocks that run. Empty means sh.
	Langs []string
	// Timeout bounds one block. Zero means one minute.
	Timeout time.Duration
	// Env is added to the environment of every shell, as NAME=VALUE.
	Env []string
	// Prepare fills the scratch directory of a host, "" if the document names none, before
	// its first block.
	Prepare func(host, dir string) error
	// Host says how the shell of a host is entered; nil, and an empty answer, run it here.
	Host func(host string) (prefix []string)
	// Before is a script that runs on the host "" before the first block, for what the
	// document takes as given.
	Before string
}

// An Error is a block that did not do what its document says.
type Error struct {
	Block   *Block
	Line    int    // in the document
	Command string // as far as it is known, else the whole block
	What    string
	Output  string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d: %s\ncommand:\n%s\noutput:\n%s", e.Block.File, e.Line, e.What, inset(e.Command), inset(e.Output))
}

func inset(s string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n    ")
}

// Run runs the blocks of a document in order and fails the test at the first that does
// not do what the document says. It returns how many ran.
func Run(t *testing.T, file string, o Options) int {
	t.Helper()
	blocks, err := Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if o.Bin == "" {
		if o.Bin, err = Programs(); err != nil {
			t.Fatal(err)
		}
	}
	ran, err := play(t.Context(), blocks, o, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	return ran
}

// A stage is one run of a document.
type stage struct {
	o      Options
	root   string
	shells map[string]*shell
	say    func(format string, args ...any)
}

func play(ctx context.Context, blocks []Block, o Options, say func(string, ...any)) (ran int, err error) {
	root, err := os.MkdirTemp("", "d") // short, for socket paths
	if err != nil {
		return 0, err
	}
	s := &stage{o: o, root: root, shells: make(map[string]*shell), say: say}
	defer func() { err = errors.Join(err, s.close()) }()
	if o.Before != "" {
		if _, err := s.run(ctx, &Block{File: "before", Line: 1, Text: o.Before}); err != nil {
			return 0, err
		}
	}
	var before *Block // what an output block speaks of
	var output string
	for i := range blocks {
		b := &blocks[i]
		switch {
		case b.Output && before == nil:
			return ran, fmt.Errorf("%s:%d: no block before this output has run", b.File, b.Line)
		case b.Output && before.Skip == "" && !matches(b.Text, output):
			return ran, &Error{Block: b, Line: b.Line, Command: before.script(),
				What: "this is not what was printed:\n" + inset(b.Text), Output: output}
		case b.Output || !b.runs(o.Langs):
			before = nil
			continue
		}
		before = b
		if b.Skip != "" {
			say("%s:%d: skipped: %s", b.File, b.Line, b.Skip)
			continue
		}
		output = ""
		for host := range strings.SplitSeq(b.Host, ",") {
			on := *b
			on.Host = host
			printed, err := s.run(ctx, &on)
			if err != nil {
				return ran, err
			}
			output += printed
		}
		ran++
	}
	return ran, nil
}

func (b *Block) runs(langs []string) bool {
	return b.Lang == "sh" && len(langs) == 0 || slices.Contains(langs, b.Lang)
}

// run runs one block in the shell of its host.
func (s *stage) run(ctx context.Context, b *Block) (string, error) {
	sh, err := s.shell(b.Host)
	if err != nil {
		return "", fmt.Errorf("%s:%d: %w", b.File, b.Line, err)
	}
	limit := b.Timeout
	if limit == 0 {
		limit = s.o.Timeout
	}
	if limit == 0 {
		limit = time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %v", limit))
	defer cancel()
	began := time.Now()
	output, err := sh.run(ctx, b)
	s.say("%s:%d: %.1fs", b.File, b.Line, time.Since(began).Seconds())
	return output, err
}

// shell is the shell of a host, started at its first block.
func (s *stage) shell(host string) (*shell, error) {
	if sh := s.shells[host]; sh != nil {
		return sh, nil
	}
	name := host
	if name == "" {
		name = "h"
	}
	home := filepath.Join(s.root, name)
	for _, dir := range []string{home, filepath.Join(home, "tmp"), filepath.Join(home, "run"), filepath.Join(home, "w")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	work := filepath.Join(home, "w")
	if s.o.Prepare != nil {
		if err := s.o.Prepare(host, work); err != nil {
			return nil, err
		}
	}
	var prefix []string
	if s.o.Host != nil {
		prefix = s.o.Host(host)
	}
	sh, err := start(filepath.Join(s.root, "docsh-"+name), work, prefix, s.environment(home))
	s.shells[host] = sh
	return sh, err
}

// environment is that of a login on a machine that has nothing but the programs.
func (s *stage) environment(home string) []string {
	env := []string{
		"PATH=" + s.o.Bin + ":" + os.Getenv("PATH"),
		"HOME=" + home, "TMPDIR=" + filepath.Join(home, "tmp"), "XDG_RUNTIME_DIR=" + filepath.Join(home, "run"),
		"XDG_STATE_HOME=" + filepath.Join(home, ".local/state"), "XDG_CONFIG_HOME=" + filepath.Join(home, ".config"),
		"XDG_CACHE_HOME=" + filepath.Join(home, ".cache"), "XDG_DATA_HOME=" + filepath.Join(home, ".local/share"),
		"LANG=C.UTF-8", "TERM=dumb", "USER=" + os.Getenv("USER"), "SHELL=/bin/bash",
	}
	// The caches of go lie in the home of whoever runs the test.
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOFLAGS", "GOPROXY"} {
		if out, err := exec.Command("go", "env", name).Output(); err == nil {
			env = append(env, name+"="+strings.TrimSpace(string(out)))
		}
	}
	return append(env, s.o.Env...)
}

func (s *stage) close() error {
	for _, sh := range s.shells {
		if sh != nil {
			sh.close()
		}
	}
	return os.RemoveAll(s.root)
}
