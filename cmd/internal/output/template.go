package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/spec"

	"coordinator/internal/text"
)

// maxTemplate bounds a template, in characters.
const maxTemplate = 64 << 10

// A Template is text with actions in braces, as kubectl has them:
//
//	{.a.b[*].c}        what an RFC 9535 path picks, with a space between
//	{"\t"} {'x'}       text, with escapes
//	{range PATH}…{end} what is between, once for each value that the path picks
//
// A path begins at the value at hand; one that begins with $ begins at the whole. What is not
// there picks nothing.
type Template struct{ parts []part }

// A part is text, a path, or a range over one.
type part struct {
	text string
	path *jsonpath.Path // nil: text
	root bool           // the path begins at the whole
	each bool           // a range, which body is the inside of
	body []part
}

// A TemplateError says what is wrong with a template, and where.
type TemplateError struct {
	Template string
	// At is the character, from 0, at which the template cannot go on.
	At      int
	Problem string
}

func (e *TemplateError) Error() string {
	return fmt.Sprintf("the template is wrong at character %d: %s\n    %s\n    %s^", e.At+1, e.Problem, text.Inert(e.Template), strings.Repeat(" ", e.At))
}

// templateParser reads a template, one character after another.
type templateParser struct {
	in []rune
	at int
}

// ParseTemplate reads a template. Errors are *[TemplateError].
func ParseTemplate(template string) (*Template, error) {
	p := &templateParser{in: []rune(template)}
	if len(p.in) > maxTemplate {
		return nil, &TemplateError{Template: template[:0], Problem: fmt.Sprintf("it is longer than %d characters", maxTemplate)}
	}
	parts, err := p.parts(-1)
	if err != nil {
		return nil, err
	}
	for _, t := range parts {
		if t.path != nil {
			return &Template{parts}, nil
		}
	}
	p.at = 0
	return nil, p.wrong("it picks nothing; write a path in braces, such as {.state}")
}

func (p *templateParser) wrong(format string, args ...any) error {
	return &TemplateError{string(p.in), p.at, fmt.Sprintf(format, args...)}
}

// parts reads up to the end of the range that began at begin, or of the template (-1).
func (p *templateParser) parts(begin int) (out []part, err error) {
	for p.at < len(p.in) {
		if p.in[p.at] != '{' {
			start := p.at
			for p.at < len(p.in) && p.in[p.at] != '{' {
				p.at++
			}
			out = append(out, part{text: string(p.in[start:p.at])})
			continue
		}
		open := p.at
		from, to, err := p.action()
		if err != nil {
			return nil, err
		}
		word := string(p.in[from:to])
		switch rest, ranged := strings.CutPrefix(word, "range"); {
		case word == "end" && begin < 0:
			p.at = open
			return nil, p.wrong("{end} without a {range …} before it")
		case word == "end":
			return out, nil
		case ranged && (rest == "" || unicode.IsSpace([]rune(rest)[0])):
			t, err := p.path(from+len("range"), to)
			if err != nil {
				return nil, err
			}
			t.each = true
			if t.body, err = p.parts(open); err != nil {
				return nil, err
			}
			out = append(out, t)
		default:
			t, err := p.simple(from, to)
			if err != nil {
				return nil, err
			}
			out = append(out, t)
		}
	}
	if begin >= 0 {
		p.at = begin
		return nil, p.wrong("this range has no {end}")
	}
	return out, nil
}

// action finds what is between the brace at hand and the one that closes it, and goes behind it.
func (p *templateParser) action() (from, to int, err error) {
	open := p.at
	quote := rune(0)
	for p.at++; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; {
		case quote != 0 && c == '\\':
			p.at++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '}':
			from, to = open+1, p.at
			for from < to && unicode.IsSpace(p.in[from]) {
				from++
			}
			for from < to && unicode.IsSpace(p.in[to-1]) {
				to--
			}
			p.at++
			return from, to, nil
		}
	}
	p.at = open
	return 0, 0, p.wrong("this brace is not closed")
}

// simple reads an action that is text in quotes or a path.
func (p *templateParser) simple(from, to int) (part, error) {
	if from == to || p.in[from] != '"' && p.in[from] != '\'' {
		return p.path(from, to)
	}
	literal, err := unquote(string(p.in[from:to]))
	if err != nil {
		p.at = from
		return part{}, p.wrong("this is no text in quotes, with escapes such as \\n and \\t")
	}
	return part{text: literal}, nil
}

// unquote reads text in quotes of either kind.
func unquote(s string) (string, error) {
	quote := s[0]
	if len(s) < 2 || s[len(s)-1] != quote {
		return "", strconv.ErrSyntax
	}
	var out strings.Builder
	for s = s[1 : len(s)-1]; s != ""; {
		c, multibyte, rest, err := strconv.UnquoteChar(s, quote)
		if err != nil {
			return "", err
		}
		if s = rest; multibyte {
			out.WriteRune(c)
		} else {
			out.WriteByte(byte(c))
		}
	}
	return out.String(), nil
}

// wrongAt finds where the path's parser says an error is.
var wrongAt = regexp.MustCompile(`^jsonpath: (.*) at position (\d+)$`)

// path reads a path out of the action that was found last.
func (p *templateParser) path(from, to int) (part, error) {
	behind := p.at
	for from < to && unicode.IsSpace(p.in[from]) {
		from++
	}
	p.at = from
	if from == to {
		return part{}, p.wrong("a path is missing, such as .state")
	}
	t, query, ahead := part{}, string(p.in[from:to]), 0
	switch p.in[from] {
	case '$':
		t.root = true
	case '@':
		query = "$" + query[1:]
	case '.', '[':
		query, ahead = "$"+query, 1
	default:
		return part{}, p.wrong("a path begins with one of . [ @ $, an action besides is text in quotes, range or end")
	}
	path, err := jsonpath.Parse(query)
	if err == nil {
		p.at, t.path = behind, path
		return t, nil
	}
	problem := strings.TrimPrefix(err.Error(), "jsonpath: ")
	if m := wrongAt.FindStringSubmatch(err.Error()); m != nil {
		problem = m[1]
		if n, err := strconv.Atoi(m[2]); err == nil {
			p.at = min(max(from, from+n-1-ahead), to)
		}
	}
	return part{}, p.wrong("%s", strings.Replace(problem, "unexpected eof", "the path ends too early", 1))
}

// write writes what the template picks of a JSON value, and a newline behind it unless it ends
// in one or nothing was picked.
func (t *Template) write(w io.Writer, raw []byte) error {
	var root any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		return fmt.Errorf("jsonpath: %w", err)
	}
	var b bytes.Buffer
	if err := pick(&b, t.parts, root, root); err != nil {
		return fmt.Errorf("jsonpath: %w", err)
	}
	if b.Len() > 0 && b.Bytes()[b.Len()-1] != '\n' {
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Pick is what the template makes of a JSON value.
func (t *Template) Pick(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = t.write(&b, raw)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func pick(b *bytes.Buffer, parts []part, root, here any) error {
	for _, t := range parts {
		if t.path == nil {
			b.WriteString(t.text)
			continue
		}
		from := here
		if t.root {
			from = root
		}
		for i, n := range nodesOf(t.path, from) {
			if t.each {
				if err := pick(b, t.body, root, n.Node); err != nil {
					return err
				}
				continue
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			s, err := nodeText(n.Node)
			if err != nil {
				return err
			}
			b.WriteString(s)
		}
	}
	return nil
}

// nodesOf is what a path picks. Members of an object come in any order where a path names none
// of them, so that those are put in the order of their places.
func nodesOf(path *jsonpath.Path, from any) jsonpath.LocatedNodeList {
	nodes := path.SelectLocated(from)
	segments := path.Query().Segments()
	for i, s := range segments {
		if s.IsDescendant() {
			nodes.Sort()
			return nodes
		}
		for _, selector := range s.Selectors() {
			switch selector.(type) {
			case spec.WildcardSelector, *spec.FilterSelector:
				for _, n := range nodes {
					if _, named := n.Path[i].(spec.Name); named {
						nodes.Sort()
						return nodes
					}
				}
			}
		}
	}
	return nodes
}

// nodeText is a picked value as text that steers no terminal and forges no line; an object or
// array is JSON.
func nodeText(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return text.Inert(v), nil
	case json.Number:
		return v.String(), nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return text.Inert(strings.TrimSuffix(b.String(), "\n")), err
}
