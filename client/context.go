package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
)

// maxContextBytes bounds a context file; one with a hundred owners is far below it.
const maxContextBytes = 64 << 10

// seedBytes is the size of a key file, and far below that of any context file.
const seedBytes = 32

// A Context is what a client needs to reach one coordinator and to know that it is the
// right one: where it listens, the pins of coordinator, authority key and witness, and
// the client's own key. It is the content of a context.toml file.
type Context struct {
	// Path is the file that the context was loaded from, made absolute.
	Path string
	// Name is a label for people.
	Name string
	// Socket is the absolute path of the coordinator's Unix socket; empty when QUIC names
	// the endpoint.
	Socket string
	// QUIC is host:port of a remote endpoint; empty when Socket is set.
	QUIC string
	// CoordinatorID pins the authority's identity.
	CoordinatorID frames.CoordinatorID
	// Authority pins the coordinator's public key by its fingerprint.
	Authority frames.Fingerprint
	// WitnessID and WitnessPublicKey pin the issuer of activation certificates.
	WitnessID        frames.WitnessID
	WitnessPublicKey [32]byte
	// KeyFile is the absolute path of the client's 32-byte seed; empty when Agent is set.
	KeyFile string
	// Agent names a key agent that holds the client's key; empty when KeyFile is set.
	Agent string
	// Owners are the process owners where runs can be started.
	Owners []Owner
}

// An Owner names a process owner that a client can dial.
type Owner struct {
	Name      string
	Socket    string // absolute; empty when QUIC is set
	QUIC      string
	Authority frames.Fingerprint
}

// A ContextError says what is wrong with a context file and how to mend it.
type ContextError struct {
	Path    string
	Problem string
}

func (e *ContextError) Error() string { return "context " + e.Path + ": " + e.Problem }

// contextFile is the file's shape, key for key.
type contextFile struct {
	Name             string      `toml:"name,omitempty"`
	Socket           string      `toml:"socket,omitempty"`
	QUIC             string      `toml:"quic,omitempty"`
	CoordinatorID    string      `toml:"coordinator_id"`
	Authority        string      `toml:"authority"`
	WitnessID        string      `toml:"witness_id"`
	WitnessPublicKey string      `toml:"witness_public_key"`
	KeyFile          string      `toml:"key_file,omitempty"`
	Agent            string      `toml:"agent,omitempty"`
	Owner            []ownerFile `toml:"owner,omitempty"`
}

type ownerFile struct {
	Name      string `toml:"name"`
	Socket    string `toml:"socket,omitempty"`
	QUIC      string `toml:"quic,omitempty"`
	Authority string `toml:"authority"`
}

// LoadContext reads a context file. Relative paths in it count from its own directory. An
// unknown key, a missing pin or a file that others may write is a *[ContextError]; a file
// that is absent or unreadable gives the error of the file system inside one.
func LoadContext(path string) (*Context, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("context: %w", err)
	}
	raw, err := readContext(abs)
	if err != nil {
		return nil, err
	}
	var f contextFile
	meta, err := toml.Decode(string(raw), &f)
	if err != nil {
		var parse toml.ParseError
		if errors.As(err, &parse) {
			return nil, &ContextError{abs, fmt.Sprintf("line %d is not valid TOML: %s", parse.Position.Line, parse.Message)}
		}
		return nil, &ContextError{abs, err.Error()}
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return nil, &ContextError{abs, fmt.Sprintf("unknown key %q; remove it or correct its spelling", unknown[0].String())}
	}
	c, problem := f.context(abs)
	if problem != "" {
		return nil, &ContextError{abs, problem}
	}
	return c, nil
}

// readContext reads the file's bytes. The pins decide whom the client trusts, so a file
// that somebody else may write is refused.
func readContext(abs string) ([]byte, error) {
	f, err := os.OpenFile(abs, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("context: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("context: %w", err)
	}
	if !st.Mode().IsRegular() {
		return nil, &ContextError{abs, "not a regular file"}
	}
	if st.Mode().Perm()&0o022 != 0 {
		return nil, &ContextError{abs, fmt.Sprintf("mode %04o lets others change the pins; run chmod 600 on it", st.Mode().Perm())}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxContextBytes+1))
	if err != nil {
		return nil, fmt.Errorf("context: %w", err)
	}
	if len(raw) > maxContextBytes {
		return nil, &ContextError{abs, fmt.Sprintf("larger than %d bytes", maxContextBytes)}
	}
	// The parser quotes what it does not understand, and a key file named by mistake must
	// not be quoted from.
	if len(raw) == seedBytes || !utf8.Valid(raw) {
		return nil, &ContextError{abs, "not a context file"}
	}
	return raw, nil
}

// context turns the file's strings into values; problem is empty when all are good.
func (f *contextFile) context(abs string) (c *Context, problem string) {
	dir := filepath.Dir(abs)
	c = &Context{Path: abs, Name: f.Name, QUIC: f.QUIC, Agent: f.Agent, Socket: at(dir, f.Socket), KeyFile: at(dir, f.KeyFile)}
	if (f.Socket == "") == (f.QUIC == "") {
		return nil, "exactly one of socket and quic must be given"
	}
	if (f.KeyFile == "") == (f.Agent == "") {
		return nil, "exactly one of key_file and agent must be given"
	}
	for _, id := range []struct {
		key, text string
		into      *[16]byte
	}{
		{"coordinator_id", f.CoordinatorID, (*[16]byte)(&c.CoordinatorID)},
		{"witness_id", f.WitnessID, (*[16]byte)(&c.WitnessID)},
	} {
		if err := parseID(id.text, id.into); err != nil {
			return nil, id.key + ": " + err.Error()
		}
	}
	var err error
	if c.Authority, err = handshake.ParseFingerprint(f.Authority); err != nil {
		return nil, fmt.Sprintf("authority: want sha256: and 64 lowercase hex digits: %v", err)
	}
	if c.WitnessPublicKey, err = handshake.ParsePublicKey(f.WitnessPublicKey); err != nil {
		return nil, fmt.Sprintf("witness_public_key: want ed25519: and 64 lowercase hex digits: %v", err)
	}
	seen := map[string]bool{}
	for i, o := range f.Owner {
		where := fmt.Sprintf("owner %d: ", i+1)
		if o.Name == "" || seen[o.Name] {
			return nil, where + "each needs a name of its own"
		}
		seen[o.Name] = true
		if (o.Socket == "") == (o.QUIC == "") {
			return nil, where + "exactly one of socket and quic must be given"
		}
		pin, err := handshake.ParseFingerprint(o.Authority)
		if err != nil {
			return nil, fmt.Sprintf("%sauthority: want sha256: and 64 lowercase hex digits: %v", where, err)
		}
		c.Owners = append(c.Owners, Owner{Name: o.Name, Socket: at(dir, o.Socket), QUIC: o.QUIC, Authority: pin})
	}
	return c, ""
}

// at makes path absolute from dir; an empty path stays empty.
func at(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// parseID reads 32 lowercase hex digits that are not all zero.
func parseID(text string, into *[16]byte) error {
	id, err := frames.ParseID[[16]byte](text)
	if err == nil && text != strings.ToLower(text) {
		err = errors.New("id has uppercase digits")
	}
	if err != nil {
		return fmt.Errorf("want 32 lowercase hex digits: %w", err)
	}
	*into = id
	return nil
}

// Save writes the context to path, atomically, mode 0600. A key file in the directory of
// path is written as its bare name, so that the directory can be moved.
func (c *Context) Save(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("context: %w", err)
	}
	f := contextFile{
		Name: c.Name, Socket: c.Socket, QUIC: c.QUIC, Agent: c.Agent, KeyFile: c.KeyFile,
		CoordinatorID:    c.CoordinatorID.String(),
		Authority:        handshake.FormatFingerprint(c.Authority),
		WitnessID:        c.WitnessID.String(),
		WitnessPublicKey: handshake.FormatPublicKey(c.WitnessPublicKey),
	}
	if filepath.Dir(c.KeyFile) == filepath.Dir(abs) {
		f.KeyFile = filepath.Base(c.KeyFile)
	}
	for _, o := range c.Owners {
		f.Owner = append(f.Owner, ownerFile{Name: o.Name, Socket: o.Socket, QUIC: o.QUIC, Authority: handshake.FormatFingerprint(o.Authority)})
	}
	if _, problem := f.context(abs); problem != "" {
		return &ContextError{abs, problem}
	}
	var buf bytes.Buffer
	buf.WriteString("# What a client needs to reach one coordinator and to know that it is the right one.\n")
	enc := toml.NewEncoder(&buf)
	enc.Indent = ""
	if err := enc.Encode(f); err != nil {
		return fmt.Errorf("context: %w", err)
	}
	return durable.Replace(abs, buf.Bytes(), 0o600)
}
