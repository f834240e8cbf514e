package work

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"coordinator/codec"
	"coordinator/frames"
)

// beneathPage is how many objects one kindBeneath row lists.
const beneathPage = 16

// runCounts is the annex of a kindRuns row, so that neither an attempt number nor the end of
// an objective needs a search, and what is beneath the objective can be found when it is
// archived. Runs, artifacts and signals are listed in the order in which they came into
// being: whole pages in rows of their own, the rest here. Sessions, bindings, manifests and
// evidence follow from them.
//
//	version:u8(1) || runs:u32 || unfinished:u32 || pages:u32 || tail:list<ObjectRef>
type runCounts struct {
	Runs       uint32 // ever started
	Unfinished uint32 // of them, not in a terminal state
	Pages      uint32
	Tail       []frames.ObjectRef
}

func (m *runCounts) Image(i *codec.Image) {
	imgVersion(i)
	codec.ImgU32(i, &m.Runs)
	codec.ImgU32(i, &m.Unfinished)
	i.Check(m.Unfinished <= m.Runs, codec.ErrInvalid)
	codec.ImgU32(i, &m.Pages)
	codec.List[frames.ObjectRef, *frames.ObjectRef]{Items: &m.Tail, Max: beneathPage - 1, Size: 18}.Image(i)
}

// listed is how many objects are listed.
func (m *runCounts) listed() uint64 { return uint64(m.Pages)*beneathPage + uint64(len(m.Tail)) }

// refPage is the annex of a kindBeneath row: one page.
//
//	version:u8(1) || refs:list<ObjectRef>
type refPage struct{ Refs []frames.ObjectRef }

func (m *refPage) Image(i *codec.Image) {
	imgVersion(i)
	codec.List[frames.ObjectRef, *frames.ObjectRef]{Items: &m.Refs, Max: beneathPage, Size: 18}.Image(i)
}

func pageRef(id frames.ObjectiveID, page uint32) frames.ObjectRef {
	h := sha256.New()
	h.Write(id[:])
	h.Write(binary.BigEndian.AppendUint32(nil, page))
	return frames.ObjectRef{Kind: kindBeneath, ID: frames.ObjectID(h.Sum(nil)[:16])}
}

// counts reads what is known of the runs of an objective; zero when it has none.
func (t *txn) counts(id frames.ObjectiveID) (c runCounts, err error) {
	_, err = t.kept("the runs of an objective", runsRef(id), &c)
	return c, err
}

func (t *txn) keepCounts(id frames.ObjectiveID, c *runCounts) error {
	return t.keep(runsRef(id), c.Unfinished > 0, c)
}

// list notes an object that came into being beneath an objective in c, which the caller
// keeps.
func (t *txn) list(id frames.ObjectiveID, c *runCounts, ref frames.ObjectRef) error {
	// The slice may be shared with the row that it was read from.
	tail := append(slices.Clip(c.Tail), ref)
	if len(tail) == beneathPage {
		if err := t.keep(pageRef(id, c.Pages), false, &refPage{Refs: tail}); err != nil {
			return err
		}
		c.Pages++
		tail = nil
	}
	c.Tail = tail
	return nil
}

// listUnder notes an object that came into being beneath a session.
func (t *txn) listUnder(session frames.WorkSessionID, ref frames.ObjectRef) error {
	var s frames.WorkSession
	if _, found, err := t.load(sessionRef(session), &s, nil); err != nil || !found {
		return err
	}
	r, found, err := t.run(s.RunID)
	if err != nil || !found {
		return err
	}
	c, err := t.counts(r.ObjectiveID)
	if err != nil {
		return err
	}
	if err := t.list(r.ObjectiveID, &c, ref); err != nil {
		return err
	}
	return t.keepCounts(r.ObjectiveID, &c)
}

// A Head is what is known of a record without its payload.
type Head struct {
	Ref      frames.ObjectRef
	Revision frames.ObjectRevision
	Annex    []byte
}

// A HeadView is a [View] that knows records by their heads, so that nobody has to hold many
// payloads at once. The heads of those that exist come in the order of refs.
type HeadView interface {
	Heads(refs []frames.ObjectRef) ([]Head, error)
}

// heads reads the heads of records that this transaction has not changed.
func (t *txn) heads(refs []frames.ObjectRef) ([]Head, error) {
	if v, ok := t.view.(HeadView); ok {
		return v.Heads(refs)
	}
	var out []Head
	for _, ref := range refs {
		s, found, err := t.view.Record(ref)
		if err != nil {
			return nil, err
		}
		if found {
			out = append(out, Head{Ref: ref, Revision: s.Record.Revision, Annex: s.Annex})
		}
	}
	return out, nil
}
