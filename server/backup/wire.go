package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"coordinator/internal/sock"
)

const (
	// SocketFile is the socket in a state directory at which a running coordinator gives its
	// files to whoever connects as its own user.
	SocketFile = "backup.sock"
	// messageTime bounds how long one message may take: the giver's to be taken, and the
	// taker's to come.
	messageTime = 30 * time.Second
	// maxMessage bounds one message.
	maxMessage = 64 << 10
	// maxRights is how many descriptors one read can bring.
	maxRights = 16
)

// A message is one line from the coordinator. Each has one of the members.
type message struct {
	Cut     *Cut   `json:"cut,omitempty"`     // the first
	File    *Given `json:"file,omitempty"`    // with its descriptor
	Copying *count `json:"copying,omitempty"` // how far the copy of state.db has come
	Refused string `json:"refused,omitempty"` // the last, in place of done
	Done    bool   `json:"done,omitempty"`    // the last
}

type count struct {
	Done int64 `json:"done"`
	Of   int64 `json:"of"`
}

// A Given is a file that a coordinator gives away.
type Given struct {
	Name string `json:"name"`
	// Size is that of the file, of which Bytes are to be read and the rest are zeros.
	Size  int64 `json:"size"`
	Bytes int64 `json:"bytes"`
	// SHA256 is the digest when the coordinator knows it, as of what it has copied.
	SHA256 string `json:"sha256,omitempty"`

	file *os.File // the taker's
}

// A Giver is the coordinator's end of one connection.
type Giver struct{ uc *net.UnixConn }

// NewGiver gives to whoever is at the other end of uc, which stays the caller's.
func NewGiver(uc *net.UnixConn) *Giver { return &Giver{uc} }

// Cut is the first message.
func (g *Giver) Cut(c Cut) error { return g.send(message{Cut: &c}, nil) }

// Give sends a file, which stays open.
func (g *Giver) Give(f Given, file *os.File) error { return g.send(message{File: &f}, file) }

// Copying tells how far the copy of state.db has come, and finds out whether anybody listens.
func (g *Giver) Copying(done, of int64) error {
	return g.send(message{Copying: &count{done, of}}, nil)
}

// Refuse says why there is no backup.
func (g *Giver) Refuse(why string) error { return g.send(message{Refused: why}, nil) }

// Done ends the backup.
func (g *Giver) Done() error { return g.send(message{Done: true}, nil) }

func (g *Giver) send(m message, file *os.File) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if err := g.uc.SetWriteDeadline(time.Now().Add(messageTime)); err != nil {
		return err
	}
	n, _, err := g.uc.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = g.uc.Write(b[n:])
	}
	return err
}

// A Taken is everything that a coordinator gave: open files, which the caller closes with
// Close.
type Taken struct {
	Cut   Cut
	files []*Given
}

// Close closes the files.
func (t *Taken) Close() {
	for _, f := range t.files {
		f.file.Close()
	}
}

// ErrRefused matches what the coordinator says in place of a backup.
var ErrRefused = errors.New("the coordinator gives no backup")

// Take asks the coordinator that listens on the socket at path. Told is called while it
// copies. That none runs there is an error that matches os.ErrNotExist or
// syscall.ECONNREFUSED.
func Take(ctx context.Context, path string, told func(done, of int64)) (*Taken, error) {
	uc, err := sock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { uc.Close() })
	defer func() {
		stop()
		uc.Close()
	}()
	r := &rights{uc: uc}
	defer r.close()
	t := new(Taken)
	if err := t.receive(r, told); err != nil {
		t.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return t, nil
}

// receive takes messages until the last.
func (t *Taken) receive(r *rights, told func(done, of int64)) error {
	in := json.NewDecoder(r)
	for first := true; ; first = false {
		var m message
		switch err := in.Decode(&m); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return errors.New("the coordinator ended the backup without a word: it is stopping, or runs as another user; see its log")
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("the coordinator has been silent for %v", messageTime)
		case err != nil:
			return fmt.Errorf("backup: %w", err)
		}
		switch {
		case m.Refused != "":
			return fmt.Errorf("%w: %s", ErrRefused, m.Refused)
		case first != (m.Cut != nil):
			return errors.New("backup: the coordinator speaks otherwise than this program")
		case m.Cut != nil:
			t.Cut = *m.Cut
		case m.File != nil:
			if m.File.file = r.next(); m.File.file == nil {
				return fmt.Errorf("backup: %s came without its file", m.File.Name)
			}
			t.files = append(t.files, m.File)
		case m.Copying != nil:
			told(m.Copying.Done, m.Copying.Of)
		case m.Done:
			return nil
		}
	}
}

// rights reads bytes from a connection and keeps the descriptors that come with them, which
// come no later than the bytes that speak of them.
type rights struct {
	uc    *net.UnixConn
	files []*os.File
}

// Read is that of an io.Reader.
func (r *rights) Read(b []byte) (int, error) {
	if err := r.uc.SetReadDeadline(time.Now().Add(messageTime)); err != nil {
		return 0, err
	}
	oob := make([]byte, unix.CmsgSpace(4*maxRights))
	n, oobn, flags, _, err := r.uc.ReadMsgUnix(b[:min(len(b), maxMessage)], oob)
	if oobn > 0 {
		if perr := r.keep(oob[:oobn]); err == nil {
			err = perr
		}
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("a descriptor was lost; raise the limit of open files (ulimit -n)")
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

func (r *rights) keep(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return err
		}
		for _, fd := range fds {
			r.files = append(r.files, os.NewFile(uintptr(fd), "given by the coordinator"))
		}
	}
	return nil
}

// next is the oldest descriptor that nobody has claimed, or nil.
func (r *rights) next() *os.File {
	if len(r.files) == 0 {
		return nil
	}
	f := r.files[0]
	r.files = r.files[1:]
	return f
}

func (r *rights) close() {
	for _, f := range r.files {
		f.Close()
	}
}
