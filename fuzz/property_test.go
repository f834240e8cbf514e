package fuzz_test

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
)

// checkMessage holds a message that body decoded to, and its encoding, to the property.
// fresh makes an empty message of the same type.
func checkMessage(t *testing.T, m codec.Message, body []byte, fresh func() codec.Message) {
	t.Helper()
	prefix := []byte("prefix")
	out, err := codec.Encode(prefix, m)
	if err != nil {
		t.Fatalf("%T %+v from %x does not encode: %v", m, m, body, err)
	}
	if !bytes.HasPrefix(out, prefix) {
		t.Fatalf("%T: Encode changed what it appends to", m)
	}
	out = out[len(prefix):]
	canonical, err := codec.Canonical(out)
	if err != nil || !bytes.Equal(canonical, out) {
		t.Fatalf("%T encodes to %x, which is not canonical (%v)", m, out, err)
	}
	again := fresh()
	if err := codec.Decode(again, out); err != nil {
		t.Fatalf("%T: canonical form %x of %x is refused: %v", m, out, body, err)
	}
	if !reflect.DeepEqual(again, m) {
		t.Fatalf("%T: canonical form %x of %x decodes to\n%+v, not\n%+v", m, out, body, again, m)
	}
	if isCanonical(t, m, body, out) && !bytes.Equal(out, body) {
		t.Fatalf("%T: canonical body %x re-encodes to %x", m, body, out)
	}
}

// isCanonical says whether body, which decodes, is canonical and free of fields that the
// decoder skipped; out is what was kept of it.
func isCanonical(t *testing.T, m codec.Message, body, out []byte) bool {
	t.Helper()
	canonical, err := codec.Canonical(body)
	if err != nil {
		t.Fatalf("%T: body %x decodes but has no canonical form: %v", m, body, err)
	}
	if !bytes.Equal(canonical, body) {
		return false
	}
	given, kept := fieldsOf(t, body), fieldsOf(t, out)
	if _, ok := m.(*frames.CoordCommand); ok && !canonicalConditions(given[6]) {
		return false
	}
	for id := range given {
		if _, ok := kept[id]; !ok {
			return false
		}
	}
	return true
}

func fieldsOf(t *testing.T, body []byte) map[uint32][]byte {
	t.Helper()
	list, err := codec.ParseFields(body)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[uint32][]byte{}
	for _, f := range list {
		fields[f.ID] = f.Value
	}
	return fields
}

// canonicalConditions says whether the preconditions field of a command is absent, or a
// list that is sorted and not empty (protocol.md §8 [D-25]).
func canonicalConditions(list []byte) bool {
	if list == nil {
		return true
	}
	const size = 2 + 16 + 8
	n := int(binary.BigEndian.Uint16(list))
	for k := 1; k < n; k++ {
		before, after := list[2+(k-1)*size:], list[2+k*size:]
		if bytes.Compare(before[:18], after[:18]) > 0 {
			return false
		}
	}
	return n > 0
}

// checkImage does the same for positional values, which have one encoding only.
func checkImage(t *testing.T, v codec.Value, image []byte) {
	t.Helper()
	out, err := codec.EncodeImage(nil, v)
	if err != nil {
		t.Fatalf("%T %+v from %x does not encode: %v", v, v, image, err)
	}
	if !bytes.Equal(out, image) {
		t.Fatalf("%T: %x re-encodes to %x", v, image, out)
	}
	again := reflect.New(reflect.TypeOf(v).Elem()).Interface().(codec.Value)
	if err := codec.DecodeImage(again, out); err != nil || !reflect.DeepEqual(again, v) {
		t.Fatalf("%T: %x decodes the second time to %+v, %v", v, out, again, err)
	}
}

// malformed holds a refusal of a decoder to its code.
func malformed(t *testing.T, err error) {
	t.Helper()
	if code := frames.CodeOf(err); code != frames.CodeMalformedMessage && code != frames.CodeFrameTooLarge {
		t.Fatalf("%v has code %v", err, code)
	}
}
