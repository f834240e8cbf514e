package own

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"time"

	"coordinator/bench/internal/measure"
	"coordinator/client"
)

// profileSeconds is how long the CPU is sampled.
const profileSeconds = 8

// Profiles are parts that write profiles of the coordinator under each load into dir, for
// `go tool pprof`, and the CPU profile of the client beside them. The programs must have
// been built with profiles.
func Profiles(dir string) []measure.Part {
	commandsOf := func(n int) profiled {
		return func(ctx context.Context, e *measure.Env, r *rig, begin func()) error {
			begin()
			return r.commands(ctx, e, r.unix, fmt.Sprintf("profiled.command.c%d", n), n, 1)
		}
	}
	fanOf := func(over transport, n int) profiled {
		return func(ctx context.Context, e *measure.Env, r *rig, begin func()) error {
			busy := func(ctx context.Context, name string, subs []*measure.Subscriber, pid int, publish func(int, []byte) error) error {
				begin()
				return e.Fan(ctx, measure.Fan{
					Name: name, Subs: subs, Reps: 1, InFlight: 64, Window: e.Window(750), Drain: 10 * time.Second, PID: pid, Publish: publish,
				})
			}
			return r.fan(ctx, e, over, fmt.Sprintf("profiled.fan%d.f64", n), n, fanQuotas(n), busy)
		}
	}
	loads := []struct {
		name string
		run  profiled
	}{
		{"command1", commandsOf(1)}, {"command64", commandsOf(64)}, {"command256", commandsOf(256)},
		{"quic64", func(ctx context.Context, e *measure.Env, r *rig, begin func()) error {
			begin()
			return r.commands(ctx, e, r.quic, "profiled.quic.c64", 64, 1)
		}},
		{"fan100", fanOf(overUnix, 100)}, {"fan500", fanOf(overUnix, 500)}, {"quicfan100", fanOf(overQUIC, 100)},
		{"snapshot", snapshots}, {"replay", replays}, {"connect", connects},
	}
	var parts []measure.Part
	for _, l := range loads {
		parts = append(parts, measure.Part{Name: "profile/" + l.name, Run: func(ctx context.Context, e *measure.Env) error {
			return profile(ctx, e, filepath.Join(dir, l.name), l.run)
		}})
	}
	return parts
}

// A profiled load calls begin once it is prepared.
type profiled func(ctx context.Context, e *measure.Env, r *rig, begin func()) error

// snapshots takes snapshots for as long as the CPU is sampled.
func snapshots(ctx context.Context, e *measure.Env, r *rig, begin func()) error {
	if err := r.fill(ctx, readRecords, readRecords); err != nil {
		return err
	}
	begin()
	for end := time.Now().Add(profileSeconds * time.Second); time.Now().Before(end); {
		if err := r.snapshot(ctx, e, r.unix, "profiled.snapshot", readRecords); err != nil {
			return err
		}
	}
	return nil
}

// replays replays for as long as the CPU is sampled.
func replays(ctx context.Context, e *measure.Env, r *rig, begin func()) error {
	if err := r.fill(ctx, readRecords, readRecords); err != nil {
		return err
	}
	begin()
	for end := time.Now().Add(profileSeconds * time.Second); time.Now().Before(end); {
		if err := r.replay(ctx, e, readRecords); err != nil {
			return err
		}
	}
	return nil
}

// connects makes connections for as long as the CPU is sampled.
func connects(ctx context.Context, _ *measure.Env, r *rig, begin func()) error {
	state, err := client.OpenState(r.unix)
	if err != nil {
		return err
	}
	begin()
	for end := time.Now().Add(profileSeconds * time.Second); time.Now().Before(end); {
		c, err := r.dial(ctx, r.unix, client.Options{State: state})
		if err != nil {
			return err
		}
		if err := errors.Join(c.Ping(ctx), c.Close()); err != nil {
			return err
		}
	}
	return nil
}

// profile runs one load and samples the coordinator meanwhile. The load's own windows are
// stretched to last as long.
func profile(ctx context.Context, e *measure.Env, path string, load profiled) error {
	addr, err := freeUDP() // nobody uses that number over TCP either, or the fetch fails
	if err != nil {
		return err
	}
	root, err := e.TempDir("own")
	if err != nil {
		return err
	}
	r := &rig{bin: e.Bin, root: root, lease: usualLease, pprof: addr}
	defer r.stop()
	if err := r.start(ctx, fanQuotas(growthFan)); err != nil {
		return err
	}
	ours, err := os.Create(path + ".client.cpu")
	if err != nil {
		return err
	}
	defer ours.Close()
	stretched := *e
	stretched.Scale = profileSeconds / 0.75
	begun, loaded := make(chan struct{}), make(chan error, 1)
	go func() { loaded <- load(ctx, &stretched, r, func() { close(begun) }) }()
	select {
	case <-begun:
	case err := <-loaded:
		return err
	}
	if err := pprof.StartCPUProfile(ours); err != nil {
		return errors.Join(err, <-loaded)
	}
	err = r.fetch(ctx, path+".cpu", fmt.Sprintf("profile?seconds=%d", profileSeconds))
	pprof.StopCPUProfile()
	for _, name := range []string{"allocs", "block", "mutex", "goroutine"} {
		err = errors.Join(err, r.fetch(ctx, path+"."+name, name))
	}
	return errors.Join(err, <-loaded)
}

// fetch saves one profile of the coordinator.
func (r *rig) fetch(ctx context.Context, path, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.pprof+"/debug/pprof/"+name, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile %s: %s", name, resp.Status)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(f, resp.Body)
	return err
}
