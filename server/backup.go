package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"coordinator/frames"
	"coordinator/internal/durable"
	"coordinator/internal/failpoint"
	"coordinator/internal/sock"
	"coordinator/server/backup"
	"coordinator/server/store"
)

const (
	// cutTime bounds how long a backup waits for its cut: the writer waits while the clocks
	// have moved apart.
	cutTime = 10 * time.Second
	// spoolFile is the name that the copy of state.db has for an instant.
	spoolFile = store.StateFile + ".backup"
	// spoolSync bytes of the copy are flushed at a time, so that no commit queues behind a
	// long flush.
	spoolSync = 8 << 20
)

// backups answers the backup socket.
type backups struct {
	s    *Server
	o    Options
	busy atomic.Bool
	wg   sync.WaitGroup // the backup under way
}

// take serves one connection beside the others; one backup at a time is given.
func (b *backups) take(ctx context.Context, uc *net.UnixConn) {
	if _, err := sock.SameUser(uc); err != nil {
		b.o.Logger.Warn("backup not given", "err", err)
		uc.Close()
		return
	}
	if !b.busy.CompareAndSwap(false, true) {
		backup.NewGiver(uc).Refuse("another one is under way") //nolint:errcheck // it hangs up then
		uc.Close()
		return
	}
	b.wg.Go(func() {
		defer b.busy.Store(false)
		defer uc.Close()
		stop := context.AfterFunc(ctx, func() { uc.Close() })
		defer stop()
		began := b.s.clock.Now()
		st, err := b.give(ctx, backup.NewGiver(uc))
		if err != nil {
			b.o.Logger.Warn("backup not given", "err", err)
			return
		}
		b.o.Logger.Info("backup given", "head", st.Head, "commit", st.Commit, "took", b.s.clock.Now().Boot-began.Boot)
	})
}

// give makes a copy of the store at one event cut and hands its files over. What it holds of
// the store it holds for as long as the local disk takes, whatever the other end does: that
// one gets descriptors, and a message that it does not take ends the backup.
func (b *backups) give(ctx context.Context, g *backup.Giver) (store.State, error) {
	c, err := b.s.store.BeginCopy()
	if err != nil {
		return store.State{}, err
	}
	defer c.Close()
	if err := b.cut(ctx, g, c); err != nil {
		return c.State(), err
	}
	failpoint.Hit("backup-cut")
	for _, f := range c.Log() {
		if err := giveSegment(g, f); err != nil {
			return c.State(), err
		}
	}
	c.ReleaseLog()
	if err := b.giveState(ctx, g, c); err != nil {
		return c.State(), err
	}
	return c.State(), g.Done()
}

// cut asks the writer for the cut and tells it.
func (b *backups) cut(ctx context.Context, g *backup.Giver, c *store.Copy) error {
	doing, cancel := context.WithTimeout(ctx, cutTime)
	defer cancel()
	var cert frames.Certificate
	err := b.s.writer.Do(doing, func(*store.Store) error {
		c.Cut()
		cert = b.s.fence.Current()
		return nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("no cut: %w", err), g.Refuse("it makes no cut now: "+err.Error()))
	}
	need := uint64(c.StateBytes()) + b.o.LowDiskBytes
	if free := b.o.freeBytes(); free < need {
		why := fmt.Sprintf("the copy of state.db that it makes first needs %d bytes beside the reserve, in %s, and %d are free; "+
			"make room, or back up while the coordinator is stopped", need, b.o.Dir, free)
		return errors.Join(errors.New("no room on the disk"), g.Refuse(why))
	}
	at := backup.CutOf(c.State(), b.s.clock.Now().Wall)
	at.LeaseExpiresAt = cert.ExpiresAt
	return g.Cut(at)
}

func giveSegment(g *backup.Giver, f store.CopiedFile) error {
	file, err := f.Open()
	if err != nil {
		return errors.Join(err, g.Refuse(err.Error()))
	}
	defer file.Close()
	return g.Give(backup.Given{Name: filepath.ToSlash(f.Name), Size: f.Size, Bytes: f.Bytes}, file)
}

// giveState copies state.db into a file without a name, which is gone with the last
// descriptor of it, and hands that over.
func (b *backups) giveState(ctx context.Context, g *backup.Giver, c *store.Copy) error {
	f, err := unnamed(b.o.path(spoolFile))
	if err != nil {
		return errors.Join(err, g.Refuse(err.Error()))
	}
	defer f.Close()
	size := c.StateBytes()
	w := &spool{ctx: ctx, b: b, g: g, f: f, sum: sha256.New(), of: size}
	err = c.WriteState(w)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return errors.Join(err, g.Refuse(err.Error()))
	}
	return g.Give(backup.Given{Name: store.StateFile, Size: size, Bytes: size, SHA256: hex.EncodeToString(w.sum.Sum(nil))}, f)
}

// unnamed makes a file that has no name any more.
func unnamed(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, durable.PrivateFile)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A spool is the copy of state.db while it is written.
type spool struct {
	ctx   context.Context
	b     *backups
	g     *backup.Giver
	f     *os.File
	sum   hash.Hash
	done  int64
	of    int64
	dirty int
}

// Write is that of an io.Writer. The disk reserve is left alone, and nobody at the other end
// ends it.
func (w *spool) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	w.sum.Write(p[:n])
	w.done += int64(n)
	w.dirty += n
	if err != nil || w.dirty < spoolSync {
		return n, err
	}
	w.dirty = 0
	failpoint.Hit("backup-spooled")
	switch {
	case w.ctx.Err() != nil:
		return n, w.ctx.Err()
	case w.b.o.freeBytes() < w.b.o.LowDiskBytes:
		return n, &fs.PathError{Op: "copy", Path: w.b.o.path(store.StateFile), Err: syscall.ENOSPC}
	}
	if err := w.f.Sync(); err != nil {
		return n, err
	}
	return n, w.g.Copying(w.done, w.of)
}
