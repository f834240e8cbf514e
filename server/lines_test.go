package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/lograte"
	"coordinator/internal/sock"
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

func (r *record) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
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

// TestOneLinePerConnection at its end, with what it did.
func TestOneLinePerConnection(t *testing.T) {
	var log record
	w := newWatchedRig(t)
	w.opts.Logger = log.logger()
	w.start()
	p := w.connect(w.keys[0])
	p.create("x")
	p.create("y")
	_, err := p.nextPage(newID[frames.SnapshotID](t), make([]byte, 32))
	require.Equal(t, frames.CodeCursorInvalid, frames.CodeOf(err))
	w.clock.Advance(1500 * time.Millisecond)
	p.close()
	var ends []map[string]any
	until := func(n int) map[string]any {
		require.Eventually(t, func() bool { ends = log.events(t, "connection ended"); return len(ends) == n }, awaiting, time.Millisecond)
		return ends[n-1]
	}
	line := until(1)
	require.Equal(t, "INFO", line["level"])
	require.Equal(t, "unix", line["transport"])
	require.Equal(t, "first", line["principal"])
	require.EqualValues(t, 3, line["requests"])
	require.EqualValues(t, 1, line["refusals"])
	require.EqualValues(t, 1500, line["duration_ms"])
	require.Equal(t, "the peer closed", line["reason"])
	require.Equal(t, "test", line["client"])

	// One whose key is unknown is called by the beginning of its id, and why is said here alone.
	stranger := newKey(t)
	q := w.raw()
	err = q.shake(w.rig, stranger, uint64(frames.AllScopes), handshake.UDSPeer{Cred: sock.SelfCred()})
	require.Equal(t, frames.CodeAuthenticationFailed, frames.CodeOf(err))
	q.close()
	line = until(2)
	require.Equal(t, "WARN", line["level"])
	require.Equal(t, handshake.ShortKey(handshake.KeyIDOf(stranger.Public())), line["key"])
	require.NotEmpty(t, line["proof"])
	require.NotContains(t, line, "principal")
	require.EqualValues(t, 1, line["refusals"])

	// One that says nothing of sense.
	q = w.raw()
	q.write([]byte{0, 0, 0, 2, 0x77, 0})
	q.refused(frames.CodeProtocolError)
	q.close()
	line = until(3)
	require.Equal(t, "INFO", line["level"])
	require.Contains(t, line["reason"], "PROTOCOL_ERROR")
	require.NotContains(t, line, "key")
	require.NoError(t, w.stop())
	require.Len(t, log.events(t, "connection ended"), 3)

	// Who has the token of the activation could forge its guard.
	token := p.ok.Certificate.Token[:]
	for _, form := range []string{string(token), hex.EncodeToString(token), base64.RawStdEncoding.EncodeToString(token), strings.Trim(fmt.Sprint(token), "[]")} {
		require.NotContains(t, log.b.String(), form)
	}
}

// TestThousandsOfStrangersFillNoLog sends thousands of connections that are no good and then
// stops: the log has a burst, and says how many lines it has not.
func TestThousandsOfStrangersFillNoLog(t *testing.T) {
	const strangers = 3000
	var log record
	w := newWatchedRig(t)
	w.opts.Logger = log.logger()
	w.start()
	for i := range strangers {
		nc, err := sock.Dial(context.Background(), w.info.Socket)
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			_, err = nc.Write([]byte{0, 0, 0, 2, 0x77, 0}) // an unknown frame
		case 1:
			_, err = nc.Write([]byte{0xff, 0xff, 0xff, 0xff, 1}) // a length beyond all caps
		}
		require.NoError(t, err)
		if i%3 != 2 {
			io.Copy(io.Discard, nc) //nolint:errcheck // until the server has ended it
		}
		require.NoError(t, nc.Close())
		if i%32 == 31 { // no more at once than are taken
			w.quiet()
		}
	}
	w.quiet()
	ends := log.events(t, "connection ended")
	require.Len(t, ends, lograte.StrangerBurst)
	w.clock.Advance(lograte.TellEvery)
	require.Eventually(t, func() bool { return len(log.events(t, "lines left out")) > 0 }, awaiting, time.Millisecond)
	left := log.events(t, "lines left out")
	require.Len(t, left, 1)
	require.Equal(t, "unauthenticated connections", left[0]["kind"])
	require.EqualValues(t, strangers-lograte.StrangerBurst, left[0]["unlogged"])
	w.connect(w.keys[0]).create("x") // nobody else was kept out
	r, _ := w.m.Read()
	require.EqualValues(t, strangers+1, r.Conns.Accepted[handshake.Unix])
}

// quiet waits until every connection there was has ended.
func (w *watchedRig) quiet() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.srv.mu.Lock()
		defer w.srv.mu.Unlock()
		return len(w.srv.conns) == 0
	}, awaiting, 100*time.Microsecond)
}

// TestFriendsLinesAreBounded: a key that comes and goes without end fills no log either.
func TestFriendsLinesAreBounded(t *testing.T) {
	var log record
	w := newWatchedRig(t)
	w.opts.Logger = log.logger()
	w.start()
	const visits = lograte.FriendBurst + 50
	for range visits {
		w.connect(w.keys[0]).close()
		w.quiet()
	}
	require.Len(t, log.events(t, "connection ended"), lograte.FriendBurst)
	require.NoError(t, w.stop())
}

// TestReasonsAreClipped: what a peer's transport says is a part of a line at most.
func TestReasonsAreClipped(t *testing.T) {
	require.Equal(t, "the peer closed", lograte.Reason(io.EOF))
	require.Equal(t, "the peer closed", lograte.Reason(fmt.Errorf("read: %w", io.EOF)))
	long := lograte.Reason(fmt.Errorf("%s\xff", strings.Repeat("ä", 300)))
	require.LessOrEqual(t, len(long), lograte.MaxText)
	require.True(t, strings.HasPrefix(long, "ää"))
}
