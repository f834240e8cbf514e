package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"coordinator/frames"
	"coordinator/server/work"
)

// A deed is something that a client asked for and what it learned of it, for the check of
// linearizability. Its times count the beginnings and ends of deeds.
type deed struct {
	client    int
	r         *request
	call, ret int64
	on        *lineage          // whose answer it is; nil when there is none
	tried     map[*lineage]bool // where it may have been carried out
	out       outcome
	seq       frames.EventSequence // of a success
}

// outcome is what a deed came to.
type outcome uint8

const (
	unknown   outcome = iota // perhaps it has happened, or will
	succeeded                // it is done, once
	conflicts                // nothing was done: the object was not as the command needs it
	absent                   // of a lookup: nothing was done so far
)

// checkTime bounds the check of one seed. Searching is exponential in what is unknown.
const checkTime = 2 * time.Second

// an is the state of one objective in the model: a register of revisions that remembers
// which operations have changed it.
type an struct {
	exists, ended, removed bool
	revision               frames.ObjectRevision
	seq                    frames.EventSequence // of the newest change, as far as it is known
	done                   string               // operations, with a separator behind each
}

// fits reports whether a command can change the object.
func (s *an) fits(r *request) bool {
	switch {
	case r.retention:
		return true
	case r.create:
		return !s.exists && !s.removed
	case !s.exists || r.expected != 0 && r.expected != s.revision:
		return false
	case r.archive:
		return s.ended
	}
	return !s.ended
}

func (s an) with(r *request, seq frames.EventSequence) an {
	s.revision++
	s.done += r.cmd.OperationID.String() + ";"
	s.seq = max(s.seq, seq)
	switch {
	case r.create:
		s.exists, s.ended = true, false
	case r.archive:
		s.exists, s.removed = false, true
	}
	s.ended = s.ended || r.state != nil
	return s
}

// step is the model: whether a deed can have come to what it did, and what is there then.
func step(state, input, output any) (bool, any) {
	s, d, out := state.(an), input.(*deed), output.(outcome)
	done := strings.Contains(s.done, d.r.cmd.OperationID.String()+";")
	switch {
	case out == absent:
		return !done, s
	case out == succeeded && d.lookup():
		return done, s
	case d.lookup(), done && out != conflicts: // an operation takes effect once
		return true, s
	case done:
		return false, s
	case out == conflicts:
		return !s.fits(d.r), s
	case !s.fits(d.r):
		return out == unknown, s
	case out == succeeded && d.seq <= s.seq:
		return false, s
	}
	return true, s.with(d.r, d.seq)
}

func (d *deed) lookup() bool { return d.r.looks }

// linearizable holds what all clients learned against the model, for every disk that was
// ever in use: history before a copy was made belongs to both. It runs outside of the
// bubble, whose time would never end a search that has become too long.
func (w *world) linearizable() {
	model := porcupine.Model{
		Init: func() any { return an{} },
		Step: step,
		DescribeOperation: func(in, out any) string {
			d := in.(*deed)
			return fmt.Sprintf("%v %v", d.r.cmd.OperationID, out)
		},
	}
	var lines []*lineage
	for _, n := range w.nodes {
		lines = append(lines, n.lineage)
	}
	lines = append(lines, w.dropped...)
	for _, l := range lines {
		if w.over() {
			return
		}
		byObjective := map[frames.ObjectiveID][]porcupine.Operation{}
		for _, d := range w.deeds {
			out, ok := l.learned(d)
			ret := d.ret
			if ok && out == unknown {
				// It may have happened, at any time: whether it has, the disk says. That nothing
				// else has happened there is checked without its clients.
				d, ok = l.happened(d)
				out, ret = succeeded, math.MaxInt64
			}
			if ok {
				byObjective[d.r.objective] = append(byObjective[d.r.objective], porcupine.Operation{
					ClientId: d.client, Input: d, Call: d.call, Output: out, Return: ret,
				})
			}
		}
		var ids []frames.ObjectiveID
		for id := range byObjective {
			ids = append(ids, id)
		}
		slices.SortFunc(ids, func(a, b frames.ObjectiveID) int { return cmp.Compare(string(a[:]), string(b[:])) })
		for _, id := range ids {
			w.seen.checked++
			switch porcupine.CheckOperationsTimeout(model, byObjective[id], checkTime) {
			case porcupine.Illegal:
				w.fault("objective %v: what clients learned of it on the disk of activations %v is not linearizable:\n%s",
					id, slices.Sorted(maps.Keys(l.shown)), tell(byObjective[id]))
				return
			case porcupine.Unknown:
				w.seen.unchecked++
			}
		}
	}
}

// learned is what a deed came to as this disk knows it. An answer that another disk gave,
// or this one's parent after the copy was made, says nothing here.
func (l *lineage) learned(d *deed) (out outcome, concerns bool) {
	until := int64(math.MaxInt64)
	for at := l; at != nil; at = at.parent {
		if d.on == at && d.ret <= until { // a copy is made behind what had its number
			return d.out, true
		}
		concerns = concerns || d.tried[at] && d.call <= until
		until = min(until, at.forked)
	}
	return unknown, concerns && !d.lookup()
}

// happened gives a deed whose outcome nobody learned with the event of its success on this
// disk, if it is there.
func (l *lineage) happened(d *deed) (*deed, bool) {
	vs := l.rows[work.OperationRef(d.r.cmd.OperationID)]
	if len(vs) == 0 || vs[0].record == nil {
		return d, false
	}
	payload, err := vs[0].record.DecodePayload()
	op, ok := payload.(*frames.Operation)
	if err != nil || !ok {
		return d, false
	}
	known := *d
	known.seq = op.Result.Sequence
	return &known, op.Result.State == frames.OperationSucceeded
}

// tell words the operations of one objective in the order of their beginnings.
func tell(ops []porcupine.Operation) string {
	var b strings.Builder
	slices.SortFunc(ops, func(x, y porcupine.Operation) int { return cmp.Compare(x.Call, y.Call) })
	for _, op := range ops {
		d := op.Input.(*deed)
		what := "update"
		switch {
		case d.lookup():
			what = "lookup"
		case d.r.create:
			what = "create"
		case d.r.archive:
			what = "archive"
		case d.r.state != nil:
			what = "complete"
		}
		ret := fmt.Sprint(op.Return)
		if op.Return == math.MaxInt64 {
			ret = "never"
		}
		fmt.Fprintf(&b, "  %d to %s, client %d: %s %v of revision %d: %v at event %d\n", op.Call, ret, d.client, what, d.r.cmd.OperationID, d.r.expected,
			[]string{"unknown", "succeeded", "conflict", "absent"}[op.Output.(outcome)], d.seq)
	}
	return b.String()
}
