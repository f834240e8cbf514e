package vectors_test

import (
	"bytes"
	"testing"

	"coordinator/codec"
	"coordinator/vectors"
)

// each runs f over every case of every set, under the set's and the case's name.
func each[T any](t *testing.T, cases func(*vectors.Set) []T, name func(*T) string, f func(*testing.T, *vectors.Set, *T)) {
	t.Helper()
	for _, s := range vectors.Load(t) {
		t.Run(s.Dir, func(t *testing.T) {
			list := cases(s)
			if len(list) == 0 {
				t.Fatal("the set has no case")
			}
			for k := range list {
				t.Run(name(&list[k]), func(t *testing.T) { f(t, s, &list[k]) })
			}
		})
	}
}

func TestTLV(t *testing.T) {
	each(t, func(s *vectors.Set) []vectors.TLV { return s.TLV }, func(v *vectors.TLV) string { return v.Name },
		func(t *testing.T, _ *vectors.Set, v *vectors.TLV) {
			if v.Error == (v.Canonical != nil) {
				t.Fatal("the case has neither or both of error and canonical")
			}
			fields, err := codec.ParseFields(v.Body)
			canonical, err2 := codec.Canonical(v.Body)
			any := anyFields{}
			err3 := codec.Decode(&any, v.Body)
			if v.Error {
				if err == nil || err2 == nil || err3 == nil {
					t.Fatalf("accepted: ParseFields %v, Canonical %v, Decode %v", err, err2, err3)
				}
				return
			}
			if err != nil || err2 != nil || err3 != nil {
				t.Fatalf("refused: ParseFields %v, Canonical %v, Decode %v", err, err2, err3)
			}
			equalFields(t, "ParseFields", fields, v.Fields)
			equalFields(t, "Decode", any.fields, v.Fields)
			again, err := codec.Encode(nil, &any)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(canonical, *v.Canonical) || !bytes.Equal(again, *v.Canonical) {
				t.Errorf("canonical form is %x and %x, want %x", canonical, again, []byte(*v.Canonical))
			}
		})
}

// anyFields is a message whose layout names no field.
type anyFields struct{ fields []codec.Field }

func (a *anyFields) Layout(b *codec.Body) { b.Unknown(&a.fields) }

func equalFields(t *testing.T, who string, got []codec.Field, want []vectors.Field) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d fields, want %d", who, len(got), len(want))
	}
	for k := range want {
		if got[k].ID != want[k].ID || !bytes.Equal(got[k].Value, want[k].Value) {
			t.Errorf("%s: field %d is %d %x, want %d %x", who, k, got[k].ID, got[k].Value, want[k].ID, []byte(want[k].Value))
		}
	}
}
