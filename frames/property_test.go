package frames_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"coordinator/codec"
	"coordinator/frames"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// leaves collects what can be changed in a value: numbers, bools, strings, arrays and
// slices, and through pointers.
func leaves(v reflect.Value, into *[]reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for k := range v.NumField() {
			leaves(v.Field(k), into)
		}
		return
	case reflect.Pointer:
		if !v.IsNil() {
			leaves(v.Elem(), into)
		}
		return
	case reflect.Slice:
		for k := range v.Len() {
			if v.Index(k).Kind() == reflect.Struct {
				leaves(v.Index(k), into)
			}
		}
	}
	*into = append(*into, v)
}

var (
	numbers = []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 60, 255, 1000, 1024, 1025, 2591999, 2592000, 0x4000, 0x4001,
		math.MaxUint16, 1 << 31, math.MaxUint32, 1 << 63, math.MaxUint64}
	texts = []string{"", "a", "ü", "\xc3\x28", "a\x00b", "a\x7f", "a\u0085", "phux-workload/v1", strings.Repeat("t", 128),
		strings.Repeat("t", 129), strings.Repeat("t", 255), strings.Repeat("t", 256), strings.Repeat("t", 1024), strings.Repeat("t", 1025)}
	sizes = []int{0, 1, 2, 3, 7, 8, 9, 16, 17, 18, 4096, 4097, frames.MaxTypedPayload - 6, frames.MaxTypedPayload, frames.MaxTypedPayload + 1}
)

// change gives one leaf a value at or beyond some bound.
func change(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.SampledFrom(numbers).Draw(t, "number") & (1<<v.Type().Bits() - 1))
	case reflect.Int32:
		v.SetInt(int64(rapid.Int32().Draw(t, "i32")))
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString(rapid.SampledFrom(texts).Draw(t, "text"))
	case reflect.Array:
		n := rapid.SampledFrom([]byte{0, 0, 1, 255}).Draw(t, "fill")
		reflect.Copy(v, reflect.ValueOf(bytes.Repeat([]byte{n}, v.Len())))
	case reflect.Slice:
		changeSlice(t, v)
	default:
		panic(fmt.Sprintf("cannot change a %v", v.Type()))
	}
}

func changeSlice(t *rapid.T, v reflect.Value) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		n := rapid.SampledFrom(sizes).Draw(t, "size")
		b := make([]byte, n)
		copy(b, rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "bytes"))
		v.SetBytes(b)
		return
	}
	switch rapid.IntRange(0, 4).Draw(t, "list") {
	case 0:
		v.SetZero()
	case 1: // reversed
		swap := reflect.Swapper(v.Interface())
		for i, j := 0, v.Len()-1; i < j; i, j = i+1, j-1 {
			swap(i, j)
		}
	case 2: // an element twice
		if v.Len() > 0 {
			v.Set(reflect.Append(v, v.Index(0)))
		}
	case 3: // too many
		for v.Len() > 0 && v.Len() < 1100 {
			v.Set(reflect.AppendSlice(v, v))
		}
	case 4: // none, but not nil
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	}
}

// changed draws one of the samples and changes up to two of its leaves.
func changed[T any](t *rapid.T, samples func() []T) T {
	all := samples() // fresh each time: the changes reach into them
	m := all[rapid.IntRange(0, len(all)-1).Draw(t, "sample")]
	var list []reflect.Value
	leaves(reflect.ValueOf(m), &list)
	for range rapid.IntRange(0, 2).Draw(t, "changes") {
		if len(list) > 0 {
			change(t, list[rapid.IntRange(0, len(list)-1).Draw(t, "leaf")])
		}
	}
	return m
}

// checkBody: what encoded decodes, to a value that encodes the same.
func checkBody(t *rapid.T, m codec.Message, body []byte) {
	again := fresh(m)
	if err := codec.Decode(again, body); err != nil {
		t.Fatalf("%T %+v encodes to %x, which is refused: %v", m, m, body, err)
	}
	out, err := codec.Encode(nil, again)
	if err != nil || !bytes.Equal(out, body) {
		t.Fatalf("%T: %x comes back as %x, %v", m, body, out, err)
	}
	if canonical, err := codec.Canonical(body); err != nil || !bytes.Equal(canonical, body) {
		t.Fatalf("%T: %x is not canonical", m, body)
	}
}

func refusedForm(t *rapid.T, err error) {
	var e *codec.Error
	if !errors.As(err, &e) && !errors.Is(err, codec.ErrFrameTooLarge) {
		t.Fatalf("%v is no error of form", err)
	}
}

// An encoder writes nothing that its decoder refuses.
func TestEncodersWriteWhatDecodersTake(t *testing.T) {
	t.Run("frames", rapid.MakeCheck(func(t *rapid.T) {
		f := changed(t, sampleFrames)
		frame, err := frames.Append(nil, f)
		if err != nil {
			refusedForm(t, err)
			return
		}
		if _, err := frames.Decode(f.Type(), frame[codec.HeaderSize:]); err != nil {
			t.Fatalf("%+v encodes to %x, which is refused: %v", f, frame, err)
		}
		checkBody(t, f, frame[codec.HeaderSize:])
	}))
	t.Run("messages", rapid.MakeCheck(func(t *rapid.T) {
		m := changed(t, sampleMessages)
		body, err := codec.Encode(nil, m)
		if err != nil {
			refusedForm(t, err)
			return
		}
		checkBody(t, m, body)
	}))
	t.Run("values", rapid.MakeCheck(func(t *rapid.T) {
		v := changed(t, sampleValues)
		image, err := codec.EncodeImage(nil, v)
		if err != nil {
			refusedForm(t, err)
			return
		}
		again := fresh(v)
		if err := codec.DecodeImage(again, image); err != nil {
			t.Fatalf("%T %+v encodes to %x, which is refused: %v", v, v, image, err)
		}
		if out, err := codec.EncodeImage(nil, again); err != nil || !bytes.Equal(out, image) {
			t.Fatalf("%T: %x comes back as %x, %v", v, image, out, err)
		}
	}))
}

// And a decoder takes nothing that its encoder refuses: with the test above, each refuses
// exactly what the other does.
func TestDecodersTakeWhatEncodersWrite(t *testing.T) {
	body := func(t *rapid.T, m codec.Message) {
		raw, err := codec.Encode(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		raw = changeBody(t, raw)
		again := fresh(m)
		if err := codec.Decode(again, raw); err != nil {
			refusedForm(t, err)
			return
		}
		out, err := codec.Encode(nil, again)
		if err != nil {
			t.Fatalf("%T: %x decodes to %+v, which is refused: %v", m, raw, again, err)
		}
		checkBody(t, again, out)
	}
	t.Run("frames", rapid.MakeCheck(func(t *rapid.T) { body(t, rapid.SampledFrom(sampleFrames()).Draw(t, "frame")) }))
	t.Run("messages", rapid.MakeCheck(func(t *rapid.T) { body(t, rapid.SampledFrom(sampleMessages()).Draw(t, "message")) }))
	t.Run("values", rapid.MakeCheck(func(t *rapid.T) {
		v := rapid.SampledFrom(sampleValues()).Draw(t, "value")
		image, err := codec.EncodeImage(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		image = changeBytes(t, image)
		again := fresh(v)
		if err := codec.DecodeImage(again, image); err != nil {
			refusedForm(t, err)
			return
		}
		if out, err := codec.EncodeImage(nil, again); err != nil || !bytes.Equal(out, image) {
			t.Fatalf("%T: %x comes back as %x, %v", v, image, out, err)
		}
	}))
}

// changeBody changes the value of one field, or takes, doubles, moves or adds a field.
func changeBody(t *rapid.T, body []byte) []byte {
	fields, err := codec.ParseFields(body)
	if err != nil {
		t.Fatal(err)
	}
	k := rapid.IntRange(0, len(fields)-1).Draw(t, "field")
	switch rapid.IntRange(0, 6).Draw(t, "how") {
	case 0:
		fields = slices.Delete(fields, k, k+1)
	case 1:
		fields = append(fields, fields[k])
	case 2:
		fields = append(append(fields[:k:k], fields[k+1:]...), fields[k])
	case 3:
		fields = append(fields, codec.Field{ID: rapid.Uint32Range(1, 30).Draw(t, "id"), Value: []byte("extra")})
	default:
		fields[k].Value = changeBytes(t, fields[k].Value)
	}
	return codec.AppendFields(nil, fields)
}

// changeBytes overwrites, cuts or lengthens some bytes.
func changeBytes(t *rapid.T, b []byte) []byte {
	b = bytes.Clone(b)
	switch at := rapid.IntRange(0, len(b)).Draw(t, "at"); rapid.IntRange(0, 3).Draw(t, "bytes") {
	case 0:
		return b[:at]
	case 1:
		return slices.Insert(b, at, rapid.Byte().Draw(t, "byte"))
	case 2:
		copy(b[at:], rapid.SampledFrom([]string{"\x00", "\x00\x00", "\x01", "\x02", "\xff", "\xff\xff\xff\xff", "\x00\x00\x00\x00\x00\x00\x00\x00", "\x80\x00\x00\x00"}).Draw(t, "with"))
	case 3:
		copy(b[at:], make([]byte, 16))
	}
	return b
}

// form says which fields of a body may be absent and which have a value of any length.
// It is written from protocol.md §5-§10, apart from the layouts.
type form struct{ optional, variable []uint32 }

var frameForms = map[frames.Type]form{
	frames.TypeCoordHello:         {optional: []uint32{13}, variable: []uint32{4}},
	frames.TypeCoordCommand:       {optional: []uint32{6, 7, 24, 25}, variable: []uint32{5, 7, 24, 25}},
	frames.TypeCoordError:         {optional: []uint32{1}, variable: []uint32{3}},
	frames.TypeOpenSnapshot:       {optional: []uint32{5}},
	frames.TypeSnapshotBegin:      {optional: []uint32{5, 6, 8}, variable: []uint32{5}},
	frames.TypeSnapshotNext:       {variable: []uint32{3}},
	frames.TypeSnapshotPage:       {optional: []uint32{6}, variable: []uint32{3, 6}},
	frames.TypeSnapshotApplied:    {optional: []uint32{3}},
	frames.TypeCoordEvent:         {variable: []uint32{9}},
	frames.TypeGap:                {optional: []uint32{4}},
	frames.TypeReplayBegin:        {optional: []uint32{4, 6}, variable: []uint32{6}},
	frames.TypeReplayNext:         {variable: []uint32{3}},
	frames.TypeReplayPage:         {optional: []uint32{6}, variable: []uint32{3, 6}},
	frames.TypeWorkloadChallenge:  {},
	frames.TypeWorkloadResponse:   {},
	frames.TypeCoordHelloOK:       {},
	frames.TypeAck:                {},
	frames.TypePing:               {},
	frames.TypePong:               {},
	frames.TypeAuthorityRenewed:   {},
	frames.TypeCoordCommandResult: {},
	frames.TypeGetOperationResult: {},
	frames.TypeOperationResult:    {},
	frames.TypeSnapshotEnd:        {},
	frames.TypeSubscribe:          {},
	frames.TypeSubscribed:         {},
	frames.TypeCredit:             {},
	frames.TypeOpenReplay:         {},
	frames.TypeReplayEnd:          {},
	frames.TypeReplayApplied:      {},
}

var messageForms = map[string]form{
	"Objective":                {variable: []uint32{2}},
	"Run":                      {optional: []uint32{4}, variable: []uint32{4}},
	"WorkSession":              {optional: []uint32{3}},
	"Binding":                  {optional: []uint32{3}},
	"Artifact":                 {},
	"ArtifactManifest":         {variable: []uint32{4}},
	"Signal":                   {variable: []uint32{4}},
	"Operation":                {},
	"Evidence":                 {},
	"EvidenceManifest":         {optional: []uint32{4}},
	"Admin":                    {variable: []uint32{2}},
	"Activation":               {},
	"Retention":                {},
	"Credential":               {optional: []uint32{4}},
	"CreateObjective":          {variable: []uint32{3}},
	"UpdateObjective":          {optional: []uint32{4}, variable: []uint32{3}},
	"StartRun":                 {variable: []uint32{5}},
	"RunCommand":               {},
	"SignalCommand":            {optional: []uint32{2}, variable: []uint32{2}},
	"RegisterArtifactManifest": {variable: []uint32{4}},
	"EndBinding":               {},
	"ChangeRetention":          {},
	"ArchiveObjective":         {},
}

func TestOptionalityAndWidths(t *testing.T) {
	for _, f := range sampleFrames() {
		want, ok := frameForms[f.Type()]
		require.True(t, ok, "no form of %v", f.Type())
		checkForm(t, f, want)
	}
	for _, m := range sampleMessages() {
		name := reflect.TypeOf(m).Elem().Name()
		want, ok := messageForms[name]
		require.True(t, ok, "no form of %s", name)
		checkForm(t, m, want)
	}
}

func checkForm(t *testing.T, m codec.Message, want form) {
	t.Helper()
	body, err := codec.Encode(nil, m)
	require.NoError(t, err)
	fields, err := codec.ParseFields(body)
	require.NoError(t, err)
	for k, f := range fields {
		without := codec.AppendFields(nil, slices.Delete(slices.Clone(fields), k, k+1))
		optional := slices.Contains(want.optional, f.ID)
		if err := codec.Decode(fresh(m), without); (err == nil) != optional {
			t.Errorf("%T without field %d: %v, optional is %v", m, f.ID, err, optional)
		}
		for _, value := range [][]byte{append(bytes.Clone(f.Value), 0), f.Value[:max(len(f.Value)-1, 0)]} {
			if len(value) == len(f.Value) {
				continue
			}
			other := slices.Clone(fields)
			other[k].Value = value
			variable := slices.Contains(want.variable, f.ID)
			if err := codec.Decode(fresh(m), codec.AppendFields(nil, other)); (err == nil) != variable {
				t.Errorf("%T with %d bytes for %d in field %d: %v, variable is %v", m, len(value), len(f.Value), f.ID, err, variable)
			}
		}
		twice := append(bytes.Clone(body), codec.AppendFields(nil, []codec.Field{f})...)
		require.ErrorIs(t, codec.Decode(fresh(m), twice), codec.ErrDuplicate, "%T with field %d twice", m, f.ID)
	}
	unknown := codec.AppendFields(bytes.Clone(body), []codec.Field{{ID: 23}, {ID: 1 << 30, Value: []byte("x")}})
	err = codec.Decode(fresh(m), unknown)
	switch m.(type) {
	case *frames.WorkloadChallenge, *frames.WorkloadResponse:
		require.ErrorIs(t, err, codec.ErrUnknownField)
	default:
		require.NoError(t, err, "%T with unknown fields", m)
	}
}
