package handshake

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"coordinator/frames"
)

// Bounds of a registry file, held before anything is parsed.
const (
	MaxRegistryBytes   = 1 << 20
	MaxRegistryRecords = 4096
	maxRegistryLine    = 1024 // a full record takes about 300
	maxLabel           = 64
)

// ScopeNames gives the name of each scope bit of one service.
type ScopeNames map[string]uint64

// EndpointScopes are the scopes of the coordinator endpoint (protocol.md §5.6).
func EndpointScopes() ScopeNames {
	return ScopeNames{
		"work_read":        uint64(frames.ScopeWorkRead),
		"work_command":     uint64(frames.ScopeWorkCommand),
		"terminal_control": uint64(frames.ScopeTerminalControl),
		"artifact_read":    uint64(frames.ScopeArtifactRead),
		"signal_ack":       uint64(frames.ScopeSignalAck),
		"admin":            uint64(frames.ScopeAdmin),
	}
}

// All is every bit that has a name.
func (n ScopeNames) All() (bits uint64) {
	for _, b := range n {
		bits |= b
	}
	return bits
}

// Parse reads a comma-separated list of scope names. An empty list, an unknown
// name and a name given twice are errors.
func (n ScopeNames) Parse(s string) (bits uint64, err error) {
	for name := range strings.SplitSeq(s, ",") {
		b, ok := n[name]
		if !ok {
			return 0, fmt.Errorf("unknown scope; the known ones are %s", n.Format(n.All()))
		}
		if bits&b != 0 {
			return 0, errors.New("a scope is named twice")
		}
		bits |= b
	}
	return bits, nil
}

// Format lists the names of bits, lowest bit first. Bits without a name are
// left out.
func (n ScopeNames) Format(bits uint64) string {
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		if n[a] < n[b] {
			return -1
		}
		return 1
	})
	return strings.Join(slices.DeleteFunc(names, func(s string) bool { return bits&n[s] == 0 }), ",")
}

// Rules are what a service asks of its registry records.
type Rules struct {
	Scopes ScopeNames
	// NeedCoordinator: each record names the coordinator that its key may act
	// for (the two internal links); without it none may.
	NeedCoordinator bool
}

// A Record enrols one workload key. Times are Unix seconds.
type Record struct {
	PublicKey   [32]byte
	KeyID       frames.KeyID
	Scope       uint64 // ceiling, never zero
	ExpiresAt   uint64
	RevokedAt   uint64               // 0: not revoked
	Coordinator frames.CoordinatorID // zero unless the service needs one
	Label       string
}

// Revoked reports whether the record is revoked. A revocation time in the
// future counts too: it tells when the operator acted, on whatever clock, and
// a clock set back must not revive a key.
func (r *Record) Revoked() bool { return r.RevokedAt != 0 }

// Line is the record's line in a registry file, without the newline.
func (r *Record) Line(rules Rules) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s scope=%s expires=%s", FormatPublicKey(r.PublicKey), rules.Scopes.Format(r.Scope), formatTime(r.ExpiresAt))
	if r.Revoked() {
		fmt.Fprintf(&b, " revoked=%s", formatTime(r.RevokedAt))
	}
	if r.Coordinator != (frames.CoordinatorID{}) {
		fmt.Fprintf(&b, " coordinator=%x", r.Coordinator[:])
	}
	fmt.Fprintf(&b, " label=%s", r.Label)
	return b.String()
}

func formatTime(secs uint64) string { return time.Unix(int64(secs), 0).UTC().Format(time.RFC3339) }

// maxTime is the last second that RFC 3339 can write.
var maxTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).Unix()

func parseTime(s string) (uint64, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.Nanosecond() != 0 || t.Unix() <= 0 || t.Unix() > maxTime {
		return 0, errors.New("not a time like 2027-01-01T00:00:00Z")
	}
	return uint64(t.Unix()), nil
}

// A lineProblem says what is wrong with one line and how to mend it. It never
// repeats the line: somebody may have pasted a secret there.
type lineProblem struct{ problem, mend string }

func (p *lineProblem) Error() string { return p.problem + "; " + p.mend }

func badLine(mend, format string, args ...any) error {
	return &lineProblem{problem: fmt.Sprintf(format, args...), mend: mend}
}

// ParseRecord reads one line that is neither blank nor a comment. A comment
// after the fields, set off by a space, is skipped.
func ParseRecord(line string, rules Rules) (Record, error) {
	if len(line) > maxRegistryLine {
		return Record{}, badLine("shorten its comment", "the line is longer than %d bytes", maxRegistryLine)
	}
	line, _ = splitComment(line)
	for i := range len(line) {
		if c := line[i]; (c < ' ' || c > '~') && c != '\t' {
			return Record{}, badLine("write plain ASCII with line feeds only", "byte %d is not printable", i+1)
		}
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return Record{}, badLine("write a record or a # comment", "the line is empty")
	}
	pub, err := ParsePublicKey(fields[0])
	if err != nil {
		return Record{}, badLine("take the ed25519:… line that the key's owner prints, or remove this one", "the public key is refused: %v", err)
	}
	r := Record{PublicKey: pub, KeyID: KeyIDOf(pub)}
	seen := map[string]bool{}
	for _, f := range fields[1:] {
		name, value, ok := strings.Cut(f, "=")
		if !ok || value == "" {
			return Record{}, badLine("write each field as name=value", "a field has no name or no value")
		}
		if seen[name] {
			return Record{}, badLine("keep one of them", "a field is given twice")
		}
		seen[name] = true
		if err := r.set(name, value, rules); err != nil {
			return Record{}, err
		}
	}
	for _, name := range []string{"scope", "expires", "label"} {
		if !seen[name] {
			return Record{}, badLine("add it", "%s= is missing", name)
		}
	}
	if rules.NeedCoordinator && !seen["coordinator"] {
		return Record{}, badLine("add coordinator=<32 hex> of the coordinator that this key acts for", "coordinator= is missing")
	}
	return r, nil
}

// set parses one field into r.
func (r *Record) set(name, value string, rules Rules) (err error) {
	switch name {
	case "scope":
		if r.Scope, err = rules.Scopes.Parse(value); err != nil {
			return badLine("correct scope=", "%v", err)
		}
	case "expires":
		if r.ExpiresAt, err = parseTime(value); err != nil {
			return badLine("correct expires=", "%v", err)
		}
	case "revoked":
		if r.RevokedAt, err = parseTime(value); err != nil {
			return badLine("correct revoked=", "%v", err)
		}
	case "coordinator":
		if !rules.NeedCoordinator {
			return badLine("remove it", "coordinator= has no meaning in this registry")
		}
		if value != strings.ToLower(value) {
			return badLine("write it in lowercase", "coordinator= is not 32 lowercase hex digits")
		}
		if r.Coordinator, err = frames.ParseID[frames.CoordinatorID](value); err != nil {
			return badLine("write 32 lowercase hex digits, not all zero", "coordinator= is refused: %v", err)
		}
	case "label":
		if err := CheckLabel(value); err != nil {
			return badLine("correct label=", "%v", err)
		}
		r.Label = value
	default:
		return badLine("the fields are scope, expires, revoked, coordinator and label", "a field is unknown")
	}
	return nil
}

// CheckLabel refuses what is not one word of letters, digits and ._@:+/-, at
// most 64 bytes.
func CheckLabel(s string) error {
	foreign := strings.IndexFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._@:+/-", c))
	})
	if s == "" || len(s) > maxLabel || foreign >= 0 {
		return fmt.Errorf("a label is one word of letters, digits and ._@:+/-, at most %d bytes", maxLabel)
	}
	return nil
}

// splitComment parts a line at a # that begins it or follows white space.
func splitComment(line string) (fields, comment string) {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i], line[i:]
		}
	}
	return line, ""
}

// A RegistryError refuses a registry file for one of its lines (from 1).
type RegistryError struct {
	Path          string
	Line          int
	Problem, Mend string
}

func (e *RegistryError) Error() string {
	return fmt.Sprintf("%s line %d: %s; %s", e.Path, e.Line, e.Problem, e.Mend)
}

// parseRegistry reads a whole file; one bad record refuses all of it. An empty
// file and an unfinished last line are what a writer leaves half-way, so they
// are refused too; a registry of no keys holds a comment.
func parseRegistry(path string, data []byte, rules Rules) ([]Record, error) {
	if len(data) == 0 {
		return nil, &RegistryError{path, 1, "the file is empty", "a registry without keys holds a # comment"}
	}
	var records []Record
	seen := map[frames.KeyID]int{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		text, ended := bytes.CutSuffix(line, []byte("\n"))
		if !ended {
			return nil, &RegistryError{path, number, "the last line does not end in a line feed, as if half written", "end it with one"}
		}
		fields, _ := splitComment(string(text))
		if strings.TrimLeft(fields, " \t") == "" {
			continue
		}
		r, err := ParseRecord(string(text), rules)
		if err != nil {
			p := err.(*lineProblem) // ParseRecord returns no other
			return nil, &RegistryError{path, number, p.problem, p.mend}
		}
		if first := seen[r.KeyID]; first != 0 {
			return nil, &RegistryError{path, number, fmt.Sprintf("the key of line %d again", first), "keep one of them"}
		}
		if len(records) == MaxRegistryRecords {
			return nil, &RegistryError{path, number, fmt.Sprintf("more than %d records", MaxRegistryRecords), "remove some that expired"}
		}
		seen[r.KeyID] = number
		records = append(records, r)
	}
	return records, nil
}
