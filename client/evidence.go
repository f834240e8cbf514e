package client

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"

	"coordinator/frames"
)

// A Ledger is what the event log says about one binding: its admitted facts, in order. It
// reads their images by itself and keeps the seal as a hash of its own, so that evidence is
// checked by other code than that which makes it (protocol.md §11 [D-22]).
type Ledger struct {
	Coordinator frames.CoordinatorID
	Binding     frames.BindingID

	// Facts is how many were taken; First and Last are their lowest and highest sequences.
	Facts       uint64
	First, Last uint64
	// Gaps counts SOURCE_GAP events.
	Gaps int
	// Ranges are the OUTPUT_RANGE facts, in order.
	Ranges []OutputRange
	// Closed says that the process has ended; Status is its exit status when HasStatus is
	// set: 0 to 255, or -n for signal n.
	Closed, HasStatus bool
	Status            int32
	// Broken says that a sequence was skipped or came twice.
	Broken bool

	seal hash.Hash
}

// An OutputRange is the digest of the output bytes First to Last, counted from 1.
type OutputRange struct {
	First, Last uint64
	SHA256      [32]byte
}

// sealDomain begins what a seal hashes.
const sealDomain = "phux-coordinator-evidence/v1\x00"

// NewLedger begins the ledger of one binding.
func NewLedger(coordinator frames.CoordinatorID, binding frames.BindingID) *Ledger {
	l := &Ledger{Coordinator: coordinator, Binding: binding, seal: sha256.New()}
	l.seal.Write([]byte(sealDomain))
	l.seal.Write(coordinator[:])
	l.seal.Write(binding[:])
	return l
}

// Layout of a TerminalSourceFact image: the reference of 72 bytes, kind, schema, length, payload.
const (
	factSequenceAt = 16 + 32 + 16
	factKindAt     = factSequenceAt + 8
	factLenAt      = factKindAt + 4
	factPayloadAt  = factLenAt + 4
)

var errFactImage = errors.New("a fact whose image is malformed")

// Take takes one event. Those of other objects and kinds are left alone.
func (l *Ledger) Take(e *Event) error {
	if e.Object.Kind != frames.KindBinding || e.Object.ID != frames.ObjectID(l.Binding) {
		return nil
	}
	switch e.Kind {
	case frames.EventSourceGap:
		l.Gaps++
	case frames.EventSourceFactAdmitted:
		if err := l.fact(e.Payload); err != nil {
			return fmt.Errorf("event %d: %w", e.Sequence, err)
		}
	}
	return nil
}

func (l *Ledger) fact(image []byte) error {
	if len(image) < factPayloadAt || frames.BindingID(image[:16]) != l.Binding {
		return errFactImage
	}
	payload := image[factPayloadAt:]
	if uint64(binary.BigEndian.Uint32(image[factLenAt:])) != uint64(len(payload)) {
		return errFactImage
	}
	sequence := binary.BigEndian.Uint64(image[factSequenceAt:])
	if l.Facts == 0 {
		l.First = sequence
	} else if sequence != l.Last+1 {
		l.Broken = true
	}
	l.Last = sequence
	l.Facts++
	l.seal.Write(image)
	switch frames.SourceFactKind(binary.BigEndian.Uint16(image[factKindAt:])) {
	case frames.FactOutputRange:
		if len(payload) != 8+8+8+32 {
			return errFactImage
		}
		r := OutputRange{First: binary.BigEndian.Uint64(payload), Last: binary.BigEndian.Uint64(payload[8:]), SHA256: [32]byte(payload[24:])}
		if r.First == 0 || r.Last < r.First || binary.BigEndian.Uint64(payload[16:]) != r.Last-r.First+1 {
			return fmt.Errorf("an OUTPUT_RANGE %d..%d of %d bytes", r.First, r.Last, binary.BigEndian.Uint64(payload[16:]))
		}
		l.Ranges = append(l.Ranges, r)
	case frames.FactClosed:
		l.Closed = true
		switch {
		case len(payload) == 5 && payload[0] == 1:
			l.HasStatus, l.Status = true, int32(binary.BigEndian.Uint32(payload[1:]))
		case len(payload) != 1 || payload[0] != 0:
			return errFactImage
		}
	}
	return nil
}

// Whole reports whether every fact from the first on was taken, in sequence.
func (l *Ledger) Whole() bool { return l.Facts > 0 && l.First == 1 && !l.Broken && l.Last == l.Facts }

// Seal is the seal over what was taken.
func (l *Ledger) Seal() [32]byte {
	c, err := l.seal.(hash.Cloner).Clone()
	if err != nil {
		panic("client: SHA-256 state cannot be cloned: " + err.Error())
	}
	c.Write(binary.BigEndian.AppendUint64(nil, l.Facts))
	return [32]byte(c.Sum(nil))
}

// OutputBytes is how many bytes the ranges cover.
func (l *Ledger) OutputBytes() (n uint64) {
	for _, r := range l.Ranges {
		n += r.Last - r.First + 1
	}
	return n
}

// An OutputCheck holds output bytes against the ranges of a [Ledger] as they pass through it
// to a writer, from byte 1 on. It keeps nothing of them.
type OutputCheck struct {
	w      io.Writer
	ranges []OutputRange

	// Read is how many bytes have passed, Agreed how many of them agree with the digest of a
	// whole range, and Ranges how many ranges those are.
	Read, Agreed uint64
	Ranges       int
	// Differ are the ranges whose digest differs.
	Differ []OutputRange

	h hash.Hash // of the bytes of ranges[0] so far
}

// Check begins a check of the output against the ledger's ranges. The bytes go to w.
func (l *Ledger) Check(w io.Writer) *OutputCheck {
	return &OutputCheck{w: w, ranges: l.Ranges, h: sha256.New()}
}

// Write takes the next bytes.
func (c *OutputCheck) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.hash(b[:n])
	return n, err
}

func (c *OutputCheck) hash(b []byte) {
	for len(b) > 0 {
		take := uint64(len(b))
		at := c.Read + 1 // the number of b's first byte
		for len(c.ranges) > 0 && c.ranges[0].Last < at {
			c.ranges = c.ranges[1:] // it lies behind, not to be checked any more
		}
		if len(c.ranges) == 0 {
			c.Read += take
			return
		}
		r := c.ranges[0]
		if at < r.First {
			take = min(take, r.First-at)
		} else {
			take = min(take, r.Last-at+1)
			c.h.Write(b[:take])
		}
		c.Read += take
		b = b[take:]
		if c.Read == r.Last {
			c.end(r)
		}
	}
}

// end judges the first range, whose bytes have all passed.
func (c *OutputCheck) end(r OutputRange) {
	if [32]byte(c.h.Sum(nil)) == r.SHA256 {
		c.Agreed += r.Last - r.First + 1
		c.Ranges++
	} else {
		c.Differ = append(c.Differ, r)
	}
	c.h.Reset()
	c.ranges = c.ranges[1:]
}
