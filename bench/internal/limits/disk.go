package limits

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"coordinator/bench/internal/measure"
)

// diskLoad writes blocks one after the other, each followed by an fdatasync.
type diskLoad struct {
	name    string
	size    int
	written int64 // how much of the file is there before; zero appends
	files   int   // written at once
}

// disk measures how often the disk can make something durable.
func disk(ctx context.Context, e *measure.Env) error {
	for _, l := range []diskLoad{
		{"fdatasync.append4k", 4 << 10, 0, 1},
		{"fdatasync.overwrite4k", 4 << 10, 64 << 20, 1},
		{"fdatasync.append4k.2files", 4 << 10, 0, 2},
		{"fdatasync.append64k", 64 << 10, 0, 1},
		{"fdatasync.append1m", 1 << 20, 0, 1},
	} {
		for range 3 {
			if err := l.run(ctx, e); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
		}
	}
	return nil
}

func (l *diskLoad) run(ctx context.Context, e *measure.Env) error {
	dir, err := e.TempDir("sync")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var writes atomic.Int64
	h := new(measure.Hist)
	var g errgroup.Group
	files := make([]*os.File, l.files)
	for i := range files {
		if files[i], err = l.create(filepath.Join(dir, fmt.Sprint(i))); err != nil {
			return err
		}
		defer files[i].Close()
	}
	before := e.Probe(0)
	end := time.Now().Add(e.Window(300))
	for _, f := range files {
		g.Go(func() error { return l.write(f, end, h, &writes) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	after := e.Probe(0)
	n := float64(writes.Load())
	took := after.At.Sub(before.At).Seconds()
	e.Rec.Add(l.name, "/s", n/took)
	if l.size >= 64<<10 {
		e.Rec.Add(l.name+".rate", "MB/s", n*float64(l.size)/1e6/took)
	}
	e.Rec.Add(l.name+".p50", "µs", h.Quantile(.5)/1e3)
	e.Rec.Add(l.name+".p99", "µs", h.Quantile(.99)/1e3)
	if before.HasFlushes {
		e.Rec.Add(l.name+".flushes", "per op", float64(after.Flushes-before.Flushes)/n)
	}
	return ctx.Err()
}

func (l *diskLoad) create(path string) (*os.File, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, l.written)); err != nil {
		f.Close()
		return nil, err
	}
	return f, f.Sync()
}

func (l *diskLoad) write(f *os.File, end time.Time, h *measure.Hist, writes *atomic.Int64) error {
	block := measure.Payload(2, l.size)
	for off := int64(0); time.Now().Before(end); off += int64(l.size) {
		if l.written > 0 && off+int64(l.size) > l.written {
			off = 0
		}
		began := time.Now()
		if _, err := f.WriteAt(block, off); err != nil {
			return err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		h.Record(int64(time.Since(began)))
		writes.Add(1)
	}
	return nil
}
