package measure

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"time"
)

// ValueSize is the payload of every benchmark, here and at the peers.
const ValueSize = 256

// An Env is what a part runs in.
type Env struct {
	// Dir is on the disk under test; the runner empties it after each part.
	Dir string
	// Bin holds the coordinator's programs.
	Bin string
	// Rec takes the figures.
	Rec *Recorder
	// Scale stretches every measuring window and every amount of state.
	Scale float64
}

// A Part is one benchmark. Its name begins with its group and a slash.
type Part struct {
	Name string
	Run  func(context.Context, *Env) error
}

// Window is a measuring window of so many milliseconds.
func (e *Env) Window(ms int) time.Duration {
	return time.Duration(float64(ms) * e.Scale * float64(time.Millisecond))
}

// Amount is a number of things to make, never less than least.
func (e *Env) Amount(n, least int) int {
	return max(int(float64(n)*e.Scale), least)
}

// TempDir makes a private directory on the disk under test.
func (e *Env) TempDir(name string) (string, error) { return os.MkdirTemp(e.Dir, name+"-") }

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Payload is n bytes that do not compress; n is a multiple of eight.
func Payload(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	b := make([]byte, n)
	r.Read(b) //nolint:errcheck // it never fails
	return b
}

// FreePorts gives n TCP ports of this machine that nobody uses now.
func FreePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
