package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"coordinator/bench/internal/measure"
)

const (
	natsStream  = "S"
	natsSubject = "e.x"
	natsAll     = "e.>"
	replayed    = 100_000
)

// How a JetStream server syncs: before every acknowledgement, or every two minutes, which
// only fills a stream quickly.
const (
	syncAlways = "always"
	syncRarely = "rarely"
)

// serveNATS runs one server with JetStream on files.
func serveNATS(args []string) error {
	o := &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: args[0], NoSigs: true, NoLog: true,
		JetStreamMaxStore: 8 << 30, JetStreamMaxMemory: 1 << 30, SyncInterval: 2 * time.Minute, SyncAlways: args[1] == syncAlways,
	}
	s, err := server.NewServer(o)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(readyWait) {
		return errors.New("nats did not become ready")
	}
	return measure.Serving(map[string]string{"url": s.ClientURL()})
}

// A natsRig is a running server with one stream and the connections to it.
type natsRig struct {
	child *measure.Child
	conns []*nats.Conn
	js    []jetstream.JetStream
}

func startNATS(ctx context.Context, e *measure.Env, sync string, conns int) (*natsRig, error) {
	dir, err := e.TempDir("nats")
	if err != nil {
		return nil, err
	}
	child, err := measure.StartChild(ctx, "nats", dir, sync)
	if err != nil {
		return nil, err
	}
	n := &natsRig{child: child}
	if err := n.open(ctx, conns); err != nil {
		n.stop()
		return nil, err
	}
	return n, nil
}

func (n *natsRig) open(ctx context.Context, conns int) error {
	for range conns {
		nc, err := nats.Connect(n.child.Ready["url"])
		if err != nil {
			return err
		}
		n.conns = append(n.conns, nc)
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		n.js = append(n.js, js)
	}
	_, err := n.js[0].CreateStream(ctx, jetstream.StreamConfig{Name: natsStream, Subjects: []string{natsAll}, Storage: jetstream.FileStorage, Replicas: 1})
	return err
}

func (n *natsRig) stop() {
	for _, c := range n.conns {
		c.Close()
	}
	n.child.Stop()
}

func natsPublish(ctx context.Context, e *measure.Env) error {
	n, err := startNATS(ctx, e, syncAlways, writers)
	if err != nil {
		return err
	}
	defer n.stop()
	value := measure.Payload(1, measure.ValueSize)
	for _, c := range []int{1, 64, 256} {
		err := e.Run(ctx, measure.Loop{
			Name: fmt.Sprintf("nats.publish.c%d", c), Workers: c, Warm: e.Window(200), Window: e.Window(500), Reps: 3, PID: n.child.PID(),
			Do: func(w, _ int) error {
				_, err := n.js[w%writers].Publish(ctx, natsSubject, value)
				return err
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// natsFan fans out to n ordered push consumers, which have flow control and heartbeats,
// each on a connection of its own.
func natsFan(count int) func(context.Context, *measure.Env) error {
	return func(ctx context.Context, e *measure.Env) error {
		n, err := startNATS(ctx, e, syncAlways, writers+count)
		if err != nil {
			return err
		}
		defer n.stop()
		subs := measure.NewSubscribers(count)
		for i, sub := range subs {
			js, err := n.conns[writers+i].JetStream()
			if err != nil {
				return err
			}
			_, err = js.Subscribe(natsAll, func(m *nats.Msg) {
				md, err := m.Metadata()
				if err != nil {
					sub.Bad()
					return
				}
				sub.Take(m.Data, measure.Now(), md.Sequence.Stream)
			}, nats.OrderedConsumer(), nats.BindStream(natsStream), nats.DeliverNew())
			if err != nil {
				return err
			}
		}
		return e.FanBoth(ctx, fmt.Sprintf("nats.fan%d", count), subs, n.child.PID(), func(w int, event []byte) error {
			_, err := n.js[w%writers].Publish(ctx, natsSubject, event)
			return err
		})
	}
}

// natsReplay reads a stored stream from its beginning, by push and by pull.
func natsReplay(ctx context.Context, e *measure.Env) error {
	n, err := startNATS(ctx, e, syncRarely, 1)
	if err != nil {
		return err
	}
	defer n.stop()
	value := measure.Payload(1, measure.ValueSize)
	for range replayed {
		if _, err := n.js[0].PublishAsync(natsSubject, value); err != nil {
			return err
		}
	}
	select {
	case <-n.js[0].PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	for range 3 {
		for name, begin := range map[string]func(context.Context, *nats.Conn, func()) error{
			"nats.replay.push": replayPush, "nats.replay.pull": replayPull,
		} {
			took, err := n.replay(ctx, begin)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			e.Rec.Add(name, "msgs/s", replayed/took.Seconds())
		}
	}
	return nil
}

// replay times one consumer from its creation to the last message.
func (n *natsRig) replay(ctx context.Context, begin func(context.Context, *nats.Conn, func()) error) (time.Duration, error) {
	nc, err := nats.Connect(n.child.Ready["url"])
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	done := make(chan struct{})
	got := 0
	var once sync.Once
	began := time.Now()
	err = begin(ctx, nc, func() {
		if got++; got == replayed {
			once.Do(func() { close(done) })
		}
	})
	if err != nil {
		return 0, err
	}
	select {
	case <-done:
		return time.Since(began), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func replayPush(_ context.Context, nc *nats.Conn, on func()) error {
	js, err := nc.JetStream()
	if err != nil {
		return err
	}
	s, err := js.Subscribe(natsAll, func(*nats.Msg) { on() }, nats.OrderedConsumer(), nats.BindStream(natsStream), nats.DeliverAll())
	if err != nil {
		return err
	}
	return s.SetPendingLimits(-1, -1)
}

func replayPull(ctx context.Context, nc *nats.Conn, on func()) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	c, err := js.OrderedConsumer(ctx, natsStream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return err
	}
	_, err = c.Consume(func(jetstream.Msg) { on() }, jetstream.PullMaxMessages(10_000)) // it ends with the connection
	return err
}
