package owner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"coordinator/frames"
)

// ExecutorSchema is the one schema of SPAWN documents: a JSON object with the members of
// [Document].
const ExecutorSchema = 1

const (
	defaultRows, defaultCols = 24, 80
	defaultTerm              = "xterm-256color"
	defaultGraceSecs         = 5
	maxGraceSecs             = 3600
	maxTerm                  = 128
)

// A Document says what a SPAWN runs: `{argv:[…], cwd?, env?:{…}, rows?, cols?, term?,
// grace_secs?}`. Unknown members are refused, as are those given twice or null.
type Document struct {
	// Argv is the program and its arguments; at least the program. Without a slash it is
	// looked up in PATH.
	Argv []string `json:"argv"`
	// Cwd is an absolute directory. Empty means the owner's home directory.
	Cwd string `json:"cwd,omitempty"`
	// Env is added to the owner's basic environment.
	Env map[string]string `json:"env,omitempty"`
	// Rows and Cols are the size of the terminal. Zero means 24 and 80.
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	// Term is the value of TERM. Empty means xterm-256color.
	Term string `json:"term,omitempty"`
	// GraceSecs is how long a KILL waits between SIGTERM and SIGKILL, and how long a
	// descendant may hold the terminal once the process has ended. Nil means 5; at most 3600.
	GraceSecs *uint32 `json:"grace_secs,omitempty"`
}

// Encode is the document as a SPAWN carries it.
func (d *Document) Encode() ([]byte, error) { return json.Marshal(d) }

// ParseDocument reads and checks a document. Its errors name the member and never a value.
func ParseDocument(raw []byte) (*Document, error) {
	if len(raw) > frames.MaxTypedPayload {
		return nil, fmt.Errorf("document has more than %d bytes", frames.MaxTypedPayload)
	}
	if !utf8.Valid(raw) {
		return nil, errors.New("document is not UTF-8")
	}
	d := new(Document)
	seen := map[string]bool{}
	err := eachMember(raw, func(name string, value json.RawMessage) error {
		if seen[name] {
			return fmt.Errorf("%s is given twice", quoted(name))
		}
		seen[name] = true
		return d.set(name, value)
	})
	if err != nil {
		return nil, fmt.Errorf("document: %w", err)
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("document: %w", err)
	}
	return d, nil
}

// eachMember walks the members of one JSON object, which must be all there is.
func eachMember(raw []byte, fn func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return errors.New("not a JSON object")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return errors.New("not a JSON object")
		}
		if err := fn(name.(string), value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return errors.New("not a JSON object")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON object")
	}
	return nil
}

// set takes one member. Names are matched exactly.
func (d *Document) set(name string, value json.RawMessage) error {
	var to any
	switch name {
	case "argv":
		to = &d.Argv
	case "cwd":
		to = &d.Cwd
	case "env":
		return d.setEnv(value)
	case "rows":
		to = &d.Rows
	case "cols":
		to = &d.Cols
	case "term":
		to = &d.Term
	case "grace_secs":
		to = &d.GraceSecs
	default:
		return fmt.Errorf("%s is not a known member", quoted(name))
	}
	if string(value) == "null" || name == "argv" && hasNull(value) {
		return fmt.Errorf("%s is null", name)
	}
	if err := json.Unmarshal(value, to); err != nil {
		return fmt.Errorf("%s has the wrong type or is out of range", name)
	}
	if name == "cwd" && d.Cwd == "" || name == "term" && d.Term == "" || name == "rows" && d.Rows == 0 || name == "cols" && d.Cols == 0 {
		return fmt.Errorf("%s is empty", name)
	}
	return nil
}

// hasNull finds a null in an array of strings, which would read as an empty string.
func hasNull(value json.RawMessage) bool {
	var items []json.RawMessage
	return json.Unmarshal(value, &items) == nil && slices.ContainsFunc(items, func(v json.RawMessage) bool { return string(v) == "null" })
}

// setEnv takes env, whose members may not be given twice either.
func (d *Document) setEnv(value json.RawMessage) error {
	d.Env = map[string]string{}
	err := eachMember(value, func(name string, value json.RawMessage) error {
		if _, twice := d.Env[name]; twice {
			return errors.New("a variable is given twice")
		}
		var s string
		if string(value) == "null" || json.Unmarshal(value, &s) != nil {
			return errors.New("a variable is not a string")
		}
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(s, 0) {
			return errors.New("a variable has an empty name, an equals sign in it or a zero byte")
		}
		d.Env[name] = s
		return nil
	})
	if err != nil {
		return fmt.Errorf("env: %w", err)
	}
	return nil
}

func (d *Document) check() error {
	switch {
	case len(d.Argv) == 0:
		return errors.New("argv is missing or empty")
	case d.Argv[0] == "":
		return errors.New("argv names no program")
	case slices.ContainsFunc(d.Argv, func(s string) bool { return strings.ContainsRune(s, 0) }):
		return errors.New("argv holds a zero byte")
	case d.Cwd != "" && !filepath.IsAbs(d.Cwd):
		return errors.New("cwd is not an absolute path")
	case strings.ContainsRune(d.Cwd, 0):
		return errors.New("cwd holds a zero byte")
	case len(d.Term) > maxTerm || strings.ContainsRune(d.Term, 0):
		return errors.New("term is too long or holds a zero byte")
	case d.GraceSecs != nil && *d.GraceSecs > maxGraceSecs:
		return fmt.Errorf("grace_secs is above %d", maxGraceSecs)
	}
	return nil
}

func quoted(name string) string {
	if len(name) > 40 {
		name = name[:40] + "…"
	}
	return fmt.Sprintf("%q", name)
}

// size is the terminal's.
func (d *Document) size() (rows, cols uint16) {
	rows, cols = d.Rows, d.Cols
	if rows == 0 {
		rows = defaultRows
	}
	if cols == 0 {
		cols = defaultCols
	}
	return rows, cols
}

func (d *Document) grace() time.Duration {
	if d.GraceSecs == nil {
		return defaultGraceSecs * time.Second
	}
	return time.Duration(*d.GraceSecs) * time.Second
}

// inherited are the variables that a process gets from the owner's own environment. All others
// stay with the owner: they may hold what is nobody else's business.
var inherited = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"}

// environment is what the process runs in, sorted: basic variables of the owner, TERM, then
// the document's own.
func (d *Document) environment(own []string) []string {
	env := map[string]string{}
	for _, kv := range own {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(inherited, name) || strings.HasPrefix(name, "LC_") {
			env[name] = value
		}
	}
	env["TERM"] = defaultTerm
	if d.Term != "" {
		env["TERM"] = d.Term
	}
	for name, value := range d.Env {
		env[name] = value
	}
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out
}
