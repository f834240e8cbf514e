package stream

import (
	"time"

	"coordinator/frames"
	"coordinator/server/store"
	"coordinator/server/work"
)

// An audience is what a viewer sees, in a form that can be compared: connections
// of the same audience are counted together. It is taken from the one predicate,
// kind by kind (protocol.md §6).
type audience struct {
	kinds     uint64       // bit k: every record of kind k but OPERATION
	removals  uint64       // bit k: the OBJECT_REMOVED of objects of kind k
	allOps    bool         // the operations of everybody
	ownOps    bool         // those of principal
	principal frames.KeyID // zero unless ownOps decides something
}

func audienceOf(v work.Viewer) audience {
	var a audience
	var nobody frames.KeyID
	for kind := frames.KindObjective; kind <= frames.KindArtifactManifest; kind++ {
		if kind != frames.KindOperation && work.Visible(kind, nobody, v) {
			a.kinds |= 1 << kind
		}
		if work.VisibleRemoval(kind, v) {
			a.removals |= 1 << kind
		}
	}
	a.allOps = work.Visible(frames.KindOperation, nobody, v)
	a.ownOps = !a.allOps && work.Visible(frames.KindOperation, v.Principal, v)
	if a.ownOps {
		a.principal = v.Principal
	}
	return a
}

// sees is the predicate for a record of a kind or an event of a class, and for
// OPERATION of its principal.
func (a *audience) sees(class frames.ObjectKind, principal frames.KeyID) bool {
	switch {
	case class == frames.KindOperation:
		return a.allOps || a.ownOps && principal == a.principal
	case class&store.ClassRemoved != 0:
		kind := class &^ store.ClassRemoved
		return kind < 64 && a.removals&(1<<kind) != 0
	}
	return class < 64 && a.kinds&(1<<class) != 0
}

// loses reports whether records of a kind that it sees may be removed without an event
// that tells it (protocol.md §12).
func (a *audience) loses(kind frames.ObjectKind) bool {
	return kind < 64 && a.kinds&^a.removals&(1<<kind) != 0 && kind != frames.KindAdmin
}

// seesAdmin reports whether ADMIN records are seen.
func (a *audience) seesAdmin() bool { return a.sees(frames.KindAdmin, frames.KeyID{}) }

// A volume is so many event frames and their outer bytes.
type volume struct{ frames, bytes uint64 }

func (v volume) plus(o volume) volume { return volume{v.frames + o.frames, v.bytes + o.bytes} }

func (v volume) minus(o volume) volume { return volume{v.frames - o.frames, v.bytes - o.bytes} }

// A tally is what one audience sees of what was published since the last one.
type tally struct {
	from  frames.EventCut // everything counted lies behind it
	all   volume
	sizes []uint32             // of each event
	first frames.EventSequence // zero when there is none
	blind bool                 // records that it sees have changed and no event tells it
	now   time.Duration        // boot reading
}

// count makes the tally of entries behind from. It reuses t's storage.
func (t *tally) count(a *audience, entries []*image, from frames.EventCut, now time.Duration) {
	*t = tally{from: from, sizes: t.sizes[:0], now: now}
	for _, i := range entries {
		switch {
		case i.admin:
			t.blind = t.blind || a.seesAdmin()
		case i.ev.Class&store.ClassRemoved != 0 && a.loses(i.ev.Object.Kind):
			t.blind = true
		case a.sees(i.ev.Class, i.ev.Principal):
			if t.first == 0 {
				t.first = i.seq()
			}
			t.all = t.all.plus(volume{1, uint64(i.size)})
			t.sizes = append(t.sizes, i.size)
		}
	}
}
