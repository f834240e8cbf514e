package vectors

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// Hex is bytes written as lowercase hex.
type Hex []byte

// UnmarshalJSON reads lowercase hex.
func (h *Hex) UnmarshalJSON(raw []byte) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	b, err := hex.DecodeString(s)
	if err != nil || strings.ToLower(s) != s {
		return errors.New("not lowercase hex")
	}
	*h = b
	return nil
}

// U64 is a number, or a decimal string where JSON numbers lose precision.
type U64 uint64

// UnmarshalJSON reads either form.
func (u *U64) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 10, 64)
	if err != nil {
		return errors.New("not an unsigned 64-bit number")
	}
	*u = U64(n)
	return nil
}

// Field is one TLV field, written as [id, hex].
type Field struct {
	ID    uint32
	Value Hex
}

// UnmarshalJSON reads the pair.
func (f *Field) UnmarshalJSON(raw []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(raw, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return errors.New("a field is not a pair of id and value")
	}
	if err := json.Unmarshal(pair[0], &f.ID); err != nil {
		return err
	}
	return json.Unmarshal(pair[1], &f.Value)
}

// appendCases reads a file that is one list.
func appendCases[T any](raw []byte, into *[]T) error {
	var cases []T
	if err := decode(raw, &cases); err != nil {
		return err
	}
	*into = append(*into, cases...)
	return nil
}

// appendFile reads a file that is one object; a whole one has all the named lists.
func appendFile[T any](raw []byte, whole bool, into *[]T, lists ...string) error {
	var file T
	if err := decode(raw, &file); err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	if len(members) == 0 {
		return errors.New("the file is empty")
	}
	for _, list := range lists {
		if _, ok := members[list]; !ok && whole {
			return fmt.Errorf("%s is missing", list)
		}
	}
	*into = append(*into, file)
	return nil
}

// decode reads one JSON value with nothing behind it into v, and holds it to v's type.
func decode(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the value")
	}
	return checkShape(raw, reflect.TypeOf(v).Elem(), false)
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// checkShape refuses what encoding/json lets pass: absent members, empty names and empty
// lists. A struct tag `empty:"ok"` allows a list to be empty.
func checkShape(raw []byte, t reflect.Type, emptyOK bool) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case string(bytes.TrimSpace(raw)) == "null":
		return errors.New("null")
	case reflect.PointerTo(t).Implements(unmarshaler):
		return nil
	case t.Kind() == reflect.Slice:
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return err
		}
		if len(items) == 0 && !emptyOK {
			return errors.New("the list is empty")
		}
		for n, item := range items {
			if err := checkShape(item, t.Elem(), false); err != nil {
				return fmt.Errorf("case %d: %w", n, err)
			}
		}
	case t.Kind() == reflect.Struct:
		return checkStruct(raw, t)
	}
	return nil
}

func checkStruct(raw []byte, t reflect.Type) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	for k := range t.NumField() {
		f := t.Field(k)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		member, ok := members[name]
		switch {
		case !ok && options == "omitempty":
			continue
		case !ok:
			return fmt.Errorf("member %s is missing", name)
		case name == "name" && string(member) == `""`:
			return errors.New("the case has no name")
		}
		if err := checkShape(member, f.Type, f.Tag.Get("empty") == "ok"); err != nil {
			return fmt.Errorf("member %s: %w", name, err)
		}
	}
	return nil
}
