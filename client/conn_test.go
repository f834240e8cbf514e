package client

import (
	"bufio"
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/internal/clock"
)

// A ticking clock moves by tick with every reading.
type ticking struct {
	clock.Clock
	now  clock.Reading
	tick time.Duration
	read int
}

func (t *ticking) Now() clock.Reading {
	t.read++
	t.now.Wall, t.now.Boot = t.now.Wall.Add(t.tick), t.now.Boot+t.tick
	return t.now
}

// TestOnlyEventsAreJudgedByTheReadingOfTheirSocketRead reads two events and an answer that
// came at once, while the clock passes the certificate's expiry.
func TestOnlyEventsAreJudgedByTheReadingOfTheirSocketRead(t *testing.T) {
	now := &ticking{now: clock.Reading{Wall: start, Boot: time.Hour}}
	c, s := following(now)
	k := &call{id: 4, replies: make(chan frames.Frame, 2), want: frames.TypeAck}
	c.calls, c.slots = map[frames.RequestID]*call{k.id: k}, make(chan struct{}, 1)
	c.slots <- struct{}{}
	f := &feed{id: s.id}
	var wire []byte
	for _, f := range []frames.Frame{f.live(change(1, 1, 1)), f.live(change(2, 1, 2)), &frames.Ack{RequestID: k.id}} {
		var err error
		wire, err = frames.Append(wire, f)
		require.NoError(t, err)
	}
	now.read, now.tick = 0, 31*time.Minute // the second reading lies behind the expiry
	require.ErrorIs(t, c.readLoop(bufio.NewReader(bytes.NewReader(wire))), ErrExpired)
	require.Equal(t, 2, now.read)
	require.Empty(t, k.replies, "the answer was acted on after the expiry")
	require.Len(t, s.queue, 2)
	require.True(t, s.waiting())
	c.state = &State{conns: map[*Conn]struct{}{}}
	var pipe net.Conn
	c.nc, pipe = net.Pipe()
	defer pipe.Close()
	_, err := s.Next(t.Context())
	require.ErrorIs(t, err, ErrExpired)
	require.Zero(t, s.Cut(), "an event was handed out after the expiry")
}
