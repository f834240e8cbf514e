package witness

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"coordinator/frames"
	"coordinator/handshake/link"
)

// endsAfter drives one peer and says when its connection ended.
func endsAfter(t *testing.T, drive func(r *rig, p *peer)) (d time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, linkRecord(ScopeAll))
		start := time.Now()
		drive(r, r.peer())
		d = time.Since(start)
	})
	return d
}

// drain reads until the connection ends, answering nothing.
func (p *peer) drain() (pings int) {
	for {
		f, err := p.r.Next(anyType)
		if err != nil {
			return pings
		}
		if _, ok := f.(*frames.Ping); ok {
			pings++
		}
	}
}

// every runs f now and every d until it fails or stop, which joins it.
func every(d time.Duration, f func() error) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for f() == nil {
			select {
			case <-time.After(d):
			case <-done:
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func TestDeadlinesOfAConnection(t *testing.T) {
	require.Equal(t, 5*time.Second, endsAfter(t, func(_ *rig, p *peer) { p.drain() }), "no first frame")
	require.Equal(t, 5*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		p.nc.Write([]byte{0, 0, 0})
		p.drain()
	}), "half a header")
	require.Equal(t, 10*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		stop := every(time.Second, func() error { return link.WriteFrame(p.nc, &frames.Ping{}) })
		p.drain() // pings prolong nothing
		stop()
	}), "pings instead of a hello")
	require.Equal(t, 5*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		p.challenge()
		p.drain()
	}), "no response")
	require.Equal(t, 9*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		p.send(&frames.Ping{})
		p.recv()
		time.Sleep(4 * time.Second)
		p.challenge()
		p.drain()
	}), "no response after a late hello")
	require.Equal(t, 10*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		p.send(&frames.Ping{})
		p.recv()
		time.Sleep(8 * time.Second)
		p.challenge()
		p.drain()
	}), "no response after a very late hello")
	require.Equal(t, 45*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		p.ready()
		require.Equal(t, 1, p.drain(), "one ping per silence")
	}), "silence after the hello")
	require.Equal(t, 45*time.Second, endsAfter(t, func(_ *rig, p *peer) {
		p.ready()
		_, err := p.nc.Write([]byte{0, 0, 0x30, 0, byte(TypeGetStatus)})
		require.NoError(p.t, err)
		stop := every(7*time.Second, func() error { _, err := p.nc.Write([]byte{0}); return err })
		p.drain() // a frame that never ends is silence
		stop()
	}), "one byte now and then")
}

// A peer that sends requests and never reads costs a bounded queue, and is closed.
func TestPeerThatNeverReads(t *testing.T) {
	d := endsAfter(t, func(r *rig, p *peer) {
		p.ready()
		for i := frames.RequestID(1); ; i++ {
			if link.WriteFrame(p.nc, &GetStatus{RequestID: i, CoordinatorID: coordA}) != nil {
				require.Less(t, i, frames.RequestID(32+5))
				return
			}
		}
	})
	require.Zero(t, d)
}

func TestAnsweredPingsKeepAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRig(t, nil, linkRecord(ScopeAll)).peer()
		p.ready()
		start := time.Now()
		for range 40 {
			ping := p.recv().(*frames.Ping)
			p.send(&frames.Pong{Nonce: ping.Nonce})
		}
		require.GreaterOrEqual(t, time.Since(start), 10*time.Minute)
		p.send(&GetStatus{RequestID: 1, CoordinatorID: coordA})
		require.IsType(t, &StatusReply{}, p.recv())
	})
}

func TestExpiredGrantEndsAnIdleConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := linkRecord(ScopeAll)
		rec.ExpiresAt = uint64(time.Now().Unix()) + 8
		p := newRig(t, nil, rec).peer()
		ok := p.ready()
		require.Equal(t, rec.ExpiresAt, ok.Grant.ExpiresAt)
		start := time.Now()
		p.wantError(frames.CodeAuthenticationFailed, 0)
		require.Equal(t, 8*time.Second, time.Since(start))
	})
}
