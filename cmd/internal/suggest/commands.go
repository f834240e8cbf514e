package suggest

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Commands are the names and aliases of what lies directly below c, as far as it is shown.
func Commands(c *cobra.Command) (names []string) {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() && sub.Name() != "help" {
			continue
		}
		names = append(append(names, sub.Name()), sub.Aliases...)
	}
	return names
}

// Flag is what to say about the flag of err, which c does not have, and the words that are near. Where
// words that are no command came before it, it may be a flag of the command that was meant: then
// they are what is wrong, and command is the first of them.
func Flag(c *cobra.Command, err error) (text, command string) {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err.Error(), ""
	}
	if c.HasAvailableSubCommands() && c.Flags().NArg() > 0 {
		return err.Error(), c.Flags().Arg(0)
	}
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	near := Nearest(unknown.GetSpecifiedName(), known)
	if cluster, _, _ := strings.Cut(unknown.GetSpecifiedShortnames(), "="); cluster != "" { // a long name behind one dash, perhaps
		near = Nearest(cluster, known)
		if slices.Contains(known, cluster) {
			near = []string{cluster}
		}
	}
	for i := range near {
		near[i] = "--" + near[i]
	}
	return err.Error() + ask(near), ""
}
