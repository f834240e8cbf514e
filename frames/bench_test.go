package frames_test

import (
	"testing"

	"coordinator/codec"
	"coordinator/frames"
)

// find is the first sample of a frame.
func find[T frames.Frame](b *testing.B) T {
	b.Helper()
	for _, f := range sampleFrames() {
		if m, ok := f.(T); ok {
			return m
		}
	}
	b.Fatal("no sample")
	panic("unreachable")
}

func benchmarkDecode(b *testing.B, f frames.Frame) {
	frame, err := frames.Append(nil, f)
	if err != nil {
		b.Fatal(err)
	}
	body := frame[codec.HeaderSize:]
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := frames.Decode(f.Type(), body); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkEncode(b *testing.B, f frames.Frame) {
	buf, err := frames.Append(nil, f)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(buf)))
	b.ReportAllocs()
	for b.Loop() {
		if buf, err = frames.Append(buf[:0], f); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkCommand(b *testing.B) *frames.CoordCommand {
	m := find[*frames.CoordCommand](b)
	m.Payload = make([]byte, 512)
	return m
}

func benchmarkEvent(b *testing.B) *frames.CoordEvent {
	m := find[*frames.CoordEvent](b)
	m.Payload = make([]byte, 512)
	return m
}

func BenchmarkDecodeCoordCommand(b *testing.B) { benchmarkDecode(b, benchmarkCommand(b)) }
func BenchmarkEncodeCoordCommand(b *testing.B) { benchmarkEncode(b, benchmarkCommand(b)) }
func BenchmarkDecodeCoordEvent(b *testing.B)   { benchmarkDecode(b, benchmarkEvent(b)) }
func BenchmarkEncodeCoordEvent(b *testing.B)   { benchmarkEncode(b, benchmarkEvent(b)) }

func BenchmarkOperationDigest(b *testing.B) {
	m := benchmarkCommand(b)
	payload, err := codec.Encode(nil, &frames.CreateObjective{ObjectiveID: frames.ObjectiveID{1}, Schema: 1, Document: make([]byte, 512)})
	if err != nil {
		b.Fatal(err)
	}
	m.Payload = payload
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := frames.OperationDigest(m); err != nil {
			b.Fatal(err)
		}
	}
}
