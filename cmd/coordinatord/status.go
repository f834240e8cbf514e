package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/cmd/internal/term"
	"coordinator/server"
	"coordinator/server/outbox"
)

// statusWait bounds how long a running coordinator may take to say how it is.
const statusWait = 10 * time.Second

func statusCommand(state *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "status",
		Short: "show a running coordinator's authority, connections and use of its quotas",
		Long: "status asks the coordinator that runs on the state directory. It needs no key and no\n" +
			"place among the clients' connections: whoever may read the directory may ask.",
		Example: "  coordinatord status --state /var/lib/coordinator\n  coordinatord status --state /var/lib/coordinator -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			st, err := readStatus(c.Context(), dir)
			if err != nil {
				return err
			}
			if output == "json" {
				return daemon.PrintJSON(c.OutOrStdout(), st)
			}
			return printStatus(c.OutOrStdout(), daemon.Paint(c), st, time.Now())
		},
	}
	daemon.AddOutput(c, &output)
	return c
}

func readStatus(ctx context.Context, dir string) (*server.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	st, err := server.ReadStatus(ctx, filepath.Join(dir, server.StatusFile))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("no coordinator runs on %s", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("status of %s: %w", dir, err)
	}
	return st, nil
}

// linkText is one link in a line.
func linkText(o outbox.LinkState) string {
	name := inert(o.Name)
	switch {
	case o.Up:
		return name + " is up"
	case o.Why == "":
		return name + " is down: it is being dialled"
	}
	return name + " is down: " + inert(o.Why)
}

// inert quotes what is not plain text: an owner may have chosen the words.
func inert(s string) string {
	if quoted := strconv.QuoteToGraphic(s); quoted != `"`+s+`"` {
		return quoted
	}
	return s
}

// printStatus writes a status for people.
func printStatus(w io.Writer, paint term.Paint, st *server.Status, now time.Time) error {
	left := time.Unix(int64(st.LeaseExpiresAt), 0).Sub(now).Round(time.Second)
	fmt.Fprintf(w, "coordinator  %s\n", st.CoordinatorID)
	fmt.Fprintf(w, "authority    epoch %d, activation %d, lease ends in %v\n", st.Epoch, st.Activation, left)
	fmt.Fprintf(w, "events       up to %d\n", st.Head)
	fmt.Fprintf(w, "connections  %d, of which %d are not authenticated; %d refused since the start; the Unix socket takes %d\n",
		st.Connections, st.Unauthenticated, st.Refused, st.MaxLocal)
	for _, o := range st.Owners {
		text := linkText(o)
		if !o.Up {
			text = paint.Warning(text)
		}
		fmt.Fprintf(w, "owner        %s\n", text)
	}
	fmt.Fprintln(w)
	t := term.NewTable(w)
	fmt.Fprintln(t, paint.Heading("HOLDER\tRESOURCE\tHELD\tLIMIT"))
	rows := func(holder string, uses []server.QuotaUse) {
		for _, u := range uses {
			held := strconv.FormatUint(u.Held, 10)
			if u.Limit > 0 && u.Held >= u.Limit {
				held = paint.Warning(held)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", holder, u.Resource, held, u.Limit)
		}
	}
	rows("server", st.Server)
	for _, p := range st.Principals {
		name := p.Label
		if name == "" {
			name = p.KeyID
		}
		rows(name, p.Uses)
	}
	return t.Flush()
}
