// Package output writes what a command found in the format that its --output names: JSON, YAML with
// the same members, or what a template picks. The two formats for people, text and wide, are
// laid out by the commands.
//
// It knows values as their JSON and nothing of what they mean.
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Usage lists the formats, for help and for errors.
const Usage = "text, wide, json, yaml or jsonpath=TEMPLATE"

// Names are the formats' names, as far as they can be completed.
func Names() []string { return []string{"text", "wide", "json", "yaml", "jsonpath="} }

// kind is what --output names.
type kind uint8

const (
	kindText kind = iota
	kindWide
	kindJSON
	kindYAML
	kindJSONPath
)

// A Format is an output format. It is a flag's value; the zero one is text.
type Format struct {
	kind     kind
	template *Template
	name     string
}

// FormatError says that --output names no format.
type FormatError struct{ Given string }

func (e *FormatError) Error() string {
	return fmt.Sprintf("--output is %q; it is %s", e.Given, Usage)
}

// Parse reads a format. Errors are *[FormatError] and *[TemplateError]. "table" is text, by the
// name it had.
func Parse(text string) (Format, error) {
	f := Format{name: text}
	if template, ok := strings.CutPrefix(text, "jsonpath="); ok {
		t, err := ParseTemplate(template)
		if err != nil {
			return Format{}, err
		}
		f.kind, f.template = kindJSONPath, t
		return f, nil
	}
	switch text {
	case "text", "table":
		f.kind = kindText
	case "wide":
		f.kind = kindWide
	case "json":
		f.kind = kindJSON
	case "yaml":
		f.kind = kindYAML
	default:
		return Format{}, &FormatError{text}
	}
	return f, nil
}

// Set makes a Format the value of a flag.
func (f *Format) Set(text string) error {
	parsed, err := Parse(text)
	if err == nil {
		*f = parsed
	}
	return err
}

// String is what [Parse] read.
func (f *Format) String() string {
	if f.name == "" {
		return "text"
	}
	return f.name
}

// Type is the word for the value in help.
func (*Format) Type() string { return "FORMAT" }

// Structured reports whether values are written, not text for people.
func (f Format) Structured() bool { return f.kind >= kindJSON }

// Wide reports whether tables have all their columns.
func (f Format) Wide() bool { return f.kind == kindWide }

// Picks reports whether a template picks what is written: whatever it does not name is left out.
func (f Format) Picks() bool { return f.kind == kindJSONPath }

// Value writes one value, over as many lines as it takes.
func (f Format) Value(w io.Writer, v any) error {
	raw, err := marshal(v)
	if err != nil {
		return err
	}
	switch f.kind {
	case kindYAML:
		return writeYAML(w, raw, false)
	case kindJSONPath:
		return f.template.write(w, raw)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err = w.Write(b.Bytes())
	return err
}

// Item writes one value of a stream: a line of JSON, a document of YAML, or what the template
// picks of it.
func (f Format) Item(w io.Writer, v any) error {
	if f.kind != kindYAML && f.kind != kindJSONPath {
		raw, err := marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(append(raw, '\n'))
		return err
	}
	var b bytes.Buffer
	if f.kind == kindYAML {
		b.WriteString("---\n")
	}
	if err := f.Value(&b, v); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// A List writes the elements of a list as they come, so that a long one is not all in memory. A
// template alone needs all of them: it sees an object whose "items" they are.
type List struct {
	f     Format
	w     io.Writer
	n     int
	items []json.RawMessage
}

// List begins a list.
func (f Format) List(w io.Writer) *List { return &List{f: f, w: w} }

// Add writes the next element.
func (l *List) Add(v any) error {
	raw, err := marshal(v)
	if err != nil {
		return err
	}
	l.n++
	switch l.f.kind {
	case kindJSONPath:
		l.items = append(l.items, raw)
		return nil
	case kindYAML:
		return writeYAML(l.w, raw, true)
	}
	var b bytes.Buffer
	b.WriteString(",\n  ")
	if err := json.Indent(&b, raw, "  ", "  "); err != nil {
		return err
	}
	out := b.Bytes()
	if l.n == 1 {
		out[0] = '['
	}
	_, err = l.w.Write(out)
	return err
}

// Close ends the list.
func (l *List) Close() error {
	switch {
	case l.f.kind == kindJSONPath:
		return l.f.Value(l.w, map[string]any{"items": append([]json.RawMessage{}, l.items...)})
	case l.n == 0:
		_, err := io.WriteString(l.w, "[]\n")
		return err
	case l.f.kind == kindYAML:
		return nil
	}
	_, err := io.WriteString(l.w, "\n]\n")
	return err
}
