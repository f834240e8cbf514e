package daemon

import (
	"os"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/term"
)

// AddColor adds --color to every command below root.
func AddColor(root *cobra.Command) {
	term.AddColor(root.PersistentFlags(), new(term.Choice))
	fixed(root, "color", term.Choices()...)
}

// fixed completes a flag of c to words.
func fixed(c *cobra.Command, flag string, words ...string) {
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // the flag is there
}

// Paint is how what c prints for people is painted.
func Paint(c *cobra.Command) term.Paint {
	choice := new(term.Choice)
	if f := c.Flag("color"); f != nil {
		choice = f.Value.(*term.Choice)
	}
	return choice.Paint(c.OutOrStdout(), os.Getenv)
}
