package helptest

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestSplit(t *testing.T) {
	for line, want := range map[string][][]string{
		`  thing do 'a b' --x="c d"`:        {{"thing", "do", "a b", "--x=c d"}},
		`  A=b thing do 2> err > out`:       {{"thing", "do"}},
		`  thing a | other b && thing c;`:   {{"thing", "a"}, {"other", "b"}, {"thing", "c"}},
		`  source <(thing completion bash)`: {{"source"}, {"thing", "completion", "bash"}},
		`  thing use $(thing list) end`:     {{"thing", "use"}, {"thing", "list"}, {"end"}},
		`  thing do < in # why`:             {{"thing", "do"}},
		`  # only why`:                      nil,
	} {
		have, err := split(line)
		require.NoError(t, err, line)
		require.Equal(t, want, have, line)
	}
	_, err := split("  thing 'open")
	require.Error(t, err)
}

func TestCheck(t *testing.T) {
	tree := func(change func(root, do *cobra.Command)) func() *cobra.Command {
		return func() *cobra.Command {
			root := &cobra.Command{Use: "thing", Short: "s", Long: "l", Example: "  thing do it"}
			do := &cobra.Command{Use: "do WHAT", Short: "s", Long: "l", Example: "  thing do it --fast 2 | less", Args: cobra.ExactArgs(1),
				RunE: func(*cobra.Command, []string) error { panic("it is not to be run") }}
			do.Flags().Int("fast", 0, "")
			hidden := &cobra.Command{Use: "secret", Hidden: true, RunE: do.RunE}
			root.AddCommand(do, hidden)
			if change != nil {
				change(root, do)
			}
			return root
		}
	}
	require.Empty(t, Check(tree(nil)))
	require.Empty(t, Check(tree(func(_, do *cobra.Command) { do.Example = "  thing do \\\n    it" })))
	for name, change := range map[string]func(root, do *cobra.Command){
		"no short text":                 func(_, do *cobra.Command) { do.Short = "" },
		"no long text":                  func(_, do *cobra.Command) { do.Long = " " },
		"no example":                    func(_, do *cobra.Command) { do.Example = "" },
		"an example of another":         func(_, do *cobra.Command) { do.Example = "  ls" },
		"a flag that is not there":      func(_, do *cobra.Command) { do.Example = "  thing do it --slow" },
		"a value of another kind":       func(_, do *cobra.Command) { do.Example = "  thing do it --fast very" },
		"too few arguments":             func(_, do *cobra.Command) { do.Example = "  thing do" },
		"a command that is not there":   func(root, _ *cobra.Command) { root.Example = "  thing undo it" },
		"not indented":                  func(_, do *cobra.Command) { do.Example = "thing do it" },
		"a quote that does not end":     func(_, do *cobra.Command) { do.Example = "  thing do 'it" },
		"the second line cannot be run": func(_, do *cobra.Command) { do.Example = "  thing do it\n  thing do it it" },
	} {
		require.NotEmpty(t, Check(tree(change)), name)
	}
}
