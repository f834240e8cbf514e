package suggest

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	kinds := []string{"objective", "run", "work_session", "binding", "signal", "operation"}
	for _, tt := range []struct {
		name, word string
		known      []string
		want       []string
	}{
		{"a letter left out", "objectve", kinds, []string{"objective"}},
		{"two letters swapped", "sginal", kinds, []string{"signal"}},
		{"another case and another dash", "Work-Sesion", kinds, []string{"work_session"}},
		{"a beginning", "obj", kinds, []string{"objective"}},
		{"a beginning too short to mean anything", "op", kinds, nil},
		{"a state in capitals", "Complted", []string{"ACTIVE", "COMPLETED", "CANCELLED"}, []string{"COMPLETED"}},
		{"the nearest first", "stats", []string{"starts", "status", "state"}, []string{"starts", "status", "state"}},
		{"no more than three", "aaaaa", []string{"aaaab", "aaaac", "aaaad", "aaaae"}, []string{"aaaab", "aaaac", "aaaad"}},
		{"nothing like it", "kubernetes", kinds, nil},
		{"two letters are near to all of their like", "ls", []string{"rm", "cp", "lz"}, nil},
		{"the word itself", "run", []string{"run", "runs"}, []string{"runs"}},
		{"nothing", "", kinds, nil},
		{"a word twice", "rum", []string{"run", "run"}, []string{"run"}},
	} {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, Nearest(tt.word, tt.known)) })
	}
}

func TestHint(t *testing.T) {
	require.Equal(t, "; did you mean run?", Hint("rnu", []string{"run", "signal"}))
	require.Equal(t, "; did you mean run or rut?", Hint("ruz", []string{"run", "ran", "rut"}))
	require.Equal(t, "; did you mean run, rut or rum?", Hint("ruz", []string{"run", "rut", "rum", "signal"}))
	require.Empty(t, Hint("zebra", []string{"run"}))
	require.Empty(t, Hint(strings.Repeat("x", 1<<20), []string{strings.Repeat("x", 1<<20) + "y"}), "what nobody types is not compared")
}

// TestDistanceIsThatOfTheSlips holds the distance against the slips that were made.
func TestDistanceIsThatOfTheSlips(t *testing.T) {
	letters := rapid.SliceOfN(rapid.RuneFrom([]rune("abcdé")), 0, 12)
	rapid.Check(t, func(t *rapid.T) {
		a := letters.Draw(t, "a")
		b := append([]rune(nil), a...)
		made := 0
		if n := len(b); n > 1 && rapid.Bool().Draw(t, "swap") {
			at := rapid.IntRange(0, n-2).Draw(t, "at")
			b[at], b[at+1] = b[at+1], b[at]
			made++
		} else if rapid.Bool().Draw(t, "put in") {
			at := rapid.IntRange(0, n).Draw(t, "where")
			b = append(b[:at:at], append([]rune{'x'}, b[at:]...)...)
			made++
		}
		if d := distance(a, b); d > made || d == 0 && string(a) != string(b) {
			t.Fatalf("distance(%q, %q) = %d, made %d", string(a), string(b), d, made)
		}
		if distance(a, b) != distance(b, a) {
			t.Fatalf("distance(%q, %q) is not that of the reverse", string(a), string(b))
		}
	})
}

func TestFlag(t *testing.T) {
	for _, tt := range []struct {
		name          string
		args          []string
		text, command string
	}{
		{"a slip", []string{"do", "--timout", "3s"}, "unknown flag: --timout; did you mean --timeout?", ""},
		{"with its value", []string{"do", "--timout=3s"}, "unknown flag: --timout; did you mean --timeout?", ""},
		{"of the root", []string{"do", "--otput"}, "unknown flag: --otput; did you mean --output?", ""},
		{"a long name behind one dash", []string{"do", "-timeout"}, "unknown shorthand flag: 't' in -timeout; did you mean --timeout?", ""},
		{"what is hidden is not told", []string{"do", "--secre"}, "unknown flag: --secre", ""},
		{"behind a command that is none", []string{"dp", "--timeout", "3s"}, "unknown flag: --timeout", "dp"},
		{"another fault", []string{"do", "--timeout", "soon"}, `invalid argument "soon" for "--timeout" flag: time: invalid duration "soon"`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := &cobra.Command{Use: "thing", SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
				RunE: func(*cobra.Command, []string) error { return nil }}
			do := &cobra.Command{Use: "do", RunE: root.RunE}
			root.AddCommand(do)
			root.PersistentFlags().String("output", "", "")
			do.Flags().Duration("timeout", 0, "")
			do.Flags().Bool("secret", false, "")
			require.NoError(t, do.Flags().MarkHidden("secret"))
			var text, command string
			root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { text, command = Flag(c, err); return err })
			root.SetArgs(tt.args)
			require.Error(t, root.Execute())
			require.Equal(t, tt.text, text)
			require.Equal(t, tt.command, command)
			require.Contains(t, Commands(root), "do")
		})
	}
}
