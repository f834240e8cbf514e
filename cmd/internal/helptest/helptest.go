// Package helptest holds the help of a program to what its command lines are, for tests.
package helptest

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// Check walks a tree and gives what is wrong with its help: a command that is shown without a short and
// a long text and an example, an example that does not show its command or one below it, and a line
// of one that cannot be run. tree makes the tree anew, as one is good for one line.
//
// What cobra adds by itself, help and completion, is left alone.
func Check(tree func() *cobra.Command) (problems []error) {
	root := tree()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, err := range checkCommand(tree, root.Name(), c) {
			problems = append(problems, fmt.Errorf("%s: %w", c.CommandPath(), err))
		}
		for _, sub := range c.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				walk(sub)
			}
		}
	}
	walk(root)
	return problems
}

// widest is how long a line of an example may be.
const widest = 110

func checkCommand(tree func() *cobra.Command, program string, c *cobra.Command) (problems []error) {
	for name, text := range map[string]string{"short text": c.Short, "long text": c.Long, "example": c.Example} {
		if strings.TrimSpace(text) == "" {
			problems = append(problems, errors.New("no "+name))
		}
	}
	shown := c.Example == ""
	for line := range strings.Lines(c.Example) {
		if line = strings.TrimRight(line, "\n"); !strings.HasPrefix(line, "  ") || len(line) > widest {
			problems = append(problems, fmt.Errorf("%q is not indented by two spaces, or too long", line))
		}
	}
	for line := range strings.Lines(strings.ReplaceAll(c.Example, "\\\n", "")) {
		commands, err := split(line)
		if err != nil {
			problems = append(problems, fmt.Errorf("%q: %w", line, err))
		}
		for _, words := range commands {
			at := slices.Index(words, program)
			if at < 0 {
				continue // of another program
			}
			path, err := parse(tree(), words[at+1:])
			if err != nil {
				problems = append(problems, fmt.Errorf("%q: %w", line, err))
			}
			shown = shown || path == c.CommandPath() || strings.HasPrefix(path, c.CommandPath()+" ")
		}
	}
	if !shown {
		problems = append(problems, errors.New("its example does not show it"))
	}
	return problems
}

// parse gives the command that words would run.
func parse(root *cobra.Command, words []string) (path string, err error) {
	var disarm func(c *cobra.Command)
	disarm = func(c *cobra.Command) {
		group := c.HasSubCommands() && c.Args == nil
		c.PersistentPreRunE, c.PreRunE, c.PersistentPreRun, c.PreRun, c.Run = nil, nil, nil, nil, nil
		c.RunE = func(c *cobra.Command, args []string) error {
			if path = c.CommandPath(); group && (len(args) > 0 || c.HasParent()) {
				return fmt.Errorf("%s has no command %q", path, args)
			}
			return nil
		}
		for _, sub := range c.Commands() {
			disarm(sub)
		}
	}
	disarm(root)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetArgs(words)
	return path, root.Execute()
}

// split takes a line of shell apart into commands of words. It knows quotes, a comment, redirections,
// assignments in front of a command, and what separates commands or puts one into another.
func split(line string) (commands [][]string, err error) {
	var words []string
	var word strings.Builder
	in, quote, skip := false, rune(0), false
	endWord := func() {
		text := word.String()
		switch assigned := strings.Index(text, "="); {
		case !in:
		case skip: // where a redirection leads
			skip = false
		case len(words) == 0 && assigned > 0 && strings.ToUpper(text[:assigned]) == text[:assigned] && !strings.ContainsAny(text[:assigned], "-/:"):
		default:
			words = append(words, text)
		}
		word.Reset()
		in = false
	}
	endCommand := func() {
		endWord()
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
				continue
			}
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case unicode.IsSpace(r):
			endWord()
		case r == '#' && !in:
			endCommand()
			return commands, nil
		case r == '>' || r == '<':
			if text := word.String(); text == "2" {
				word.Reset()
				in = false
			}
			endWord()
			skip = true
		case strings.ContainsRune("|;&()", r):
			if text := word.String(); text == "$" {
				word.Reset()
				in = false
			}
			skip = false
			endCommand()
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 {
		return nil, errors.New("an open quote")
	}
	endCommand()
	return commands, nil
}
