package lograte

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"coordinator/internal/clock"

	"github.com/stretchr/testify/require"
)

const (
	burst = 32
	every = time.Second
)

func newLimiter() (*Limiter, *clock.Manual, *bytes.Buffer, *slog.Logger) {
	m := clock.NewManual(clock.Reading{Wall: time.Unix(1_800_000_000, 0), Boot: time.Hour})
	out := new(bytes.Buffer)
	return New(m, burst, every), m, out, slog.New(slog.NewTextHandler(out, nil))
}

// TestLinesAreBounded writes a line for each of thousands: the first come through, later ones
// at their pace, and none goes uncounted.
func TestLinesAreBounded(t *testing.T) {
	q, m, out, log := newLimiter()
	lines := func() int { return strings.Count(out.String(), "\n") }
	for range 5000 {
		q.Say(log, slog.LevelInfo, "one more")
	}
	require.Equal(t, burst, lines())
	require.NotContains(t, out.String(), "unlogged")
	out.Reset()
	for range 30 {
		m.Advance(every / 10)
		q.Say(log, slog.LevelInfo, "one more")
	}
	require.Equal(t, 3, lines())
	require.Contains(t, out.String(), fmt.Sprintf("unlogged=%d", 5000-burst+9))
	out.Reset()
	m.Advance(burst * every)
	for range 5000 {
		q.Say(log, slog.LevelInfo, "one more")
	}
	require.Equal(t, burst, lines())
	require.EqualValues(t, 10_030, q.Total())
}

// TestWhatWasLeftOutIsToldWithoutAnother: nobody comes any more, and the count is told anyway.
func TestWhatWasLeftOutIsToldWithoutAnother(t *testing.T) {
	q, m, out, log := newLimiter()
	for range 5000 {
		q.Say(log, slog.LevelInfo, "one more")
	}
	out.Reset()
	q.Flush(log, "visitors")
	require.Empty(t, out.String(), "the bucket is empty still")
	m.Advance(every)
	q.Flush(log, "visitors")
	require.Contains(t, out.String(), fmt.Sprintf(`msg="lines left out" kind=visitors unlogged=%d`, 5000-burst))
	out.Reset()
	m.Advance(burst * every)
	q.Flush(log, "visitors")
	require.Empty(t, out.String(), "it was told")
}

func TestRunTellsNowAndThen(t *testing.T) {
	_, m, out, log := newLimiter()
	set := NewSet(m)
	q := set.Add("visitors", burst, every)
	for range burst + 3 {
		q.Say(log, slog.LevelInfo, "one more")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		set.Run(ctx, log)
	}()
	require.Eventually(t, func() bool { return m.Timers() == 1 }, time.Minute, time.Millisecond)
	m.Advance(TellEvery)
	require.Eventually(t, func() bool { return q.pending() == 0 }, time.Minute, time.Millisecond)
	for range 100 {
		q.Say(log, slog.LevelInfo, "one more")
	}
	m.Advance(every) // room for a line, before its time
	cancel()
	<-ended
	require.Contains(t, out.String(), "kind=visitors unlogged=3")
	require.Equal(t, 2, strings.Count(out.String(), "lines left out"))
}

// pending is what was left out and not yet told of.
func (q *Limiter) pending() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.skipped
}

func TestReason(t *testing.T) {
	require.Equal(t, "the peer closed", Reason(nil))
	require.Equal(t, "the peer closed", Reason(fmt.Errorf("read: %w", io.EOF)))
	long := Reason(errors.New(strings.Repeat("\xff日", MaxText)))
	require.LessOrEqual(t, len(long), MaxText)
	require.True(t, utf8.ValidString(long))
}
