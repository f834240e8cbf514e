package main

import (
	"errors"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/output"
	"coordinator/cmd/internal/suggest"
	"coordinator/cmd/internal/term"
)

// unknownCommand refuses a word where c's subcommands stand, and names those that are near.
func unknownCommand(c *cobra.Command, word string) error {
	what := "there is no command"
	if c.HasParent() {
		what = c.CommandPath() + " has no subcommand"
	}
	return usage("%s %q%s", what, word, hintOr(word, suggest.Commands(c), "see "+c.CommandPath()+" --help"))
}

// hintOr names the words that are near to one that is not known, or says where to look.
func hintOr(word string, known []string, look string) string {
	if hint := suggest.Hint(word, known); hint != "" {
		return hint
	}
	return "; " + look
}

// flagError is a usage error about a flag, or about the command in front of it where that is what is
// wrong: in the words of the value's own parser where it has some.
func flagError(c *cobra.Command, err error) error {
	var format *output.FormatError
	var template *output.TemplateError
	switch {
	case errors.As(err, &format):
		return usage("%v%s", format, suggest.Hint(format.Given, output.Names()))
	case errors.As(err, &template):
		return usage("%v", template)
	}
	text, command := suggest.Flag(c, err)
	if command != "" && !slices.Contains(suggest.Commands(c), command) {
		return unknownCommand(c, command)
	}
	return usage("%s", text)
}

// paint is how what goes to w is painted. Nothing is beside what a program reads.
func (a *app) paint(w io.Writer) term.Paint {
	if a.structured() {
		return term.Paint{}
	}
	return a.color.Paint(w, os.Getenv)
}

// contextHint names the contexts that are near to what --context says, when that is a name.
func contextHint(word string) string {
	list, err := readContexts()
	if err != nil || !contextName.MatchString(word) {
		return ""
	}
	return suggest.Hint(word, list.names())
}

// findOwner is the context's owner of that name, or its only one.
func findOwner(c *client.Context, name string) (client.Owner, error) {
	o, err := c.FindOwner(name)
	if err == nil || name == "" {
		return o, err
	}
	var names []string
	for _, o := range c.Owners {
		names = append(names, o.Name)
	}
	if hint := suggest.Hint(name, names); hint != "" {
		return o, usage("%v%s", err, hint)
	}
	return o, err
}
