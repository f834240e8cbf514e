package main

import (
	"slices"
	"strings"

	"coordinator/cmd/internal/output"
	"coordinator/cmd/internal/suggest"
	"coordinator/frames"
)

// A life is the states of a family's records, in their order, and which can follow which.
type life struct {
	names []string
	// next are the states that can come after each, at once or later.
	next map[string][]string
	// ended are those in which work does not go on.
	ended []string
}

// after makes the life of records that go from a state to those behind it alone.
func after(ended []string, names ...string) life {
	l := life{names: names, next: map[string][]string{}, ended: ended}
	for _, n := range names {
		if !slices.Contains(ended, n) {
			l.next[n] = slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == n })
		}
	}
	return l
}

// lives are those of the families that have states (protocol.md §7.2 [D-17], §8, §11).
var lives = map[frames.ObjectKind]life{
	frames.KindObjective:   after([]string{"Completed", "Cancelled"}, "Active", "Completed", "Cancelled"),
	frames.KindWorkSession: after([]string{"Ended"}, "Active", "Ended"),
	frames.KindBinding:     after([]string{"Ended"}, "Active", "Ended"),
	frames.KindRun: {
		names: []string{"Planned", "Running", "Paused", "Completed", "Cancelled", "Failed"},
		next: map[string][]string{
			"Planned": {"Running", "Paused", "Completed", "Cancelled", "Failed"},
			"Running": {"Running", "Paused", "Completed", "Cancelled", "Failed"},
			"Paused":  {"Running", "Paused", "Completed", "Cancelled", "Failed"},
		},
		ended: []string{"Completed", "Cancelled", "Failed"},
	},
	frames.KindSignal: {
		names: []string{"Open", "Acknowledged", "Suppressed", "Resolved"},
		next: map[string][]string{
			"Open":         {"Acknowledged", "Suppressed", "Resolved"},
			"Acknowledged": {"Suppressed"},
		},
		ended: []string{"Suppressed", "Resolved"},
	},
	frames.KindOperation: {
		names: []string{"PENDING", "SUCCEEDED", "REJECTED", "INDETERMINATE", "TOMBSTONED"},
		next: map[string][]string{
			"PENDING":       {"SUCCEEDED", "REJECTED", "INDETERMINATE", "TOMBSTONED"},
			"SUCCEEDED":     {"TOMBSTONED"},
			"REJECTED":      {"TOMBSTONED"},
			"INDETERMINATE": {"TOMBSTONED"},
		},
		ended: []string{"SUCCEEDED", "REJECTED", "INDETERMINATE", "TOMBSTONED"},
	},
}

// stateNames are the states of a family, none where it has no states.
func stateNames(kind frames.ObjectKind) []string { return lives[kind].names }

// observed is a record at one moment.
type observed struct {
	ref    frames.ObjectRef
	object object // nil: it is gone
	state  string // empty where the family has none
}

func (s observed) String() string {
	name := strings.ToLower(s.ref.Kind.String()) + " " + s.ref.ID.String()
	switch {
	case s.object == nil && s.state == "":
		return name + " is gone"
	case s.state == "":
		return name + " is there"
	}
	return name + " is " + s.state
}

// A condition is one --for.
type condition struct {
	text     string
	kind     frames.ObjectKind
	removed  bool
	states   []string         // any of them
	template *output.Template // of what is picked
	value    string           // that it must be
	some     bool             // it must be anything
}

func (c condition) String() string { return c.text }

// met reports whether the condition is true of what was observed.
func (c condition) met(s observed) (bool, error) {
	switch {
	case c.removed || s.object == nil:
		return c.removed && s.object == nil, nil
	case c.template != nil:
		got, err := c.template.Pick(s.object)
		return err == nil && (c.some && got != "" || !c.some && got == c.value), err
	}
	return slices.Contains(c.states, s.state), nil
}

// possible reports whether the condition may become true of what it is not true of.
func (c condition) possible(s observed) bool {
	switch {
	case c.removed:
		return true
	case s.object == nil: // ids are used once (protocol.md §7.2 [D-54])
		return false
	case c.template != nil:
		l, states := lives[c.kind]
		return !states || len(l.next[s.state]) > 0
	}
	for _, next := range lives[c.kind].next[s.state] {
		if slices.Contains(c.states, next) {
			return true
		}
	}
	return false
}

func exampleCondition(kind frames.ObjectKind) string {
	if l := lives[kind]; l.ended != nil {
		return "state=" + l.ended[0]
	}
	return "removed"
}

// parseCondition reads one --for of a family.
func parseCondition(kind frames.ObjectKind, text string) (condition, error) {
	c := condition{text: text, kind: kind}
	name, rest, _ := strings.Cut(text, "=")
	l, states := lives[kind]
	switch {
	case text == "removed":
		c.removed = true
		return c, nil
	case name == "jsonpath":
		err := c.parseTemplate(rest)
		return c, err
	case text != "ended" && name != "state":
		return c, usage("--for is %q; it is state=NAME, ended, removed or jsonpath={PATH}=TEXT%s", text, nearCondition(text, l))
	case !states:
		return c, usage("--for %s: %v records have no states; wait with removed or jsonpath={PATH}=TEXT", text, kind)
	case text == "ended":
		c.states = l.ended
		return c, nil
	}
	for wanted := range strings.SplitSeq(rest, "|") {
		at := slices.IndexFunc(l.names, func(n string) bool { return strings.EqualFold(n, wanted) })
		if at < 0 {
			return c, usage("--for %s: %q is no state of %v records; they are %s%s", text, wanted, kind, strings.Join(l.names, ", "), suggest.Hint(wanted, l.names))
		}
		c.states = append(c.states, l.names[at])
	}
	return c, nil
}

// nearCondition names the condition that a text may mean: a state without its name, or a word that is
// near.
func nearCondition(text string, l life) string {
	if at := slices.IndexFunc(l.names, func(n string) bool { return strings.EqualFold(n, text) }); at >= 0 {
		return "; did you mean state=" + l.names[at] + "?"
	}
	name, _, _ := strings.Cut(text, "=")
	return suggest.Hint(name, []string{"state", "ended", "removed", "jsonpath"})
}

// parseTemplate reads a template and perhaps = and a text behind it, which may hold braces too:
// the template is the shortest one that is right.
func (c *condition) parseTemplate(rest string) error {
	for at := 0; ; {
		next := strings.Index(rest[at:], "}=")
		if next < 0 {
			break
		}
		at += next + 1
		if t, err := output.ParseTemplate(rest[:at]); err == nil {
			c.template, c.value = t, rest[at+1:]
			return nil
		}
	}
	t, err := output.ParseTemplate(rest)
	if err != nil {
		return usage("--for jsonpath: %v", err)
	}
	c.template, c.some = t, true
	return nil
}
