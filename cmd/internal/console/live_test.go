package console

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/cmd/internal/overview"
)

// TestAPageSeesWhatHappens follows a coordinator through work, its death and its return.
func TestAPageSeesWhatHappens(t *testing.T) {
	x := newWorld(t)
	w := x.worker()
	first := w.objective("first")
	p := x.opened(x.commander, nil)
	f := p.live()
	reset := f.next()
	require.Equal(t, "reset", reset.name)
	require.Equal(t, "1", reset.id)
	has := func(e told, title string) bool {
		return slices.ContainsFunc(e.decode(t).Objectives, func(r *overview.Objective) bool { return r.Title == title })
	}
	if !has(reset, "first") { // the replica may not have been there yet
		f.until("the first objective", func(e told) bool { return has(e, "first") })
	}
	second := w.objective("second")
	rows := f.until("the second objective", func(e told) bool { return e.name == "rows" && has(e, "second") })
	now := rows.decode(t)
	require.Equal(t, second.String(), now.Objectives[0].ID)
	require.Len(t, now.Objectives, 1, "only what has changed is told")
	require.False(t, now.State.Stale)
	f.until("its event", func(e told) bool {
		return e.name == "activity" && slices.ContainsFunc(e.decode(t).Events, func(e *overview.Activity) bool { return e.Object != nil && e.Object.ID == second.String() })
	})

	require.NoError(t, x.stop())
	stale := f.until("the end of the coordinator", func(e told) bool {
		s := e.decode(t).State
		return s != nil && s.Stale && s.StaleReason == "disconnected"
	}).decode(t).State
	require.NotNil(t, stale.Gap)
	require.Equal(t, "DISCONNECTED", stale.Gap.Reason)
	require.False(t, stale.Since.IsZero())
	late := p.live() // who comes now is told so, and what was known
	late.close()
	x.run()
	again := f.until("its return", func(e told) bool { s := e.decode(t).State; return s != nil && !s.Stale }).decode(t).State
	require.EqualValues(t, 2, again.Authority.Epoch)

	f.close()
	whole := p.live().next()
	require.Equal(t, "reset", whole.name)
	require.True(t, has(whole, "first") && has(whole, "second"))
	require.Contains(t, string(whole.data), first.String())
	require.NotEmpty(t, whole.decode(t).Activity)
}

// TestASlowPageIsCutOff opens a stream that nobody reads, beside one that somebody does.
func TestASlowPageIsCutOff(t *testing.T) {
	x := newWorld(t)
	p := x.opened(x.reader, nil)
	quick := p.live()
	quick.next()
	nc, err := net.Dial("tcp", strings.TrimPrefix(p.base, "http://"))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.(*net.TCPConn).SetReadBuffer(1<<16))
	_, err = fmt.Fprintf(nc, "GET /api/live HTTP/1.1\r\nHost: %s\r\nCookie: %s=%s\r\nConnection: close\r\n\r\n", strings.TrimPrefix(p.base, "http://"), p.cookie.Name, p.cookie.Value)
	require.NoError(t, err)
	l := p.server.live
	listeners := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.listeners)
	}
	require.Eventually(t, func() bool { return listeners() == 2 }, patience, time.Millisecond)
	large := encode(strings.Repeat("x", 1<<16))
	sent := 0
	for ; listeners() == 2; sent++ {
		require.Less(t, sent, maxQueued+400, "what waits for it is bounded")
		l.mu.Lock()
		l.broadcastLocked("large", large)
		l.mu.Unlock()
		quick.until("what was sent", func(e told) bool { return e.name == "large" })
	}
	require.Greater(t, sent, 1)
	require.Equal(t, 1, listeners(), "and the other one goes on")
	quick.next()
	require.NoError(t, nc.SetReadDeadline(time.Now().Add(patience)))
	rest, err := io.ReadAll(nc)
	if ne := net.Error(nil); err != nil {
		require.NotErrorAs(t, err, &ne, "the stream has not ended")
	}
	require.Less(t, bytes.Count(rest, []byte("event: large")), sent, "what waited for it is dropped")
}

func TestWhatWaitsForAPageIsBoundedInBytes(t *testing.T) {
	p := &listener{queue: make(chan message, maxQueued), cut: make(chan struct{})}
	whole := message{"reset", make([]byte, maxQueuedBytes+1)}
	require.True(t, p.offer(whole), "one that is alone has room, or no page could ever show it")
	require.False(t, p.offer(message{"state", []byte("x")}))
	p.taken(<-p.queue)
	for range maxQueued {
		require.True(t, p.offer(message{"state", []byte("x")}))
	}
	require.False(t, p.offer(message{"state", []byte("x")}))
}

func TestPagesAreBounded(t *testing.T) {
	x := newWorld(t)
	p := x.opened(x.reader, nil)
	var last *feed
	for range maxListeners {
		last = p.live()
		last.next()
	}
	r := p.get("/api/live", nil)
	require.Equal(t, http.StatusServiceUnavailable, r.status)
	require.Equal(t, "BUSY", r.code(t))
	require.NotEmpty(t, r.header.Get("Retry-After"))
	last.close()
	require.Eventually(t, func() bool {
		a, err := p.http.Do(p.request("GET", "/api/live", ""))
		require.NoError(t, err)
		defer a.Body.Close()
		return a.StatusCode == http.StatusOK
	}, patience, 10*time.Millisecond)

	p.end() // while they are open
	for range last.events {
	}
	require.Empty(t, p.noise.String())
}
