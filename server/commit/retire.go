package commit

import (
	"context"
	"math"

	"coordinator/frames"
	"coordinator/internal/clock"
	"coordinator/server/store"
	"coordinator/server/work"
)

const (
	// retireBatch bounds the operations that one amendment retires, so that commands find
	// room in the same commit.
	retireBatch = 128
	// retireSize estimates what one of them adds to a commit: two rows and an event.
	retireSize = 700
)

// Retire writes the tombstones, and prunes those, whose time has come at now (Unix seconds),
// in bounded batches among whatever else waits for a commit (protocol.md §8 [D-42]). Its
// cost goes by what is due and not by what there is. It does nothing while the disk reserve
// is reached [D-41]: nothing is owed sooner than it can be afforded.
//
// Its error is a *work.Refusal when the writer stops; what was not retired is due again.
func (w *Writer) Retire(ctx context.Context, now uint64) error {
	var after store.Key
	for done := false; !done; {
		if w.o.LowDisk() {
			return nil
		}
		var rows []store.Row
		err := w.cut(ctx, func(c *store.Cut) (err error) {
			rows, after, done, err = Due(c, after, now)
			return err
		})
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			continue
		}
		a, err := Retirement(rows, now)
		if err != nil {
			return err
		}
		if err := w.amend(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// Due reads a batch of due rows from a cut, behind after. It returns where to go on, and
// whether nothing follows.
func Due(c *store.Cut, after store.Key, now uint64) (rows []store.Row, next store.Key, done bool, err error) {
	return c.Internal(work.DueRef(now, math.MaxUint64), after, retireBatch)
}

// Retirement retires what due rows stand for.
func Retirement(rows []store.Row, now uint64) (*Amendment, error) {
	refs := make([]frames.ObjectRef, len(rows))
	reads := []frames.ObjectRef{work.RetentionRef()}
	for i := range rows {
		refs[i] = rows[i].Record.Ref()
		d, err := work.DecodeDue(rows[i].Annex)
		if err != nil {
			return nil, err
		}
		reads = append(reads, work.RetireRefs(refs[i], d)...)
	}
	return &Amendment{
		refs: reads, size: retireSize * len(rows), events: len(rows),
		decide: func(v work.View, env work.Env) (work.Outcome, error) { return work.Retire(v, refs, now, env) },
	}, nil
}

// since is the time from which what happens now stays: the wall clock, but never less than has
// really passed since the writer began. A clock that is behind for a while would otherwise
// let a result go as soon as it is put right.
func (w *Writer) since(now clock.Reading) uint64 {
	passed := clock.Reading{Wall: w.began.Wall.Add(now.Boot - w.began.Boot)}
	return max(now.Unix(), passed.Unix())
}

// cut gives fn a cut of what is published, for as long as it runs.
func (w *Writer) cut(ctx context.Context, fn func(*store.Cut) error) error {
	var c *store.Cut
	err := w.call(ctx, func(s *store.Store) error {
		c = s.Cut()
		return nil
	}, math.MaxInt) // like reserve for our own
	if err != nil {
		return err
	}
	defer c.Close()
	return fn(c)
}
