package client

import (
	"bufio"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/clock"
)

// Frames that many callers write at once, and give up, arrive whole and once each: every one
// whose writing succeeded, and none of which it is said that nothing left.
func TestFramesOfManyCallersArriveWholeAndOnce(t *testing.T) {
	for name, dial := range map[string]func(*testing.T) (net.Conn, net.Conn){
		"socket": sockets,
		"pipe":   func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() },
	} {
		t.Run(name, func(t *testing.T) {
			const callers, each = 16, 100
			guard := frames.AuthorityGuard{CoordinatorID: frames.CoordinatorID{1}, Epoch: 1, Activation: 1}
			ours, theirs := dial(t)
			now := clock.System().Now()
			c := &Conn{
				nc: ours, wnow: newDirect(ours), slots: make(chan struct{}, callers), wlock: make(chan struct{}, 1),
				rests: make(chan []byte), done: make(chan struct{}), opts: Options{Clock: clock.System()},
			}
			c.lease.Store(newLease(frames.Certificate{ExpiresAt: uint64(now.Wall.Unix()) + 3600}, now))
			c.hello.Limits = frames.ReferenceLimits()
			var finisher, writers sync.WaitGroup
			finisher.Go(c.finishWrites)

			arrived := make(map[frames.OperationID]int)
			read := make(chan error, 1)
			go func() {
				in := bufio.NewReader(&slowReader{theirs})
				var head [codec.HeaderSize]byte
				for {
					length, typ, err := codec.ReadHeader(in, &head)
					body := make([]byte, max(length, 1)-1)
					if err == nil {
						_, err = io.ReadFull(in, body)
					}
					if err != nil {
						read <- err
						return
					}
					f, err := frames.Decode(frames.Type(typ), body)
					if err != nil {
						read <- err
						return
					}
					arrived[f.(*frames.CoordCommand).OperationID]++
				}
			}()
			var mu sync.Mutex
			wrote := make(map[frames.OperationID]bool) // whether it succeeded; absent: it may have left
			for w := range callers {
				c.slots <- struct{}{}
				writers.Go(func() {
					rng := rand.New(rand.NewPCG(1, uint64(w)))
					for i := range each {
						ctx, cancel := context.WithCancel(t.Context())
						if rng.IntN(3) == 0 {
							ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rng.IntN(300))*time.Microsecond)
						}
						id := frames.OperationID{byte(w), byte(i), 1}
						f := &frames.CoordCommand{RequestID: 1, Guard: guard, OperationID: id, Kind: 1, Payload: make([]byte, rng.IntN(30_000))}
						started, err := c.write(ctx, f)
						cancel()
						mu.Lock()
						if !started || err == nil {
							wrote[id] = started
						}
						mu.Unlock()
					}
				})
			}
			writers.Wait()
			c.wlock <- struct{}{} // nothing is being finished any more
			require.Zero(t, c.added, "nothing waits that nobody will write")
			close(c.done)
			finisher.Wait()
			ours.Close()
			require.ErrorIs(t, <-read, io.EOF, "the stream ends behind a frame")
			for id, n := range arrived {
				require.Equal(t, 1, n)
				sent, known := wrote[id]
				require.True(t, sent || !known, "a frame of which nothing left has arrived")
			}
			for id, sent := range wrote {
				if sent {
					require.Equal(t, 1, arrived[id])
				}
			}
		})
	}
}

// A slowReader takes little at a time, so that writers wait.
type slowReader struct{ net.Conn }

func (r *slowReader) Read(b []byte) (int, error) { return r.Conn.Read(b[:min(len(b), 1000)]) }
