package owner

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/internal/boltfile"
	"coordinator/internal/durable"
)

// inspectTries bounds how often a journal that a running owner writes is read again.
const inspectTries = 50

// A Summary is what the journal holds, and who may act.
type Summary struct {
	Attempts map[frames.EffectState]int // by state; [NeverSeen] are void ones
	// Bindings lists those with a live process or facts that wait, in order of their ids.
	Bindings []BindingSummary
	// Closed and Lost count the bindings of which nothing waits any more.
	Closed, Lost int
	Authorities  []AuthoritySummary // in order of coordinator ids
	OutputBytes  uint64             // stored, of all bindings
}

// A BindingSummary is one binding as it stands in the journal.
type BindingSummary struct {
	ID          frames.BindingID
	Coordinator frames.CoordinatorID
	Incarnation frames.IncarnationID
	Live        bool   // its process was started and its end is not recorded
	Group       uint32 // of the process
	Last, Acked uint64 // source sequences
	Output      uint64 // bytes covered by facts
}

// An AuthoritySummary is the highest authority that was accepted for a coordinator.
type AuthoritySummary struct {
	Coordinator frames.CoordinatorID
	Epoch       frames.AuthorityEpoch
	Activation  frames.ActivationSequence
}

// Inspect reads the journal of the owner in dir, running or not, checks it completely and
// changes nothing. The errors are those of [Open].
func Inspect(dir string, owner frames.Fingerprint) (*Summary, error) {
	path := filepath.Join(dir, journalFile)
	_, err := checkJournal(path, owner, schemas.Newest())
	for range inspectTries {
		// A write that overlapped the read looks like damage; only what stays so is.
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) && !errors.Is(err, durable.ErrUnstable) {
			break
		}
		_, err = checkJournal(path, owner, schemas.Newest())
	}
	if err != nil {
		return nil, err
	}
	var s *Summary
	for range inspectTries {
		var file []byte
		if file, err = durable.ReadPrivate(path, maxJournalBytes); err != nil {
			continue
		}
		if s, err = summarise(file); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(dir, outputDir))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil {
			s.OutputBytes += uint64(st.Size())
		}
	}
	return s, nil
}

func summarise(file []byte) (*Summary, error) {
	c, err := boltfile.Read(file, bucketNames[:]...)
	if err != nil {
		return nil, err
	}
	s := &Summary{Attempts: map[frames.EffectState]int{}}
	var a attemptRow
	err = eachPair(c.Buckets[bucketAttempts], &a, func([]byte) { s.Attempts[a.State]++ })
	var b bindingRow
	err = errors.Join(err, eachPair(c.Buckets[bucketBindings], &b, func(key []byte) {
		live := b.State == bindingHeld || b.State == bindingLive
		switch {
		case live || b.unacked():
			s.Bindings = append(s.Bindings, BindingSummary{
				ID: frames.BindingID(key), Coordinator: b.Coordinator, Incarnation: b.Incarnation, Live: live,
				Group: b.Group, Last: b.Last, Acked: b.Acked, Output: b.Output,
			})
		case b.State == bindingLost:
			s.Lost++
		default:
			s.Closed++
		}
	}))
	var r authorityRow
	err = errors.Join(err, eachPair(c.Buckets[bucketAuthorities], &r, func(key []byte) {
		s.Authorities = append(s.Authorities, AuthoritySummary{frames.CoordinatorID(key), r.Epoch, r.Activation})
	}))
	slices.SortFunc(s.Bindings, func(a, b BindingSummary) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return s, err
}

func eachPair(pairs []boltfile.Pair, v codec.Value, fn func(key []byte)) error {
	for _, p := range pairs {
		if err := unseal(p.Key, p.Value, v); err != nil {
			return err
		}
		fn(p.Key)
	}
	return nil
}
