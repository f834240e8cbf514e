package vectors_test

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/frames"
	"coordinator/vectors"
)

// imageCase is one case of one list of records.json.
type imageCase struct {
	vectors.Image
	list string
	bad  bool
	make func() codec.Value
}

func allImages(s *vectors.Set) (cases []imageCase) {
	add := func(list string, bad bool, images []vectors.Image, make func() codec.Value) {
		for _, v := range images {
			cases = append(cases, imageCase{v, list, bad, make})
		}
	}
	record := func() codec.Value { return new(frames.SnapshotRecord) }
	result := func() codec.Value { return new(frames.OperationResult) }
	fact := func() codec.Value { return new(frames.TerminalSourceFact) }
	binding := func() codec.Value { return new(frames.TerminalBindingRef) }
	target := func() codec.Value { return new(frames.EffectTarget) }
	attempt := func() codec.Value { return new(frames.EffectAttempt) }
	gap := func() codec.Value { return new(frames.SourceGap) }
	for _, f := range s.Records {
		add("records", false, f.Records, record)
		add("bad_records", true, f.BadRecords, record)
		add("operation_results", false, f.OperationResults, result)
		add("bad_operation_results", true, f.BadOperationResults, result)
		add("facts", false, f.Facts, fact)
		add("bad_facts", true, f.BadFacts, fact)
		add("binding_refs", false, f.BindingRefs, binding)
		add("bad_binding_refs", true, f.BadBindingRefs, binding)
		add("effect_targets", false, f.EffectTargets, target)
		add("bad_effect_targets", true, f.BadEffectTargets, target)
		add("effect_attempts", false, f.EffectAttempts, attempt)
		add("bad_effect_attempts", true, f.BadEffectAttempts, attempt)
		add("source_gaps", false, f.SourceGaps, gap)
		add("bad_source_gaps", true, f.BadSourceGaps, gap)
	}
	return cases
}

func TestRecords(t *testing.T) {
	each(t, allImages, func(v *imageCase) string { return v.list + "/" + v.Name }, func(t *testing.T, _ *vectors.Set, v *imageCase) {
		value := v.make()
		err := codec.DecodeImage(value, v.Image.Image)
		if record, ok := value.(*frames.SnapshotRecord); ok && err == nil {
			err = checkPayload(t, record)
		}
		if v.bad {
			if err == nil {
				t.Fatalf("accepted as %+v", value)
			}
			if code := frames.CodeOf(err); code != frames.CodeMalformedMessage {
				t.Errorf("refused with %v, want MALFORMED_MESSAGE", code)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := codec.EncodeImage(nil, value)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, v.Image.Image) {
			t.Errorf("re-encodes to\n%x, want\n%x", again, []byte(v.Image.Image))
		}
	})
}

// checkPayload decodes a record's payload to the type of its kind, the one inside an ADMIN
// record too, and holds both to their canonical form.
func checkPayload(t *testing.T, r *frames.SnapshotRecord) error {
	t.Helper()
	m, err := r.DecodePayload()
	if err != nil {
		return err
	}
	sameBody(t, m, r.Payload)
	if admin, ok := m.(*frames.Admin); ok {
		inner, err := admin.DecodePayload()
		if err != nil {
			return err
		}
		sameBody(t, inner, admin.Payload)
	}
	return nil
}

func sameBody(t *testing.T, m codec.Message, body []byte) {
	t.Helper()
	again, err := codec.Encode(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, body) {
		t.Errorf("%T re-encodes to\n%x, want\n%x", m, again, body)
	}
}
