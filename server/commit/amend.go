package commit

import (
	"context"
	"crypto/sha256"
	"math"
	"slices"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// An Amendment is a change that no client's command asks for. An ADMIN change that has no
// operation of its own consumes one hidden event sequence, so that every cut lies before or
// after it (protocol.md §6 [D-12]); the others are made by [Domain].
type Amendment struct {
	refs   []frames.ObjectRef
	size   int
	events int
	fn     func(tx *store.Tx, v work.View, now uint64) error // or decide
	decide Decide
	still  func() bool // see ChangeWhile; nil: the records tell everything
}

// holds reports whether what was last decided would be decided so now.
func (a *Amendment) holds() bool { return a.still == nil || a.still() }

// amendmentSize estimates an ADMIN row in a log record.
const amendmentSize = 512

// Activation is the durable install of a granted certificate: the ACTIVATION record, and
// epoch, activation and token hash beside it (protocol.md §4).
func Activation(cert frames.Certificate) *Amendment {
	return &Amendment{
		refs: []frames.ObjectRef{work.ActivationRef()},
		size: amendmentSize, events: 1,
		fn: func(tx *store.Tx, v work.View, now uint64) error {
			change, err := work.ActivationChange(v, cert, now)
			if err != nil {
				return err
			}
			tx.Install(cert.Epoch, cert.Activation, sha256.Sum256(cert.Token[:]))
			tx.Hidden()
			write(tx, []work.Change{change})
			return nil
		},
	}
}

// credentials is one change set of the registry, against the records that exist.
func credentials(existing []frames.SnapshotRecord, registry []frames.Credential) *Amendment {
	var refs []frames.ObjectRef
	for i := range existing {
		refs = append(refs, existing[i].Ref())
	}
	for i := range registry {
		refs = append(refs, work.CredentialRef(registry[i].KeyID))
	}
	return &Amendment{
		refs: refs,
		size: amendmentSize * len(refs), events: 1,
		fn: func(tx *store.Tx, _ work.View, now uint64) error {
			changes, err := work.CredentialChanges(existing, registry, now)
			if err != nil || len(changes) == 0 {
				return err
			}
			tx.Hidden()
			write(tx, changes)
			return nil
		},
	}
}

// Amend queues a without waiting, as Propose does, but even when the queue is full: callers
// have few at a time, and what the registry or an owner says must be recorded. reply is called once, on the writer's
// goroutine, with nil when the change is durable and the fence still held.
func (w *Writer) Amend(a *Amendment, reply func(error)) error {
	return w.propose(&item{
		amendment: a, done: func(_ frames.OperationResult, err error) { reply(err) }, needs: needs{refs: a.refs}, size: a.size, events: a.events,
	})
}

// amend is Amend and the wait for it. A ctx that ends first leaves the outcome unknown.
func (w *Writer) amend(ctx context.Context, a *Amendment) error {
	done := make(chan error, 1)
	if err := w.Amend(a, func(err error) { done <- err }); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Install makes a granted activation durable; nothing binds before it has returned nil. The
// writer must be running.
func (w *Writer) Install(ctx context.Context, cert frames.Certificate) error {
	return w.amend(ctx, Activation(cert))
}

// SyncCredentials brings the CREDENTIAL records in line with a registry that was loaded
// whole [D-43]; an emptied snapshot of a bad file must not be given here. Calls must not
// overlap. The writer must be running.
func (w *Writer) SyncCredentials(ctx context.Context, registry []frames.Credential) error {
	existing, err := w.credentialRecords(ctx)
	if err != nil {
		return err
	}
	return w.amend(ctx, credentials(existing, registry))
}

// credentialRecords reads every CREDENTIAL record. Nobody but SyncCredentials changes them,
// so what it reads is still true when its change is applied.
func (w *Writer) credentialRecords(ctx context.Context) ([]frames.SnapshotRecord, error) {
	var cut *store.Cut
	err := w.call(ctx, func(s *store.Store) error {
		cut = s.Cut()
		return nil
	}, math.MaxInt) // like reserve for our own
	if err != nil {
		return nil, err
	}
	defer cut.Close()
	isAdmin := func(kind frames.ObjectKind, _ frames.KeyID) bool { return kind == frames.KindAdmin }
	var out []frames.SnapshotRecord
	// Everything before the ADMIN records is skipped by starting right behind the greatest
	// key of the kind before.
	after := store.KeyOf(frames.ObjectRef{Kind: frames.KindAdmin - 1, ID: frames.ObjectID(slices.Repeat([]byte{0xff}, 16))})
	for {
		rows, done, err := cut.Page(after, isAdmin, 1024)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if work.IsCredential(rows[i].Record) {
				out = append(out, rows[i].Record)
			}
			after = rows[i].Key()
		}
		if done {
			return out, nil
		}
	}
}
