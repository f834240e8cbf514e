// Package simfs is a file system in memory for tests and simulation: it keeps what has
// been flushed apart from what has only been written, and a crash loses, keeps or tears
// the difference as its seed says. Any operation can be made to fail.
//
// It implements store.FS and knows nothing of what is in the files. All methods may be
// called from any goroutine.
package simfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"coordinator/server/store"
)

// ErrStopped is what every operation answers once the file system has stopped.
var ErrStopped = errors.New("simfs: stopped")

// ErrGone is what a handle from before a crash answers.
var ErrGone = errors.New("simfs: handle is from before a crash")

// sector is the unit in which an unfinished write is torn.
const sector = 512

// An Op is one operation that changes something, as a hook sees it.
type Op struct {
	Kind string // "create", "write", "sync", "truncate", "remove", "rename", "mkdir", "syncdir"
	Path string
	N    int // counts from 1 over all operations
}

// FS is one simulated disk. The zero value is not usable; see New.
type FS struct {
	mu      sync.Mutex
	names   map[string]*node    // guarded by mu; as programs see them
	durable map[string]*node    // guarded by mu; as a crash would leave them
	changes map[string][]rename // guarded by mu; by directory, not yet flushed, in order
	nextID  int
	gen     int // of handles; a crash begins the next
	ops     int
	hook    func(Op) error
	stopAt  int // operations from this number on fail; 0: none
	limit   int // bytes that all files together may have; 0: any number
}

// A node is a file or directory.
type node struct {
	id      int
	dir     bool
	path    string // its first, for hooks
	data    []byte // as programs see it
	durable []byte
	pending []write // since the last flush
	doubt   []write // of flushes that failed
}

type write struct {
	off  int64
	data []byte
	cut  bool // truncation to off
}

// A rename is a change of one name: to node, or gone when that is nil.
type rename struct {
	path string
	node *node
}

var _ store.FS = (*FS)(nil)

// New makes an empty disk.
func New() *FS {
	return &FS{names: make(map[string]*node), durable: make(map[string]*node), changes: make(map[string][]rename)}
}

// Hook calls h before every changing operation; an error fails that operation. A write
// that fails has written a part; a failed sync has flushed nobody knows what. Others may
// use the disk while h runs, but neither Crash nor Kill may be called then.
func (d *FS) Hook(h func(Op) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = h
}

// StopAfter lets n more changing operations succeed and fails all that follow with
// ErrStopped. Crash and Kill lift it.
func (d *FS) StopAfter(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopAt = d.ops + n + 1
}

// Limit lets all files together have n bytes; a write that would need more writes what fits
// and fails with ENOSPC. Zero lifts it. What is flushed and then removed without a flush of
// the directory counts no more.
func (d *FS) Limit(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = n
}

// Free is how many bytes more the limit allows.
func (d *FS) Free() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.limit == 0 {
		return math.MaxUint64
	}
	return uint64(d.freeLocked())
}

func (d *FS) freeLocked() int {
	free := d.limit
	for _, n := range d.names {
		free -= len(n.data)
	}
	return max(0, free)
}

// Ops counts the changing operations so far.
func (d *FS) Ops() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ops
}

// Kill ends the program but not the machine: handles die, and everything written stays.
func (d *FS) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revive()
	for _, n := range d.nodesLocked() {
		n.durable, n.pending, n.doubt = slices.Clone(n.data), nil, nil
	}
	d.durable = maps.Clone(d.names)
	clear(d.changes)
}

// Crash ends the machine: handles die, and of what was not flushed each write is lost,
// kept or torn, and of its changes each directory keeps the first few or, for an even seed,
// any of them, as seed says.
func (d *FS) Crash(seed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revive()
	rng := rand.New(rand.NewPCG(seed, 0x5170))
	for _, n := range d.nodesLocked() {
		for _, w := range append(n.doubt, n.pending...) {
			n.durable = w.crash(n.durable, rng)
		}
		n.pending, n.doubt = nil, nil
		n.data = slices.Clone(n.durable)
	}
	for _, dir := range slices.Sorted(maps.Keys(d.changes)) {
		changes := d.changes[dir]
		for _, c := range changes[:rng.IntN(len(changes)+1)] {
			if seed%2 == 1 || rng.IntN(2) == 0 {
				c.apply(d.durable)
			}
		}
	}
	clear(d.changes)
	d.names = maps.Clone(d.durable)
}

func (d *FS) revive() {
	d.gen++
	d.stopAt, d.hook = 0, nil
}

// nodesLocked lists every node once, in the order in which they were made.
func (d *FS) nodesLocked() []*node {
	seen := make(map[*node]bool)
	for _, m := range []map[string]*node{d.names, d.durable} {
		for _, n := range m {
			seen[n] = true
		}
	}
	for _, changes := range d.changes {
		for _, c := range changes {
			if c.node != nil {
				seen[c.node] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b *node) int { return a.id - b.id })
}

// Clone copies the disk as a crash that loses everything unflushed would leave it.
func (d *FS) Clone() *FS {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := New()
	c.nextID = d.nextID
	for p, n := range d.durable {
		m := &node{id: n.id, dir: n.dir, path: n.path, data: slices.Clone(n.durable), durable: slices.Clone(n.durable)}
		c.names[p], c.durable[p] = m, m
	}
	return c
}

// ReadFile returns a copy of a file's bytes.
func (d *FS) ReadFile(path string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.find("read", path)
	if err != nil {
		return nil, err
	}
	return slices.Clone(n.data), nil
}

// WriteFile replaces a file's bytes durably and without counting as an operation, for
// tests that damage files.
func (d *FS) WriteFile(path string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.find("write", path)
	if err != nil {
		return err
	}
	n.data, n.durable, n.pending, n.doubt = slices.Clone(data), slices.Clone(data), nil, nil
	return nil
}

// begin counts an operation and asks whether it may go on.
func (d *FS) begin(kind, path string) error {
	d.ops++
	if d.stopAt > 0 && d.ops >= d.stopAt {
		return &fs.PathError{Op: kind, Path: path, Err: ErrStopped}
	}
	if hook := d.hook; hook != nil {
		n := d.ops
		d.mu.Unlock() // a hook may take its time, in which others read
		err := hook(Op{kind, path, n})
		d.mu.Lock()
		if err != nil {
			return &fs.PathError{Op: kind, Path: path, Err: err}
		}
	}
	return nil
}

func (d *FS) find(op, path string) (*node, error) {
	n, ok := d.names[filepath.Clean(path)]
	if !ok {
		return nil, &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist}
	}
	return n, nil
}

// change sets a name now and remembers that it is not durable.
func (d *FS) change(path string, n *node) {
	c := rename{filepath.Clean(path), n}
	c.apply(d.names)
	dir := filepath.Dir(c.path)
	d.changes[dir] = append(d.changes[dir], c)
}

func (c rename) apply(names map[string]*node) {
	if c.node == nil {
		delete(names, c.path)
	} else {
		// A node has one name: the old one of a rename goes with the same step.
		for p, n := range names {
			if n == c.node {
				delete(names, p)
			}
		}
		names[c.path] = c.node
	}
}

// Open implements store.FS.
func (d *FS) Open(path string) (store.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.find("open", path)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("is a directory")}
	}
	return &file{d: d, n: n, gen: d.gen, path: path}, nil
}

// Create implements store.FS.
func (d *FS) Create(path string) (store.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.make("create", path, false)
	if err != nil {
		return nil, err
	}
	return &file{d: d, n: n, gen: d.gen, path: path}, nil
}

// Mkdir implements store.FS. Parents need not exist: the store's own directory does not.
func (d *FS) Mkdir(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, err := d.make("mkdir", path, true)
	return err
}

func (d *FS) make(op, path string, dir bool) (*node, error) {
	if err := d.begin(op, path); err != nil {
		return nil, err
	}
	if _, err := d.find(op, path); err == nil {
		return nil, &fs.PathError{Op: op, Path: path, Err: fs.ErrExist}
	}
	d.nextID++
	n := &node{id: d.nextID, dir: dir, path: path}
	d.change(path, n)
	return n, nil
}

// Remove implements store.FS.
func (d *FS) Remove(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.find("remove", path); err != nil {
		return err
	}
	if err := d.begin("remove", path); err != nil {
		return err
	}
	d.change(path, nil)
	return nil
}

// Rename implements store.FS.
func (d *FS) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, err := d.find("rename", from)
	if err != nil {
		return err
	}
	if err := d.begin("rename", to); err != nil {
		return err
	}
	d.change(to, n)
	return nil
}

// List implements store.FS.
func (d *FS) List(dir string) ([]store.Entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, err := d.find("list", dir); err != nil {
		return nil, err
	} else if !n.dir {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: errors.New("not a directory")}
	}
	var entries []store.Entry
	for _, p := range slices.Sorted(maps.Keys(d.names)) {
		if n := d.names[p]; filepath.Dir(p) == filepath.Clean(dir) {
			entries = append(entries, store.Entry{Name: filepath.Base(p), Size: int64(len(n.data)), Dir: n.dir})
		}
	}
	return entries, nil
}

// SyncDir implements store.FS.
func (d *FS) SyncDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("syncdir", dir); err != nil {
		return err
	}
	dir = filepath.Clean(dir)
	for _, c := range d.changes[dir] {
		c.apply(d.durable)
	}
	delete(d.changes, dir)
	return nil
}

// A file is a handle.
type file struct {
	d      *FS
	n      *node
	gen    int
	path   string
	closed bool
}

// enter checks the handle; mu is held.
func (f *file) enter(op string) error {
	switch {
	case f.closed:
		return &fs.PathError{Op: op, Path: f.path, Err: fs.ErrClosed}
	case f.gen != f.d.gen:
		return &fs.PathError{Op: op, Path: f.path, Err: ErrGone}
	}
	return nil
}

func (f *file) ReadAt(b []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.enter("read"); err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(b []byte, off int64) (int, error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.enter("write"); err != nil {
		return 0, err
	}
	err := f.d.begin("write", f.path)
	if errors.Is(err, ErrStopped) {
		return 0, err
	}
	if err != nil {
		b = b[:len(b)/2]
	}
	if more := int(off) + len(b) - len(f.n.data); err == nil && f.d.limit > 0 && more > 0 {
		if over := more - f.d.freeLocked(); over > 0 {
			b = b[:max(0, len(b)-over)]
			err = &fs.PathError{Op: "write", Path: f.path, Err: syscall.ENOSPC}
		}
	}
	w := write{off: off, data: slices.Clone(b)}
	f.n.data = w.apply(f.n.data)
	f.n.pending = append(f.n.pending, w)
	return len(b), err
}

func (f *file) Truncate(size int64) error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.enter("truncate"); err != nil {
		return err
	}
	if err := f.d.begin("truncate", f.path); err != nil {
		return err
	}
	w := write{off: size, cut: true}
	f.n.data = w.apply(f.n.data)
	f.n.pending = append(f.n.pending, w)
	return nil
}

func (f *file) Sync() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.enter("sync"); err != nil {
		return err
	}
	if err := f.d.begin("sync", f.path); err != nil {
		f.n.doubt = append(f.n.doubt, f.n.pending...)
		f.n.pending = nil
		return err
	}
	for _, w := range f.n.pending {
		f.n.durable = w.apply(f.n.durable)
	}
	f.n.pending = nil
	return nil
}

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if err := f.enter("close"); err != nil {
		return err
	}
	f.closed = true
	return nil
}

// apply does the write to data, extending it with zeros as needed.
func (w write) apply(data []byte) []byte {
	if w.cut {
		return resize(data, int(w.off))
	}
	end := int(w.off) + len(w.data)
	if end > len(data) {
		data = resize(data, end)
	}
	copy(data[w.off:], w.data)
	return data
}

func resize(data []byte, n int) []byte {
	if n <= len(data) {
		return data[:n:n]
	}
	return append(data, make([]byte, n-len(data))...)
}

// crash decides what became of an unflushed write.
func (w write) crash(data []byte, rng *rand.Rand) []byte {
	switch rng.IntN(4) {
	case 0:
		return data
	case 1:
		return w.apply(data)
	case 2: // a first part
		if w.cut {
			return data
		}
		w.data = w.data[:rng.IntN(len(w.data)+1)]
		return w.apply(data)
	}
	if w.cut {
		return w.apply(data)
	}
	for at := 0; at < len(w.data); { // any of its sectors
		n := min(sector-(int(w.off)+at)%sector, len(w.data)-at)
		if rng.IntN(2) == 0 {
			data = write{off: w.off + int64(at), data: w.data[at : at+n]}.apply(data)
		}
		at += n
	}
	return data
}

// String says how many files there are, for failed tests.
func (d *FS) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("simfs(%d names, %d operations)", len(d.names), d.ops)
}
