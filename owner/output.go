package owner

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"

	"coordinator/frames"
	"coordinator/internal/durable"
)

const (
	// outputDir holds one append-only file per binding.
	outputDir = "output"
	// rangeBytes is the most that one OUTPUT_RANGE covers.
	rangeBytes = 64 << 10
	// maxRanges is how many ranges may wait to be recorded. A process that writes faster waits.
	maxRanges = 64
)

func outputPath(dir string, b frames.BindingID) string {
	return filepath.Join(dir, outputDir, fmt.Sprintf("%x.out", b[:]))
}

// An output is what a process writes: every byte is counted and hashed into ranges, and stored
// up to a cap.
type output struct {
	file *os.File
	cap  uint64

	mu      sync.Mutex
	room    *sync.Cond           // signalled when ranges were taken
	stored  uint64               // guarded by mu; bytes in file
	total   uint64               // guarded by mu; bytes that came
	broken  error                // guarded by mu; why no more is stored although cap has room
	hash    hash.Hash            // guarded by mu; of the open range
	first   uint64               // guarded by mu; position of the open range's first byte, from 1
	ranges  []frames.OutputRange // guarded by mu; complete and not yet taken
	bells   bells                // guarded by mu
	rang    bool                 // guarded by mu; a bell since the last take
	changed chan struct{}        // guarded by mu; closed and replaced when stored grows or end is set
	end     bool                 // guarded by mu; nothing more comes
}

// createOutput makes the file of a new binding and makes its name durable.
func createOutput(dir string, b frames.BindingID, cap uint64) (*output, error) {
	path := outputPath(dir, b)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, durable.PrivateFile)
	if err != nil {
		return nil, err
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	o := &output{file: f, cap: cap, hash: sha256.New(), first: 1, changed: make(chan struct{})}
	o.room = sync.NewCond(&o.mu)
	return o, nil
}

// write takes what the process wrote and says whether a range is complete. It waits while too
// many are.
func (o *output) write(p []byte) (full bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.ranges) >= maxRanges {
		o.room.Wait()
	}
	o.store(p)
	if o.bells.count(p) > 0 {
		o.rang = true
	}
	for len(p) > 0 {
		n := min(uint64(len(p)), rangeBytes-(o.total+1-o.first))
		o.hash.Write(p[:n])
		o.total += n
		p = p[n:]
		if o.total+1-o.first == rangeBytes {
			o.seal()
		}
	}
	return len(o.ranges) > 0
}

// store appends what the cap has room for. A file that cannot be written stores no more, and
// the output goes on: its ranges are the evidence, the file is for reading.
func (o *output) store(p []byte) {
	room := o.cap - o.stored
	if o.broken != nil || room == 0 || len(p) == 0 {
		return
	}
	if uint64(len(p)) > room {
		p = p[:room]
	}
	n, err := o.file.Write(p)
	o.stored += uint64(n)
	o.broken = err
	o.announce()
}

func (o *output) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// seal ends the open range, which is not empty.
func (o *output) seal() {
	r := frames.OutputRange{First: o.first, Last: o.total, ByteCount: o.total + 1 - o.first}
	o.hash.Sum(r.Content[:0])
	o.ranges = append(o.ranges, r)
	o.hash.Reset()
	o.first = o.total + 1
}

// take hands over all that came since the last take, the open range included.
func (o *output) take() (ranges []frames.OutputRange, rang bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.total >= o.first {
		o.seal()
	}
	ranges, rang = o.ranges, o.rang
	o.ranges, o.rang = nil, false
	o.room.Broadcast()
	return ranges, rang
}

// sync makes what is stored durable. It is called before the facts that cover it are.
func (o *output) sync() error {
	err := o.file.Sync()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.broken == nil {
		o.broken = err
	}
	return o.broken
}

// state is how much is stored, a channel that is closed when that changes, and whether it is
// final.
func (o *output) state() (stored uint64, changed <-chan struct{}, end bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stored, o.changed, o.end
}

// finish says that nothing more comes, and gives the file up.
func (o *output) finish() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = true
	o.announce()
	return o.file.Close()
}

// A reading is one READ_OUTPUT over the stored bytes of a binding.
type reading struct {
	file *os.File
	live *output // nil when the binding's output is final
	size uint64  // of a final one
}

func openReading(dir string, b frames.BindingID, live *output) (*reading, error) {
	f, err := os.Open(outputPath(dir, b))
	if err != nil {
		return nil, err
	}
	r := &reading{file: f, live: live}
	if live == nil {
		st, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		r.size = uint64(st.Size())
	}
	return r, nil
}

// state is like output.state.
func (r *reading) state() (stored uint64, changed <-chan struct{}, end bool) {
	if r.live == nil {
		return r.size, nil, true
	}
	return r.live.state()
}

// readAt fills p from offset, all of which is stored.
func (r *reading) readAt(p []byte, offset uint64) error {
	_, err := r.file.ReadAt(p, int64(offset))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (r *reading) close() error { return r.file.Close() }

// bells counts BEL characters that ring. A BEL that ends an operating system command (ESC ]
// … BEL), as a shell writes for the window's title, is none.
type bells struct {
	state bellState
	n     int // bytes of the open command
}

type bellState uint8

const (
	bellPlain         bellState = iota
	bellEscape                  // after ESC
	bellCommand                 // in a command
	bellCommandEscape           // after ESC in a command
)

// maxCommand is after how many bytes a command that nobody ended counts as text again.
const maxCommand = 4096

const (
	charBEL = 0x07
	charCAN = 0x18
	charSUB = 0x1a
	charESC = 0x1b
)

func (b *bells) count(p []byte) (rung int) {
	for _, c := range p {
		switch {
		case b.state == bellCommand || b.state == bellCommandEscape:
			b.n++
			switch {
			case c == charBEL, c == charCAN, c == charSUB, b.state == bellCommandEscape && c == '\\', b.n > maxCommand:
				b.state = bellPlain
			case c == charESC:
				b.state = bellCommandEscape
			default:
				b.state = bellCommand
			}
		case c == charESC:
			b.state = bellEscape
		case b.state == bellEscape && c == ']':
			b.state, b.n = bellCommand, 0
		default:
			b.state = bellPlain
			if c == charBEL {
				rung++
			}
		}
	}
	return rung
}
