package owner

import (
	"bytes"
	"context"
	"os"

	"coordinator/frames"
)

// addFacts appends facts to a binding. Those of a binding that was given up are counted and
// not kept, but for CLOSED, which stays as long as its row.
func (t *txn) addFacts(id frames.BindingID, row *bindingRow, facts ...factRow) {
	for i := range facts {
		row.Last++
		if row.Acked != AckAll || facts[i].Kind == frames.FactClosed {
			t.put(bucketFacts, factKey(id, row.Last), &facts[i])
		}
	}
}

// removeFacts removes a binding's facts through a sequence.
func (t *txn) removeFacts(id frames.BindingID, through uint64, keepClosed bool) {
	var keys [][]byte
	t.eachFact(id, 0, func(seq uint64, f *factRow) bool {
		if seq > through {
			return false
		}
		if !keepClosed || f.Kind != frames.FactClosed {
			keys = append(keys, factKey(id, seq))
		}
		return true
	})
	for _, k := range keys {
		t.remove(bucketFacts, k)
	}
}

// eachFact calls fn for a binding's facts above a sequence until it returns false.
func (t *txn) eachFact(id frames.BindingID, after uint64, fn func(seq uint64, f *factRow) bool) {
	if after == AckAll {
		return
	}
	c := t.tx.Bucket([]byte(bucketFacts)).Cursor()
	for k, raw := c.Seek(factKey(id, after+1)); k != nil && bytes.HasPrefix(k, id[:]) && t.err == nil; k, raw = c.Next() {
		var f factRow
		if !t.decode(bucketFacts, k, raw, &f) {
			return
		}
		if _, seq := splitFactKey(k); !fn(seq, &f) {
			return
		}
	}
}

// recordFacts makes facts of a live binding durable, which cover output bytes; closed says that
// they are its last.
func (o *Owner) recordFacts(id frames.BindingID, facts []factRow, output uint64, closed bool) error {
	err := o.j.update(func(t *txn) error {
		row, ok := t.binding(id)
		if !ok {
			panic("owner: facts of a binding without a row")
		}
		t.addFacts(id, &row, facts...)
		row.Output += output
		if closed {
			row.State = bindingClosed
		}
		t.putBinding(id, &row)
		return nil
	})
	if closed {
		o.mu.Lock()
		delete(o.live, id)
		o.mu.Unlock()
	}
	o.factsCame(id)
	return err
}

// factsCame tells who watches a binding.
func (o *Owner) factsCame(id frames.BindingID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for w := range o.watchers[id] {
		w.factsCame(id)
	}
}

// watch has w told of a binding's facts from now on.
func (o *Owner) watch(id frames.BindingID, w watcher) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watchers[id] == nil {
		o.watchers[id] = map[watcher]struct{}{}
	}
	o.watchers[id][w] = struct{}{}
}

func (o *Owner) unwatch(id frames.BindingID, w watcher) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.watchers[id], w)
	if len(o.watchers[id]) == 0 {
		delete(o.watchers, id)
	}
}

// holds is nil when a binding is held for a coordinator, else NOT_FOUND ([D-60]).
func (o *Owner) holds(c frames.CoordinatorID, id frames.BindingID) (row bindingRow, err error) {
	err = o.j.view(func(t *txn) error {
		var ok bool
		if row, ok = t.binding(id); t.err == nil && (!ok || row.Coordinator != c) {
			return frames.Refuse(frames.CodeNotFound, "no such binding")
		}
		return nil
	})
	return row, err
}

// bindings lists a coordinator's bindings with a live process or facts that wait ([D-45]).
func (o *Owner) bindings(c frames.CoordinatorID) (list []frames.BindingID, err error) {
	err = o.j.view(func(t *txn) error {
		var row bindingRow
		t.each(bucketBindings, &row, func(key []byte) {
			if row.Coordinator == c && (row.State == bindingHeld || row.State == bindingLive || row.unacked()) {
				list = append(list, frames.BindingID(key))
			}
		})
		return nil
	})
	return list, err
}

// A page is a piece of a binding's facts.
type page struct {
	facts []frames.TerminalSourceFact
	// ended says that these are the last of a former incarnation's binding, whose last
	// sequence is last.
	ended bool
	last  uint64
}

// readFacts returns at most max facts above a sequence.
func (o *Owner) readFacts(id frames.BindingID, after uint64, max int) (p page, err error) {
	err = o.j.view(func(t *txn) error {
		row, ok := t.binding(id)
		if !ok {
			p.ended = t.err == nil // pruned meanwhile
			return nil
		}
		more := false
		t.eachFact(id, after, func(seq uint64, f *factRow) bool {
			if more = len(p.facts) == max; more {
				return false
			}
			p.facts = append(p.facts, frames.TerminalSourceFact{
				Source: frames.TerminalSourceRef{BindingID: id, Owner: o.opt.Fingerprint, OwnerIncarnation: row.Incarnation, Sequence: frames.SourceSequence(seq)},
				Kind:   f.Kind, Schema: frames.FactSchema, Payload: bytes.Clone(f.Payload),
			})
			return true
		})
		p.ended, p.last = !more && row.Incarnation != o.opt.Incarnation, row.Last
		return nil
	})
	return p, err
}

// ackFacts takes a FACT_ACK. One for a binding that is not held for this coordinator has
// nothing left to do; one of a fenced coordinator is dropped.
func (o *Owner) ackFacts(cl *claim, id frames.BindingID, through uint64) error {
	done := false
	if err := o.j.view(func(t *txn) error {
		row, ok := t.binding(id)
		done = t.err == nil && (!ok || row.Coordinator != cl.coordinator || row.Acked >= min(through, row.Last) && through != AckAll)
		return nil
	}); err != nil {
		return err
	}
	if done {
		return o.admitted(cl)
	}
	given := false
	err := o.j.update(func(t *txn) error {
		given = false
		if err := o.admitted(cl); err != nil {
			return err
		}
		row, ok := t.binding(id)
		if !ok || row.Coordinator != cl.coordinator {
			return nil
		}
		given = through == AckAll
		t.removeFacts(id, through, true)
		if !given {
			through = min(through, row.Last)
		}
		row.Acked = max(row.Acked, through)
		t.putBinding(id, &row)
		return nil
	})
	if err != nil || !given {
		return err
	}
	o.mu.Lock()
	b := o.live[id]
	o.mu.Unlock()
	if b != nil && b.kill() == nil {
		o.log.Info("process given up by its coordinator", "binding", id.String())
	}
	return nil
}

// openOutput opens the stored output of a binding for reading.
func (o *Owner) openOutput(c frames.CoordinatorID, id frames.BindingID) (*reading, error) {
	row, err := o.holds(c, id)
	switch {
	case err != nil:
		return nil, err
	case row.State == bindingHeld:
		return nil, frames.Refuse(frames.CodeNotFound, "no such output yet") // or its emptiness would look final
	}
	o.mu.Lock() // behind the row: what was live there and is not here has ended meanwhile
	b := o.live[id]
	o.mu.Unlock()
	var live *output
	if b != nil {
		live = b.out
	}
	r, err := openReading(o.dir, id, live)
	if os.IsNotExist(err) {
		return nil, frames.Refuse(frames.CodeNotFound, "no such output")
	}
	return r, err
}

// pour sends stored output in chunks until the request is served. Without follow it ends where
// the stored output ended when it began.
func (r *reading) pour(ctx context.Context, f *ReadOutput, send func(*OutputChunk) error) error {
	at, left := f.Offset, uint64(f.MaxBytes)
	stored, changed, end := r.state()
	for {
		if f.Follow {
			stored, changed, end = r.state()
		}
		n := uint64(0)
		if stored > at {
			n = min(stored-at, MaxChunkBytes)
		}
		if f.MaxBytes != 0 {
			n = min(n, left)
		}
		if n == 0 && f.Follow && !end {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		chunk := &OutputChunk{RequestID: f.RequestID, Offset: at, Data: make([]byte, n)}
		if err := r.readAt(chunk.Data, at); err != nil && n > 0 {
			return err
		}
		at, left = at+n, left-n
		chunk.End = f.MaxBytes != 0 && left == 0 || at >= stored && (end || !f.Follow)
		if err := send(chunk); err != nil || chunk.End {
			return err
		}
	}
}
