package handshake

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"coordinator/internal/durable"

	"github.com/fsnotify/fsnotify"
)

// Run follows the file until ctx ends, whose error it returns. A change takes
// effect within 2 s however it was made, and so does a file that stays bad. At most
// one Run at a time.
func (r *Registry) Run(ctx context.Context) error {
	if r.path == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	w := watcher{r: r, dir: filepath.Dir(r.path)}
	defer w.close()
	p := publisher{path: r.path}
	defer p.close()
	t := r.startTelling(ctx)
	defer t.join()
	timer := r.clock.NewTimer(0) // the file may have changed since OpenRegistry
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ev, ok := <-w.events():
			if !ok {
				w.close()
			} else if filepath.Base(ev.Name) != filepath.Base(r.path) && ev.Name != w.dir {
				continue // the store's own files live here too
			}
		case <-w.errors(): // events were lost, so look
		case <-timer.C():
		}
		w.ensure()
		timer.Reset(r.reload(&p, t))
	}
}

// reload looks at the file once and returns when to look again.
func (r *Registry) reload(p *publisher, t *teller) time.Duration {
	data, err := durable.ReadPrivate(r.path, MaxRegistryBytes)
	var records []Record
	if err == nil {
		records, err = parseRegistry(r.path, data, r.opts.Rules())
	}
	if err != nil && !r.judge.bad && !r.judge.emptied {
		r.log.Warn("registry file is bad; it counts once it has been so for a second", "err", err)
	}
	v, next := r.judge.look(r.clock.Now().Boot, data, err)
	switch v {
	case apply:
		t.tell(r.change(records, nil))
	case empty:
		t.tell(r.change(nil, err))
	}
	if err := p.publish(r.judge.applied, r.judge.emptied); err != nil && !p.failed {
		p.failed = true // once: it only leaves an editor of the file without its answer
		r.log.Warn("cannot publish which registry is loaded", "err", err)
	}
	return next
}

func (r *Registry) change(records []Record, problem error) Snapshot {
	snap := r.install(records, problem)
	if problem != nil {
		r.log.Error("registry emptied: nobody is authorised until the file is valid again", "generation", snap.Generation, "err", problem)
	} else {
		r.log.Info("registry loaded", "path", r.path, "generation", snap.Generation, "records", len(records))
	}
	return snap
}

// maxUntold bounds the generations that wait for OnChange. Each stands for an edit of the
// file, so more of them than this are no operator's doing; then the next one waits.
const maxUntold = 64

// A teller calls OnChange for one generation after the other. It has a goroutine of its own,
// because a callee may wait for a disk, and a revocation must not.
type teller struct {
	ctx   context.Context
	queue chan Snapshot // nil when nobody is told
	done  chan struct{} // closed when the goroutine has ended
}

func (r *Registry) startTelling(ctx context.Context) *teller {
	t := &teller{ctx: ctx, done: make(chan struct{})}
	if r.opts.OnChange == nil {
		close(t.done)
		return t
	}
	t.queue = make(chan Snapshot, maxUntold)
	go func() {
		defer close(t.done)
		for {
			select {
			case <-ctx.Done():
				return
			case snap := <-t.queue:
				r.opts.OnChange(snap)
			}
		}
	}()
	return t
}

func (t *teller) tell(s Snapshot) {
	if t.queue == nil {
		return
	}
	select {
	case t.queue <- s:
	case <-t.ctx.Done():
	}
}

// join waits for the goroutine, which ends with the context.
func (t *teller) join() { <-t.done }

// watcher keeps an fsnotify watch on the directory that the path names now. It
// only makes reloads prompt; without it the poll still finds every change.
type watcher struct {
	r        *Registry
	dir      string
	fs       *fsnotify.Watcher // nil when there is none
	dev, ino uint64            // of the directory under watch
	told     bool              // that there is none
}

func (w *watcher) events() <-chan fsnotify.Event {
	if w.fs == nil {
		return nil
	}
	return w.fs.Events
}

func (w *watcher) errors() <-chan error {
	if w.fs == nil {
		return nil
	}
	return w.fs.Errors
}

// ensure watches the directory at the path. A watch follows a directory that
// is moved away, so the inode is compared and a new one is watched afresh.
func (w *watcher) ensure() {
	dev, ino, err := identity(w.dir)
	if err != nil {
		w.close()
		return
	}
	if w.fs != nil && w.dev == dev && w.ino == ino {
		return
	}
	w.close()
	fs, err := w.open()
	if err != nil {
		if !w.told {
			w.told = true
			w.r.log.Warn("registry directory cannot be watched; changes are found by polling", "err", err)
		}
		return
	}
	w.fs, w.dev, w.ino, w.told = fs, dev, ino, false
}

func (w *watcher) open() (*fsnotify.Watcher, error) {
	if w.r.opts.noWatch != nil {
		return nil, w.r.opts.noWatch
	}
	fs, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := fs.Add(w.dir); err != nil {
		fs.Close()
		return nil, err
	}
	return fs, nil
}

func (w *watcher) close() {
	if w.fs != nil {
		w.fs.Close()
		w.fs = nil
	}
}

func identity(path string) (dev, ino uint64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	st := info.Sys().(*syscall.Stat_t)
	return uint64(st.Dev), st.Ino, nil
}
