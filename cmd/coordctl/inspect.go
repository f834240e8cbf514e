package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/durable"
)

func (a *app) pingCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ping",
		Short: "See whether the coordinator answers",
		Long:  `See whether the coordinator answers, who it is, and how long that took. Nothing is read.`,
		Example: `  coordctl ping
  coordctl ping --wait 10s`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.session(cmd.Context(), client.Options{Offered: quietCaps}, false, func(ctx context.Context, s *session) error {
				start := time.Now()
				if err := s.conn.Ping(ctx); err != nil {
					return err
				}
				took := time.Since(start)
				i := s.conn.Info()
				if a.structured() {
					return a.emit(object{{"authority_epoch", i.Epoch}, {"incarnation_id", i.IncarnationID.String()}, {"microseconds", took.Microseconds()}})
				}
				_, err := fmt.Fprintf(a.stdout, "pong from epoch %d, incarnation %v, in %v\n", i.Epoch, i.IncarnationID, took.Round(time.Microsecond))
				return err
			})
		},
	}
}

func (a *app) statusCommand() *cobra.Command {
	var counts, watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show who is in charge and what this client may do",
		Long: `Show who is in charge, how this client knows, and what its key may do.

With --watch it is shown again whenever it has changed, as after a restart of the coordinator,
without the end of the certificate, which moves by itself; a missing connection is told.`,
		Example: `  coordctl status
  coordctl status --counts -o yaml
  coordctl status --watch`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return a.statusOn(cmd.Context(), counts)
			}
			opts := client.Options{Offered: quietCaps}
			if counts {
				opts.Offered = readCaps
			}
			return a.session(cmd.Context(), opts, false, func(ctx context.Context, s *session) error { return s.status(ctx, counts) })
		},
	}
	c.Flags().BoolVar(&counts, "counts", false, "count the visible records too, which takes a snapshot")
	addWatch(c, &watch, watchHelp)
	return c
}

// statusObject is what a connection and the client's memory tell. lease says to give the end of the
// certificate in force.
func (a *app) statusObject(i client.Info, state *client.State, lease bool) object {
	history := "intact"
	if lost := state.LostHistory(); lost != nil {
		history = "HISTORY_LOST: " + lost.Error()
	}
	o := object{{"context", a.contextPath}, {"name", i.Name}}
	for _, address := range []member{{"socket", i.Socket}, {"quic", i.QUIC}} {
		if address.value != "" || a.structured() { // people are shown what there is
			o = append(o, address)
		}
	}
	o = append(o, object{{"coordinator_id", i.CoordinatorID.String()}, {"incarnation_id", i.IncarnationID.String()},
		{"authority_epoch", i.Epoch}, {"activation_sequence", i.Activation}}...)
	if lease {
		o = append(o, member{"certificate_expires_at", a.time(i.LeaseExpires)})
	}
	return append(o, object{
		{"key_id", i.KeyID.String()}, {"effective_scope", a.words(scopeNames(i.Scope))}, {"grant_expires_at", a.time(i.GrantExpires)},
		{"operation_result_retention_secs", i.RetentionSecs},
		{"history", history}, {"unresolved_operations", len(state.Unresolved())},
	}...)
}

// recordCounts are the numbers of records by family.
func recordCounts(of func(frames.ObjectKind) uint64) member {
	var n object
	for _, k := range kindNames {
		if k.kind != frames.KindAdmin {
			n = append(n, member{k.names[0], of(k.kind)})
		}
	}
	return member{"records", n}
}

func (s *session) status(ctx context.Context, counts bool) error {
	o := s.a.statusObject(s.conn.Info(), s.conn.State(), true)
	if counts {
		byKind := map[frames.ObjectKind]uint64{}
		err := s.records(ctx, func(frames.ObjectKind) bool { return true }, func(r frames.SnapshotRecord) error {
			byKind[r.Kind]++
			return nil
		})
		if err != nil {
			return err
		}
		o = append(o, recordCounts(func(k frames.ObjectKind) uint64 { return byKind[k] }))
	}
	return s.a.print(o)
}

// time is a wire time: a number in JSON, a date for people.
func (a *app) time(unix uint64) any {
	if a.structured() {
		return unix
	}
	return when(unix)
}

func (a *app) words(w []string) any {
	if a.structured() {
		return w
	}
	return strings.Join(w, ",")
}

func (a *app) opCommand() *cobra.Command {
	var watch bool
	get := &cobra.Command{
		Use:   "get ID",
		Short: "Find out what became of an operation",
		Long: `Find out what became of an operation. The exit code is 0 for an operation that is
PENDING, SUCCEEDED or TOMBSTONED, 3 for one that was REJECTED, and 6 for one whose outcome
cannot be known (INDETERMINATE) or that this authority does not know (UNKNOWN). With --watch
that is the exit code for its end, which is waited for.`,
		Example: "  coordctl op get 77f01b2c\n  coordctl op get 77f01b2c --watch -o json",
		Args:    exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix, err := checkPrefix(args[0])
			if err != nil {
				return err
			}
			if watch {
				return a.opOn(cmd.Context(), prefix)
			}
			return a.opGet(cmd.Context(), prefix)
		},
	}
	addWatch(get, &watch, "go on, with what has changed, until its end")
	list := &cobra.Command{
		Use:   "list",
		Short: "List the operations that this client began and does not know the end of",
		Long: `List the operations that this client began and does not know the end of: their answers were lost. Each
comes with the command line that finds out.`,
		Example: `  coordctl op list`,
		Args:    exactArgs(),
		RunE:    func(*cobra.Command, []string) error { return a.opList() },
	}
	forget := &cobra.Command{
		Use:     "forget ID",
		Short:   "Take an operation off that list",
		Long:    `Take an operation off the list of those whose end this client does not know. What it did stays done.`,
		Example: `  coordctl op forget 5d0f3a`,
		Args:    exactArgs("ID"),
		RunE: func(_ *cobra.Command, args []string) error {
			prefix, err := checkPrefix(args[0])
			if err != nil {
				return err
			}
			return a.opForget(prefix)
		},
	}
	return group("op", "Look at operations", `Look at operations: the commands that were sent, each under an id of its own, and what became of them.`, get, list, forget)
}

func (a *app) opGet(ctx context.Context, prefix string) error {
	caps := quietCaps
	state, err := a.state()
	if err != nil {
		return err
	}
	if len(prefix) < 32 {
		if u, ok, err := unresolved(state, prefix); err != nil {
			return err
		} else if ok {
			prefix = u.OperationID.String()
		} else {
			caps = readCaps // the snapshot must show operations
		}
	}
	return a.session(ctx, client.Options{Offered: caps}, false, func(ctx context.Context, s *session) error {
		id, err := s.resolve(ctx, frames.KindOperation, prefix)
		if err != nil {
			return err
		}
		op := frames.OperationID(id)
		result, err := s.conn.Lookup(ctx, op)
		if err != nil {
			return err
		}
		return a.showResult(op, result, nil)
	})
}

// state is the context's memory, without a connection.
func (a *app) state() (*client.State, error) {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return nil, err
	}
	return client.OpenState(c)
}

// unresolved finds the one unresolved operation whose id begins with prefix.
func unresolved(state *client.State, prefix string) (found client.Unresolved, ok bool, err error) {
	for _, u := range state.Unresolved() {
		if !strings.HasPrefix(u.OperationID.String(), prefix) {
			continue
		}
		if ok {
			return found, false, usage("%s begins the ids of several operations; give more digits", prefix)
		}
		found, ok = u, true
	}
	return found, ok, nil
}

func (a *app) opList() error {
	state, err := a.state()
	if err != nil {
		return err
	}
	list := state.Unresolved()
	if a.structured() {
		out := []object{}
		for _, u := range list {
			out = append(out, object{{"operation_id", u.OperationID.String()}, {"indeterminate", u.Indeterminate}})
		}
		return a.emitList(out)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.stderr, "no unresolved operations")
		return nil
	}
	heads, rows := []string{"OPERATION", "STATE", "NEXT"}, [][]string(nil)
	if a.output.Wide() {
		heads = append(heads, "DIGEST")
	}
	for _, u := range list {
		word := "may have run"
		if u.Indeterminate {
			word = "indeterminate: its history was lost"
		}
		cells := []string{u.OperationID.String(), word, a.line("op get " + u.OperationID.String())}
		if a.output.Wide() {
			cells = append(cells, hex.EncodeToString(u.CommandDigest[:]))
		}
		rows = append(rows, cells)
	}
	return a.writeTable(heads, rows)
}

func (a *app) opForget(prefix string) error {
	state, err := a.state()
	if err != nil {
		return err
	}
	u, ok, err := unresolved(state, prefix)
	if err != nil {
		return err
	}
	if !ok {
		return usage("%s is not among the unresolved operations; see: %s", prefix, a.line("op list"))
	}
	return state.Forget(u.OperationID)
}

func (a *app) keygenCommand() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "keygen --out FILE",
		Short: "Make a client key and print its public half",
		Long: `Make a client key and print its public half, which is enrolled with: coordinatord keys add. The file
holds the secret half and is readable by you alone; one that exists is not replaced.`,
		Example: `  coordctl keygen --out ~/.config/coordinator/ana.ed25519`,
		Args:    exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			if out == "" {
				return usage("keygen needs --out FILE: where the secret key goes, readable by you alone")
			}
			key, err := newKey(out)
			if errors.Is(err, fs.ErrExist) {
				return usage("%s exists and is not replaced; name another file", out)
			}
			if err != nil {
				return err
			}
			public := handshake.FormatPublicKey(key.Public())
			if a.structured() {
				return a.emit(object{{"public_key", public}, {"key_id", handshake.KeyIDOf(key.Public()).String()}, {"key_file", out}})
			}
			_, err = fmt.Fprintln(a.stdout, public)
			return err
		},
	}
	c.Flags().StringVar(&out, "out", "", "where the secret key goes: a `FILE` that does not exist yet")
	return c
}

// newKey makes a key file, and its directory if that is missing.
func newKey(path string) (*handshake.Key, error) {
	dir := filepath.Dir(path)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := durable.MkdirPrivate(dir); err != nil {
			return nil, err
		}
	}
	return handshake.CreateClientKey(path, rand.Reader)
}
