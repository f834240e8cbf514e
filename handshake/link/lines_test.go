package link

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/lograte"
	"coordinator/internal/sock"

	"github.com/stretchr/testify/require"
)

// record keeps the lines of a server as JSON.
type record struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

// events are the lines with this event name.
func (r *record) events(t *testing.T, name string) (out []map[string]any) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.b.String()) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m), line)
		if m["msg"] == name {
			out = append(out, m)
		}
	}
	return out
}

// logged is a rig whose lines are kept.
func logged(t *testing.T, most int) (*rig, *record) {
	log := new(record)
	return newRig(t, func(o *ServerOptions) {
		o.MaxUnauthenticated = most
		o.Logger = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}), log
}

// TestOneLinePerConnection at its end, with what it did, and counts to match.
func TestOneLinePerConnection(t *testing.T) {
	r, log := logged(t, 0)
	p := r.dial()
	p.ask(1, "a")
	p.next()
	p.ask(2, "b")
	p.next()
	r.clk.Advance(1500 * time.Millisecond)
	require.EqualValues(t, 1, r.srv.Counts().Authenticated[handshake.Unix])
	require.NoError(t, p.Close())
	r.wg.Wait()
	ends := log.events(t, "connection ended")
	require.Len(t, ends, 1)
	line := ends[0]
	require.Equal(t, "INFO", line["level"])
	require.Equal(t, "unix", line["transport"])
	require.NotEmpty(t, line["principal"])
	require.Equal(t, coordA.String(), line["coordinator"])
	require.EqualValues(t, 2, line["requests"])
	require.EqualValues(t, 0, line["refusals"])
	require.EqualValues(t, 1500, line["duration_ms"])
	require.Equal(t, "the peer closed", line["reason"])

	p = r.dial()
	p.ask(5, "refuse")
	p.requireEnd(frames.CodeNotFound, "as asked")
	p.Close()
	r.wg.Wait()
	line = log.events(t, "connection ended")[1]
	require.EqualValues(t, 1, line["refusals"])
	require.Contains(t, line["reason"], "NOT_FOUND")
	c := r.srv.Counts()
	require.EqualValues(t, 2, c.Accepted[handshake.Unix])
	require.Zero(t, c.Authenticated[handshake.Unix]+c.Strangers[handshake.Unix])
	require.EqualValues(t, 3, c.Requests[typeAsk])
	require.EqualValues(t, 1, c.Refusals[frames.CodeNotFound])
	require.Contains(t, c.Refusals, frames.CodeInternal)
}

// TestThousandsOfStrangersFillNoLog: connections that are no good leave a burst of lines, and
// one that says how many there were besides.
func TestThousandsOfStrangersFillNoLog(t *testing.T) {
	const strangers = 3000
	r, log := logged(t, 0)
	for i := range strangers {
		nc := r.connect()
		if i%2 == 0 {
			_, err := nc.Write(header(1<<32-1, TypeHello))
			require.NoError(t, err)
			requireEnd(t, NewReader(nc, testLink), frames.CodeFrameTooLarge, "")
		}
		require.NoError(t, nc.Close())
		r.wg.Wait()
	}
	require.Len(t, log.events(t, "connection ended"), lograte.StrangerBurst)
	r.clk.Advance(lograte.StrangerEvery)
	r.connect().Close()
	r.wg.Wait()
	ends := log.events(t, "connection ended")
	require.EqualValues(t, strangers-lograte.StrangerBurst, ends[len(ends)-1]["unlogged"])
	require.EqualValues(t, strangers+1, r.srv.Counts().Accepted[handshake.Unix])
	require.EqualValues(t, strangers/2, r.srv.Counts().Refusals[frames.CodeFrameTooLarge])
}

// TestARefusedProofIsTold to this side alone.
func TestARefusedProofIsTold(t *testing.T) {
	r, log := logged(t, 0)
	prover := r.prover()
	prover.Key = otherKey
	_, _, err := prover.Connect(t.Context(), func(context.Context) (net.Conn, handshake.Channel, error) {
		return r.connect(), handshake.UDSPeer{Cred: sock.SelfCred()}, nil
	})
	require.Error(t, err)
	r.wg.Wait()
	ends := log.events(t, "connection ended")
	require.Len(t, ends, 1)
	require.Equal(t, "WARN", ends[0]["level"])
	require.Equal(t, handshake.ShortKey(handshake.KeyIDOf(otherKey.Public())), ends[0]["key"])
	require.NotEmpty(t, ends[0]["proof"])
	require.NotEmpty(t, ends[0]["cause"])
	require.EqualValues(t, 1, r.srv.Counts().Refusals[frames.CodeAuthenticationFailed])
}

// TestACrowdLeavesFewLines: those that are closed at accept are counted, and told of seldom.
func TestACrowdLeavesFewLines(t *testing.T) {
	r, log := logged(t, 1)
	first := r.connect()
	require.Eventually(t, func() bool { return r.srv.Counts().Strangers[handshake.Unix] == 1 }, waitFor, time.Millisecond)
	for range 1000 {
		r.connect().Close()
	}
	require.Eventually(t, func() bool { return r.srv.Counts().Crowded == 1000 }, waitFor, time.Millisecond)
	require.NoError(t, first.Close())
	r.wg.Wait()
	require.Len(t, log.events(t, "connection refused"), lograte.StrangerBurst)
}
