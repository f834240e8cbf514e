package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/internal/durable"
	"coordinator/server/store"
)

// compactReport is what compact prints with -o json.
type compactReport struct {
	StateDir string `json:"state"`
	Before   int64  `json:"bytes_before"`
	After    int64  `json:"bytes_after"`
	Values   uint64 `json:"values"`
	SHA256   string `json:"sha256"`
}

func compactCommand(state *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "compact",
		Short: "give back the disk that removed records took in a stopped coordinator's state.db",
		Long: "compact writes state.db anew without its free pages. The new file is checked and\n" +
			"compared with the old one, value by value, before it takes its place in one step;\n" +
			"an interruption at any point leaves a whole store. It refuses while a coordinator\n" +
			"runs on the store, and where the disk has no room for both files.",
		Example: "  coordinatord compact --state /var/lib/coordinator",
		RunE: func(c *cobra.Command, _ []string) error {
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			told := c.OutOrStdout()
			if output == "json" {
				told = c.ErrOrStderr()
			}
			report, err := compact(c.Context(), dir, newTeller(c, output, told))
			var refused *store.IOError
			if errors.As(err, &refused) {
				return err // nothing was lost, which is what the code of a failed write says
			}
			if err != nil {
				return coded(err)
			}
			return report.print(c.OutOrStdout(), output)
		},
	}
	daemon.AddOutput(c, &output)
	return c
}

// compact takes the store lock and compacts. Pages are checked in child processes,
// whose death by a damaged page is then still a report.
func compact(ctx context.Context, dir string, tell *teller) (*compactReport, error) {
	dir, lock, err := lockOffline(dir)
	if err != nil {
		return nil, err
	}
	defer lock.Release() //nolint:errcheck // the process is ending
	defer tell.bar.End()
	done, err := store.Compact(dir, store.Options{
		FreeBytes: func() uint64 { return durable.FreeBytes(dir) },
		PageCheck: func(path string) error { return pageCheck(ctx, path, tell) },
		Progress:  tell.line,
		Advance:   tell.advance,
	})
	if errors.Is(err, context.Canceled) { // in the middle of a page check, and no damage
		return nil, daemon.Exit(daemon.ExitFailure, fmt.Errorf("state.db is as it was: %w", context.Cause(ctx)))
	}
	if err != nil {
		return nil, err
	}
	return &compactReport{StateDir: dir, Before: done.Before, After: done.After, Values: done.Values, SHA256: hex.EncodeToString(done.SHA256[:])}, nil
}

// print writes the report for people or for programs.
func (r *compactReport) print(w io.Writer, output string) error {
	if output == "json" {
		return daemon.PrintJSON(w, r)
	}
	_, err := fmt.Fprintf(w, "state.db has %d bytes, %d before; its %d values have sha256 %s\n", r.After, r.Before, r.Values, r.SHA256)
	return err
}
