// Bench measures the coordinator beside etcd, NATS JetStream and Redis Streams, and beside
// what the machine allows, in one run, and writes one table of ratios.
//
//	go run . -all -out results.json -table table.md   everything, under ten minutes
//	go run . -own                                      the coordinator's own figures
//	go run . -run 'own/commands|redis'                 the parts whose names match
//	go run . -growth 1 -svg ../docs                    curves over the amount of state
//	go run . -report a.json,b.json,c.json              finished runs, pooled
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"coordinator/bench/internal/limits"
	"coordinator/bench/internal/measure"
	"coordinator/bench/internal/own"
	"coordinator/bench/internal/peers"
	"coordinator/bench/internal/report"
)

func main() {
	measure.RunChild(os.Args[1:], children())
	var o options
	o.register(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// children are all kinds of processes that run as this program.
func children() map[string]func([]string) error {
	kinds := peers.Children()
	for kind, run := range limits.Children() {
		kinds[kind] = run
	}
	return kinds
}

type options struct {
	all, own, list    bool
	match             string
	growth            float64
	out, table, svg   string
	pooled            string
	dir, root         string
	scale             float64
	budget, partLimit time.Duration
	profile           string
}

func (o *options) register(f *flag.FlagSet) {
	f.BoolVar(&o.all, "all", false, "every part")
	f.BoolVar(&o.own, "own", false, "the coordinator's parts")
	f.BoolVar(&o.list, "list", false, "list the parts")
	f.StringVar(&o.match, "run", "", "the parts whose names match this expression")
	f.Float64Var(&o.growth, "growth", 0, "measure growth up to this share of the largest state, 1 for all of it")
	f.StringVar(&o.out, "out", "", "write the results to this file as JSON")
	f.StringVar(&o.table, "table", "", "write the tables to this file")
	f.StringVar(&o.svg, "svg", "", "write the curves of growth into this directory")
	f.StringVar(&o.pooled, "report", "", "report these results, separated by commas, and run nothing")
	f.StringVar(&o.dir, "dir", "", "where the state lives, on the disk to be measured (default: the system's directory for such files, if it is on this disk)")
	f.StringVar(&o.root, "root", "..", "the coordinator's module")
	f.Float64Var(&o.scale, "scale", 1, "stretch every measuring window and every amount of state")
	f.DurationVar(&o.budget, "budget", 570*time.Second, "time for everything")
	f.DurationVar(&o.partLimit, "part", 240*time.Second, "time for one part")
	f.StringVar(&o.profile, "profile", "", "write profiles of the coordinator under load into this directory; -run chooses loads")
}

func (o *options) run(ctx context.Context) error {
	if o.pooled != "" {
		res, err := measure.Load(strings.Split(o.pooled, ","))
		if err != nil {
			return err
		}
		return o.write(res)
	}
	parts, err := o.parts()
	if err != nil {
		return err
	}
	if o.list {
		for _, p := range parts {
			fmt.Println(p.Name)
		}
		return nil
	}
	// The receive buffers are what the machine gives; every run has the same.
	if err := os.Setenv("QUIC_GO_DISABLE_RECEIVE_BUFFER_WARNING", "true"); err != nil {
		return err
	}
	tmp, err := o.tempDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	res, err := o.measure(ctx, tmp, parts)
	if res != nil { // one that was stopped says what it has
		err = errors.Join(err, o.write(res))
	}
	return err
}

// measure builds the coordinator and runs the parts.
func (o *options) measure(ctx context.Context, tmp string, parts []measure.Part) (*measure.Results, error) {
	bin, work := filepath.Join(tmp, "bin"), filepath.Join(tmp, "work")
	for _, d := range []string{bin, work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := own.Build(ctx, o.root, bin, o.profile != ""); err != nil {
		return nil, err
	}
	r := measure.Runner{Dir: work, Bin: bin, Scale: o.scale, Budget: o.budget, PartLimit: o.partLimit, Log: os.Stderr}
	res := r.Run(ctx, parts)
	res.Modules = measure.Modules(append(peers.Modules(), limits.Modules()...)...)
	if v := peers.RedisVersion(); v != "" {
		res.Modules["redis-server"] = v
	}
	return res, ctx.Err()
}

// parts are those that the options choose, in the order in which they run.
func (o *options) parts() ([]measure.Part, error) {
	if o.growth > 0 {
		return o.matching(own.Growth(o.growth))
	}
	usual, extra := inOrder(limits.Parts(), peers.Parts(), own.Parts()), limits.Extra()
	if o.profile != "" {
		usual, extra = own.Profiles(o.profile), nil
		if o.match == "" {
			return usual, nil
		}
	}
	if o.list || o.all {
		return usual, nil
	}
	if o.own {
		return own.Parts(), nil
	}
	if o.match == "" {
		return nil, errors.New("nothing to run: give -all, -own or -run; -list tells what there is")
	}
	return o.matching(append(usual, extra...))
}

// matching are the parts whose names the expression matches, all without one.
func (o *options) matching(parts []measure.Part) ([]measure.Part, error) {
	re, err := regexp.Compile(o.match)
	if err != nil {
		return nil, err
	}
	var chosen []measure.Part
	for _, p := range parts {
		if re.MatchString(p.Name) {
			chosen = append(chosen, p)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no part's name matches %q", o.match)
	}
	return chosen, nil
}

// inOrder puts what is compared side by side, so that the machine is in the same mood.
func inOrder(groups ...[]measure.Part) (ordered []measure.Part) {
	left := map[string]measure.Part{}
	var names []string
	for _, g := range groups {
		for _, p := range g {
			left[p.Name] = p
			names = append(names, p.Name)
		}
	}
	for _, name := range append(sideBySide, names...) {
		if p, ok := left[name]; ok {
			ordered = append(ordered, p)
			delete(left, name)
		}
	}
	return ordered
}

// sideBySide is the order of the parts that are compared.
var sideBySide = []string{
	"limits/disk", "etcd/put", "own/commands", "redis/xadd", "nats/publish", "etcd/txn", "own/compare",
	"etcd/watch100", "own/fan100", "redis/fanout100", "nats/fanout100",
	"etcd/watch500", "own/fan500", "redis/fanout500", "nats/fanout500", "limits/fanout",
	"own/quic", "limits/quicfan", "own/quicfan",
	"limits/crypto", "limits/quic", "own/reading", "nats/replay", "etcd/range",
	"limits/unix", "etcd/connect", "own/connect", "own/codec", "own/idle", "own/restart",
}

// tempDir makes the directory under test: where the system keeps such files, if that is on
// the disk of this one, else here.
func (o *options) tempDir() (string, error) {
	base := o.dir
	if base == "" {
		here, err := os.Getwd()
		if err != nil {
			return "", err
		}
		base = here
		var a, b syscall.Stat_t
		if syscall.Stat(here, &a) == nil && syscall.Stat(os.TempDir(), &b) == nil && a.Dev == b.Dev {
			base = os.TempDir() // a Unix socket's path is short
		}
	}
	return os.MkdirTemp(base, "bench-")
}

// write writes the results where the options say.
func (o *options) write(res *measure.Results) error {
	if o.out != "" {
		if err := res.Save(o.out); err != nil {
			return err
		}
	}
	if o.svg != "" {
		if err := report.Curves(o.svg, res); err != nil {
			return err
		}
	}
	var out io.Writer = os.Stdout
	if o.table != "" {
		f, err := os.Create(o.table)
		if err != nil {
			return err
		}
		defer f.Close()
		out = io.MultiWriter(os.Stdout, f)
	}
	return report.Write(out, res)
}
