package own

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"coordinator/bench/internal/measure"
	"coordinator/codec"
	"coordinator/frames"
)

// codecBatch is how many frames are coded between two looks at the clock.
const codecBatch = 1000

// codecs measures decoding and encoding a COORD_COMMAND and a COORD_EVENT of 256 bytes,
// beside code written by hand that walks the same fields and copies the same bytes. Both
// take memory once: the product for the frame that it returns, which aliases its input, and
// the other for the payload that it keeps. Decoding into a frame that is there already is
// measured by itself.
func codecs(ctx context.Context, e *measure.Env) error {
	payload := measure.Payload(5, measure.ValueSize)
	guard := frames.AuthorityGuard{Epoch: 7, Activation: 9}
	copy(guard.TokenSHA256[:], payload)
	command := &frames.CoordCommand{RequestID: 5, Guard: guard, OperationID: frames.OperationID{3}, Kind: frames.CommandUpdateObjective, Payload: payload}
	event := &frames.CoordEvent{
		SubscriptionID: frames.SubscriptionID{1}, Delivery: 77, Sequence: 1 << 30, EventID: frames.EventID{4}, Kind: frames.EventObjectiveChanged,
		Object: objectiveRef(frames.ObjectiveID{6}), Revision: 12, Schema: 1, Payload: payload,
	}
	for _, f := range []struct {
		name  string
		frame frames.Frame
	}{{"codec.command", command}, {"codec.event", event}} {
		if err := codeFrame(ctx, e, f.name, f.frame); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// codeFrame measures one frame in every way.
func codeFrame(ctx context.Context, e *measure.Env, name string, f frames.Frame) error {
	ways, err := coders(f)
	if err != nil {
		return err
	}
	for range 5 {
		for _, way := range ways {
			ns, allocs, err := codingCost(e, way.code)
			if err != nil {
				return err
			}
			e.Rec.Add(name+way.suffix, "ns", ns)
			e.Rec.Add(name+way.suffix+".allocs", "allocs", allocs)
		}
	}
	return ctx.Err()
}

// A coder decodes a frame and encodes what it got.
type coder struct {
	suffix string // of its figures
	code   func() error
}

// coders gives the ways to code f, each of which was seen to give the same bytes.
func coders(f frames.Frame) ([]coder, error) {
	frame, err := frames.Append(nil, f)
	if err != nil {
		return nil, err
	}
	body := frame[codec.HeaderSize:]
	into, err := frames.Decode(f.Type(), body)
	if err != nil {
		return nil, err
	}
	var out []byte
	var w walk
	ways := []coder{
		{"", func() error {
			g, err := frames.Decode(f.Type(), body)
			if err != nil {
				return err
			}
			out, err = frames.Append(out[:0], g)
			return err
		}},
		{".reused", func() error {
			if err := codec.Decode(into, body); err != nil {
				return err
			}
			out, err = frames.Append(out[:0], into)
			return err
		}},
		{".hand", func() error {
			if err := w.decode(body); err != nil {
				return err
			}
			out = w.encode(append(out[:0], frame[:codec.HeaderSize]...))
			return nil
		}},
	}
	for _, way := range ways {
		if err := way.code(); err != nil {
			return nil, err
		}
		if string(out) != string(frame) {
			return nil, errors.New("what was decoded encodes to other bytes")
		}
	}
	return ways, nil
}

// codingCost is the time and the allocations of one call of f.
func codingCost(e *measure.Env, f func() error) (ns, allocs float64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, n := time.Now(), 0
	for end := began.Add(e.Window(150)); time.Now().Before(end); n += codecBatch {
		for range codecBatch {
			if err := f(); err != nil {
				return 0, 0, err
			}
		}
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return float64(took.Nanoseconds()) / float64(n), float64(after.Mallocs-before.Mallocs) / float64(n), nil
}

// A walk is the least that a decoder of a TLV body can do: go over the fields, check their
// heads and lengths, take each where it lies, and copy the last one, the payload, which is
// kept. Encoding copies them back.
type walk struct {
	fields [16]span
	n      int
}

type span struct {
	id    uint64
	value []byte
}

// wireBytes is the type byte of every field.
const wireBytes = 4

var errWalk = errors.New("a field ends too early")

func (w *walk) decode(body []byte) error {
	for w.n = 0; len(body) > 0; w.n++ {
		id, n := binary.Uvarint(body)
		if n <= 0 || w.n == len(w.fields) || len(body) == n || body[n] != wireBytes {
			return errWalk
		}
		size, m := binary.Uvarint(body[n+1:])
		if m <= 0 || uint64(len(body)-n-1-m) < size {
			return errWalk
		}
		body = body[n+1+m:]
		w.fields[w.n] = span{id, body[:size]}
		body = body[size:]
	}
	if w.n > 0 {
		payload := &w.fields[w.n-1].value
		*payload = append([]byte(nil), *payload...)
	}
	return nil
}

func (w *walk) encode(dst []byte) []byte {
	for _, f := range w.fields[:w.n] {
		dst = append(binary.AppendUvarint(dst, f.id), wireBytes)
		dst = binary.AppendUvarint(dst, uint64(len(f.value)))
		dst = append(dst, f.value...)
	}
	return dst
}
