package vectors_test

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/vectors"
)

func allFrames(s *vectors.Set) (list []vectors.Frame) {
	for _, f := range s.Frames {
		list = append(list, f.Frames...)
	}
	return list
}

// split takes the header off a whole frame.
func split(t *testing.T, frame []byte) (frames.Type, []byte) {
	t.Helper()
	r := bytes.NewReader(frame)
	var header [codec.HeaderSize]byte
	length, typ, err := codec.ReadHeader(r, &header)
	if err != nil {
		t.Fatalf("header: %v", err)
	}
	if r.Len() != int(length)-1 {
		t.Fatalf("%d bytes follow the header, its length says %d", r.Len(), length-1)
	}
	return frames.Type(typ), frame[codec.HeaderSize:]
}

func TestFrames(t *testing.T) {
	each(t, allFrames, func(v *vectors.Frame) string { return v.Name }, func(t *testing.T, _ *vectors.Set, v *vectors.Frame) {
		typ, body := split(t, v.Frame)
		if uint8(typ) != v.Type {
			t.Fatalf("type byte is %#x, the case says %#x", uint8(typ), v.Type)
		}
		f, err := frames.Decode(typ, body)
		if err != nil {
			t.Fatal(err)
		}
		if len(v.Values) == 0 {
			t.Fatal("the case gives no values")
		}
		if at := compare(typ.String(), v.Values, valuesOf(t, f)); at != "" {
			t.Error(at)
		}
		again, err := frames.Append(nil, f)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, v.Frame) {
			t.Errorf("re-encodes to\n%x, want\n%x", again, []byte(v.Frame))
		}
	})
}

// Every frame of the endpoint has a vector, so that none goes untested.
func TestFramesAreComplete(t *testing.T) {
	seen := map[frames.Type]bool{}
	for _, v := range allFrames(vectors.Load(t)[0]) {
		seen[frames.Type(v.Type)] = true
	}
	for _, typ := range frames.Types() {
		if !seen[typ] {
			t.Errorf("no vector of %v", typ)
		}
	}
}
