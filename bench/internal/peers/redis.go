package peers

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"coordinator/bench/internal/measure"
)

// ErrNoRedis says how to get the one peer that is no Go module.
var ErrNoRedis = errors.New("no redis-server on this machine; install it with: apt-get install redis-server")

// RedisVersion is that of the machine's Redis, empty when there is none.
func RedisVersion() string {
	out, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		return ""
	}
	for _, f := range strings.Fields(string(out)) {
		if v, ok := strings.CutPrefix(f, "v="); ok {
			return v
		}
	}
	return ""
}

// A redis is a running server with appendfsync always, on a Unix socket.
type redis struct {
	cmd   *exec.Cmd
	exit  <-chan error
	sock  string
	conns []*respConn
}

func (r *redis) stop() {
	for _, c := range r.conns {
		c.Close() //nolint:errcheck // the server goes next
	}
	r.cmd.Process.Kill() //nolint:errcheck // it may have ended by itself
	<-r.exit
}

func startRedis(ctx context.Context, e *measure.Env) (*redis, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoRedis
	}
	dir, err := e.TempDir("redis")
	if err != nil {
		return nil, err
	}
	r := &redis{sock: filepath.Join(dir, "r.sock")}
	r.cmd = exec.Command(program, "--port", "0", "--unixsocket", r.sock, "--dir", dir, "--daemonize", "no",
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--loglevel", "warning", "--maxclients", "2000")
	if r.exit, err = measure.Spawn(r.cmd); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(readyWait); time.Now().Before(deadline) && ctx.Err() == nil; measure.Sleep(ctx, 30*time.Millisecond) {
		if r.answers() {
			return r, nil
		}
	}
	r.stop()
	return nil, errors.New("redis-server did not become ready")
}

func (r *redis) answers() bool {
	c, err := dialRESP(r.sock)
	if err != nil {
		return false
	}
	defer c.Close()
	_, err = c.do("PING")
	return err == nil
}

// dial gives n more connections, which end with the server.
func (r *redis) dial(n int) ([]*respConn, error) {
	first := len(r.conns)
	for range n {
		c, err := dialRESP(r.sock)
		if err != nil {
			return nil, err
		}
		r.conns = append(r.conns, c)
	}
	return r.conns[first:], nil
}

func redisXadd(ctx context.Context, e *measure.Env) error {
	r, err := startRedis(ctx, e)
	if err != nil {
		return err
	}
	defer r.stop()
	value := string(measure.Payload(1, measure.ValueSize))
	for _, n := range []int{1, 64, 256} {
		conns, err := r.dial(n)
		if err != nil {
			return err
		}
		err = e.Run(ctx, measure.Loop{
			Name: fmt.Sprintf("redis.xadd.c%d", n), Workers: n, Warm: e.Window(200), Window: e.Window(750), Reps: 5, PID: r.cmd.Process.Pid,
			Do: func(w, _ int) error {
				_, err := conns[w].do("XADD", "s", "*", "d", value)
				return err
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// redisFan fans out to n readers that block in XREAD, each on a connection of its own. The
// stream is not trimmed, so that nothing goes from under a slow reader.
func redisFan(n int) func(context.Context, *measure.Env) error {
	return func(ctx context.Context, e *measure.Env) error {
		r, err := startRedis(ctx, e)
		if err != nil {
			return err
		}
		var readers sync.WaitGroup
		defer readers.Wait() // they end with the server
		defer r.stop()
		publishers, err := r.dial(64)
		if err != nil {
			return err
		}
		if _, err := publishers[0].do("XADD", "s", firstID, "d", "x"); err != nil {
			return err
		}
		conns, err := r.dial(n)
		if err != nil {
			return err
		}
		subs := measure.NewSubscribers(n)
		for i, sub := range subs {
			readers.Go(func() { readStream(conns[i], sub) })
		}
		return e.FanBoth(ctx, fmt.Sprintf("redis.fan%d", n), subs, r.cmd.Process.Pid, func(w int, event []byte) error {
			_, err := publishers[w].do("XADD", "s", "*", "d", string(event))
			return err
		})
	}
}

// firstID is that of the entry behind which the readers begin.
const firstID = "1-0"

func readStream(c *respConn, sub *measure.Subscriber) {
	for last := firstID; ; {
		reply, err := c.do("XREAD", "COUNT", "1000", "BLOCK", "0", "STREAMS", "s", last)
		if err != nil {
			return // the connection was closed
		}
		now := measure.Now()
		for _, stream := range list(reply) {
			if pair := list(stream); len(pair) == 2 {
				last = takeEntries(list(pair[1]), now, sub, last)
			}
		}
	}
}

// takeEntries takes entries of the form [id, [field, value]], and gives the last id.
func takeEntries(entries []any, now int64, sub *measure.Subscriber, last string) string {
	for _, entry := range entries {
		fields := list(entry)
		if len(fields) != 2 || len(list(fields[1])) != 2 {
			sub.Bad()
			continue
		}
		id, _ := fields[0].([]byte)
		value, _ := list(fields[1])[1].([]byte)
		last = string(id)
		sub.Take(value, now, entryOrder(last))
	}
	return last
}

// entryOrder makes one number of milliseconds-sequence, in the same order; zero, which no
// subscriber takes, when it is none.
func entryOrder(id string) uint64 {
	ms, seq, _ := strings.Cut(id, "-")
	m, err1 := strconv.ParseUint(ms, 10, 64)
	q, err2 := strconv.ParseUint(seq, 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return m<<20 | q
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}
