package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"coordinator/frames"
	"coordinator/server/store"
)

// Names of the files of a backup beside those of the store.
const (
	ManifestFile  = "manifest.json"
	ConfigFile    = "coordinator.toml"
	AuthorityFile = "workload-authority.ed25519"
	RegistryFile  = "workload-keys"
)

const (
	// Format is the newest form of a manifest that this program reads.
	Format = 1
	// maxManifest bounds manifest.json: 100,000 segments, which is 6 TiB of log.
	maxManifest = 16 << 20
)

// configFiles are what a backup takes from the state directory beside the store.
var configFiles = []string{ConfigFile, AuthorityFile, RegistryFile}

// A Cut says which moment of which store a backup is of.
type Cut struct {
	Schema           uint32 `json:"schema"` // of the store's files
	CoordinatorID    string `json:"coordinator_id"`
	StoreIncarnation string `json:"store_incarnation,omitempty"`
	// The last activation that the store has installed (protocol.md §4).
	Epoch      uint64 `json:"authority_epoch"`
	Activation uint64 `json:"activation_sequence"`
	// EventCut is the newest event, Commit the newest commit in it.
	EventCut uint64    `json:"event_cut"`
	Commit   uint64    `json:"commit"`
	Time     time.Time `json:"time"`
	// LeaseExpiresAt is the end of the lease as of the cut, Unix seconds; zero when no
	// coordinator ran.
	LeaseExpiresAt uint64 `json:"lease_expires_at,omitempty"`
}

// CutOf is the cut of a store in this state.
func CutOf(st store.State, at time.Time) Cut {
	c := Cut{
		Schema: store.Schema(), CoordinatorID: st.CoordinatorID.String(), Epoch: uint64(st.Epoch), Activation: uint64(st.Activation),
		EventCut: uint64(st.Head), Commit: st.Commit, Time: at.UTC().Truncate(time.Second),
	}
	if st.Incarnation != (frames.IncarnationID{}) {
		c.StoreIncarnation = st.Incarnation.String()
	}
	return c
}

// Agrees reports whether c is the same moment of the same store.
func (c *Cut) Agrees(have Cut) error {
	if have.CoordinatorID != c.CoordinatorID || have.StoreIncarnation != c.StoreIncarnation ||
		have.Epoch != c.Epoch || have.Activation != c.Activation || have.EventCut != c.EventCut || have.Commit != c.Commit {
		return fmt.Errorf("the store is of coordinator %s at event %d, commit %d, epoch %d; the manifest says coordinator %s at event %d, commit %d, epoch %d",
			have.CoordinatorID, have.EventCut, have.Commit, have.Epoch, c.CoordinatorID, c.EventCut, c.Commit, c.Epoch)
	}
	return nil
}

// A File is one file of a backup.
type File struct {
	Name   string `json:"name"` // with slashes, in the backup
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// A Manifest is what manifest.json says.
type Manifest struct {
	Format int `json:"format"`
	Cut
	// Version is the program that made the backup.
	Version string `json:"version"`
	// Source and Host are where the state directory was.
	Source string `json:"source"`
	Host   string `json:"host"`
	// LinkKey is the public key of the link.ed25519 that is not in the backup: whoever brings
	// the backup back revokes it.
	LinkKey string `json:"link_key,omitempty"`
	Files   []File `json:"files"`
}

// Bytes is the size of all files.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// A DamageError says what is wrong with a backup. It was left as it is.
type DamageError struct {
	Path    string
	Problem string
}

// Error names the file.
func (e *DamageError) Error() string {
	return fmt.Sprintf("backup is damaged: %s %s; use another backup", e.Path, e.Problem)
}

// ErrNoManifest means that a directory is no backup, or one that was never finished.
var ErrNoManifest = errors.New("no " + ManifestFile + " here: not a backup, or one that was interrupted before its end")

// sealed is manifest.json: the manifest, and the digest of its compact form.
type sealed struct {
	Backup json.RawMessage `json:"backup"`
	SHA256 string          `json:"sha256"`
}

// encode lays the manifest out as its file.
func (m *Manifest) encode() ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	out, err := json.MarshalIndent(sealed{Backup: body, SHA256: hex.EncodeToString(sum[:])}, "", "  ")
	return append(out, '\n'), err
}

// ReadManifest reads the manifest of the backup in dir and nothing else. A newer one is a
// *store.SchemaError.
func ReadManifest(dir string) (*Manifest, error) {
	path := filepath.Join(dir, ManifestFile)
	f, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", dir, ErrNoManifest)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxManifest {
		return nil, &DamageError{path, "is larger than a manifest"}
	}
	m, problem := parse(data)
	if problem != "" {
		return nil, &DamageError{path, problem}
	}
	switch {
	case m.Format > Format:
		return nil, &store.SchemaError{File: path, Have: uint32(m.Format), Want: Format}
	case m.Schema > store.Schema():
		return nil, &store.SchemaError{File: path, Have: m.Schema, Want: store.Schema()}
	}
	if problem := m.check(); problem != "" {
		return nil, &DamageError{path, problem}
	}
	return m, nil
}

// parse reads what every form of a manifest has in common.
func parse(data []byte) (*Manifest, string) {
	var s sealed
	var body bytes.Buffer
	if json.Unmarshal(data, &s) != nil || json.Compact(&body, s.Backup) != nil {
		return nil, "is not a manifest"
	}
	if sum := sha256.Sum256(body.Bytes()); hex.EncodeToString(sum[:]) != s.SHA256 {
		return nil, "does not have the digest that it states"
	}
	m := new(Manifest)
	if json.Unmarshal(s.Backup, m) != nil || m.Format < 1 {
		return nil, "is not a manifest"
	}
	return m, ""
}

var (
	segmentFile = regexp.MustCompile(`^` + store.LogDir + `/[0-9a-f]{16}\.seg$`)
	digest      = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// check refuses files that no backup has, and a backup without one that it needs.
func (m *Manifest) check() string {
	if _, err := frames.ParseID[frames.CoordinatorID](m.CoordinatorID); err != nil {
		return "names no coordinator"
	}
	seen, segments := make(map[string]bool), 0
	for _, f := range m.Files {
		segment := segmentFile.MatchString(f.Name)
		switch {
		case !segment && f.Name != store.StateFile && !slices.Contains(configFiles, f.Name):
			return fmt.Sprintf("lists %q, which no backup has", f.Name)
		case seen[f.Name], f.Bytes < 0, !digest.MatchString(f.SHA256):
			return fmt.Sprintf("has a bad entry for %s", f.Name)
		case segment:
			segments++
		}
		seen[f.Name] = true
	}
	for _, name := range append(slices.Clone(configFiles), store.StateFile) {
		if !seen[name] {
			return "does not list " + name
		}
	}
	if segments == 0 {
		return "lists no segment of the log"
	}
	return ""
}

// open opens a regular file for reading, and nothing else that has its name.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, &DamageError{path, "is a symbolic link"}
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		if err != nil {
			return nil, err
		}
		return nil, &DamageError{path, "is not a regular file"}
	}
	return f, nil
}

// Check reads the whole backup in dir: every file that the manifest lists must be there with
// its size and digest, and no other. Dir may be a symbolic link to a backup. Told is called
// with the bytes read so far. The end of ctx ends it, with its cause.
func Check(ctx context.Context, dir string, told func(done, of int64)) (*Manifest, error) {
	dir, err := filepath.EvalSymlinks(dir) // what lies in it is walked, which follows no link
	if err != nil {
		return nil, err
	}
	m, err := ReadManifest(dir)
	if err != nil {
		return nil, err
	}
	if err := m.strangers(dir); err != nil {
		return nil, err
	}
	p := &progress{of: m.Bytes(), told: told}
	for _, f := range m.Files {
		if err := f.copyFrom(dir, &until{ctx, io.Discard}, p); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// strangers refuses what the manifest does not list.
func (m *Manifest) strangers(dir string) error {
	listed := map[string]bool{ManifestFile: true}
	for _, f := range m.Files {
		listed[f.Name] = true
	}
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, filepath.Clean(dir)+string(filepath.Separator)))
		if d.IsDir() && name == store.LogDir || !d.IsDir() && listed[name] {
			return nil
		}
		return &DamageError{path, "is not in the manifest"}
	})
}

// copyFrom copies the file from the backup in dir and checks it on the way.
func (f *File) copyFrom(dir string, w io.Writer, p *progress) error {
	path := filepath.Join(dir, filepath.FromSlash(f.Name))
	in, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &DamageError{path, "is missing"}
	}
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if st.Size() != f.Bytes {
		return &DamageError{path, fmt.Sprintf("has %d bytes and should have %d", st.Size(), f.Bytes)}
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum, p), in)
	if err != nil {
		return err
	}
	if n != f.Bytes || hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return &DamageError{path, "does not have its digest"}
	}
	return nil
}

// An until passes on what is written to it, until ctx ends.
type until struct {
	ctx context.Context
	w   io.Writer
}

// Write is that of an io.Writer.
func (u *until) Write(b []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.w.Write(b)
}

// A progress counts the bytes written to it.
type progress struct {
	done, of int64
	told     func(done, of int64)
}

// Write counts.
func (p *progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if p.told != nil {
		p.told(p.done, p.of)
	}
	return len(b), nil
}
