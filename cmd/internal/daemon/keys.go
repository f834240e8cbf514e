package daemon

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"coordinator/cmd/internal/suggest"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
	"coordinator/handshake"

	"github.com/spf13/cobra"
)

const (
	registryFile = "workload-keys"
	// defaultExpiry is how long an enrolled key lasts unless --expires says otherwise.
	defaultExpiry = "8760h"
	// defaultLoadWait bounds the wait for a running daemon, which takes an edit within 2 s.
	defaultLoadWait = 10 * time.Second
)

// KeysOptions fit the keys subcommands to one daemon.
type KeysOptions struct {
	// State is where the daemon's --state flag is stored. It is read when a subcommand runs.
	State *string
	// Rules are those of the daemon's registry. With NeedCoordinator, add takes --coordinator.
	Rules handshake.Rules
	// Line is a command line of the program up to the subcommand, for examples.
	Line string
	// Now is the wall clock. Nil means time.Now.
	Now func() time.Time
	// LoadWait bounds the wait for a running daemon. Zero means 10 s.
	LoadWait time.Duration
}

// KeysCommand makes `keys add|list|revoke`.
func KeysCommand(o KeysOptions) *cobra.Command {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.LoadWait == 0 {
		o.LoadWait = defaultLoadWait
	}
	k := &keys{KeysOptions: o}
	c := &cobra.Command{Use: "keys", Short: "enrol, list and revoke the workload keys that may connect",
		Long: "keys edits the registry of workload keys in the state directory. An edit is in force once\n" +
			"the command returns: a daemon that runs has read it by then.",
		Example: k.example("list")}
	c.AddCommand(k.addCommand(), k.listCommand(), k.revokeCommand())
	return c
}

type keys struct{ KeysOptions }

// example is one line for each of the ends of a command line.
func (k *keys) example(ends ...string) string {
	var lines []string
	for _, end := range ends {
		lines = append(lines, "  "+k.Line+" "+end)
	}
	return strings.Join(lines, "\n")
}

func (k *keys) path() (string, error) {
	if k.State == nil || *k.State == "" {
		return "", Usage("--state is missing")
	}
	return filepath.Join(*k.State, registryFile), nil
}

func (k *keys) addCommand() *cobra.Command {
	var scope, expires, label, coordinator, output string
	ends := []string{"add --label laptop ed25519:…", "add --scope work_read --expires 720h ed25519:…"}
	if k.Rules.NeedCoordinator {
		ends = []string{"add --coordinator 5a1e… ed25519:…"}
	}
	c := &cobra.Command{
		Use:   "add ed25519:HEX",
		Short: "enrol a public key; returns once a running daemon has it",
		Long: "add enrols a public key, which the key's owner prints and sends: coordctl keygen makes one\n" +
			"for a client, and init prints those of the daemons. It may do what --scope says until\n" +
			"--expires.",
		Example: k.example(ends...),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := CheckOutput(output); err != nil {
				return err
			}
			rec, err := k.record(args[0], scope, expires, label, coordinator)
			if err != nil {
				return err
			}
			path, err := k.path()
			if err != nil {
				return err
			}
			if err := present(path); err != nil {
				return err
			}
			if err := handshake.AddRecord(path, rec, k.Rules); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if err := k.wait(c.Context(), path, "the key is enrolled"); err != nil {
				return err
			}
			return k.report(c.OutOrStdout(), output, "enrolled", rec)
		},
	}
	c.Flags().StringVar(&scope, "scope", "all", "all, or names separated by commas: "+k.Rules.Scopes.Format(k.Rules.Scopes.All()))
	fixed(c, "scope", k.scopes()...)
	c.Flags().StringVar(&expires, "expires", defaultExpiry, "a duration from now such as 720h, or a time such as 2027-01-01T00:00:00Z")
	c.Flags().StringVar(&label, "label", "", "one word to know the key by (default key- and the first digits of its id)")
	if k.Rules.NeedCoordinator {
		c.Flags().StringVar(&coordinator, "coordinator", "", "32 hex digits of the coordinator that the key may act for (required)")
	}
	AddOutput(c, &output)
	return c
}

// present refuses a directory without a registry: it is not the daemon's, or the file is
// lost, and a new one would shut every other key out.
func present(path string) error {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Exit(ExitConfig, fmt.Errorf("there is no %s; --state names the directory that init made, and a file that was lost is restored from its backup", path))
	}
	return err
}

// record builds and checks a record from the command line.
func (k *keys) record(key, scope, expires, label, coordinator string) (handshake.Record, error) {
	var r handshake.Record
	var err error
	if r.PublicKey, err = handshake.ParsePublicKey(key); err != nil {
		return r, Usage("public key: %w; it is the ed25519:… line that the key's owner prints", err)
	}
	r.KeyID = handshake.KeyIDOf(r.PublicKey)
	if r.Scope = k.Rules.Scopes.All(); scope != "all" {
		if r.Scope, err = k.Rules.Scopes.Parse(scope); err != nil {
			return r, Usage("--scope: %w%s", err, k.scopeHint(scope))
		}
	}
	if r.ExpiresAt, err = k.expiry(expires); err != nil {
		return r, err
	}
	if r.Label = label; label == "" {
		r.Label = "key-" + hex.EncodeToString(r.KeyID[:4])
	}
	if err := handshake.CheckLabel(r.Label); err != nil {
		return r, Usage("--label: %w", err)
	}
	if k.Rules.NeedCoordinator {
		if r.Coordinator, err = frames.ParseID[frames.CoordinatorID](coordinator); err != nil {
			return r, Usage("--coordinator: %w; it names the coordinator that the key may act for", err)
		}
	}
	return r, nil
}

// scopes are the words that --scope takes.
func (k *keys) scopes() []string {
	return append(strings.Split(k.Rules.Scopes.Format(k.Rules.Scopes.All()), ","), "all")
}

// completeLabels completes to the labels of keys that are not revoked.
func (k *keys) completeLabels(_ *cobra.Command, args []string, _ string) (out []cobra.Completion, _ cobra.ShellCompDirective) {
	path, err := k.path()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	records, err := handshake.ListRecords(path, k.Rules)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp // which list would say
	}
	for i := range records {
		if r := &records[i]; !r.Revoked() {
			out = append(out, cobra.CompletionWithDesc(r.Label, k.state(r)+", "+k.Rules.Scopes.Format(r.Scope)))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// scopeHint names the scopes that are near to the first word of a list that is none.
func (k *keys) scopeHint(list string) string {
	known := k.scopes()
	for word := range strings.SplitSeq(list, ",") {
		if !slices.Contains(known, word) {
			return suggest.Hint(word, known)
		}
	}
	return ""
}

// labelHint names the labels of the registry that are near to which, when no key has it.
func (k *keys) labelHint(path, which string) string {
	records, err := handshake.ListRecords(path, k.Rules)
	if err != nil {
		return ""
	}
	var labels []string
	for _, r := range records {
		labels = append(labels, r.Label)
	}
	return suggest.Hint(which, labels)
}

// expiry reads a duration from now or a time, as Unix seconds in the future.
func (k *keys) expiry(s string) (uint64, error) {
	now := k.Now()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		d, derr := time.ParseDuration(s)
		if derr != nil {
			return 0, Usage("--expires must be a duration such as 720h or a time such as 2027-01-01T00:00:00Z")
		}
		at = now.Add(d)
	}
	if at.Unix() <= now.Unix() {
		return 0, Usage("--expires lies in the past")
	}
	if at.UTC().Year() > 9999 {
		return 0, Usage("--expires lies after the year 9999")
	}
	return uint64(at.Unix()), nil
}

func (k *keys) revokeCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "revoke sha256:HEX|LABEL",
		Short: "revoke a key; returns once a running daemon has cut it off", ValidArgsFunction: k.completeLabels,
		Long: "revoke ends what a key may do, for good: its connections are cut, and what they had queued\n" +
			"is refused. It is named by its id or its label, as list shows them.",
		Example: k.example("revoke laptop"),
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := CheckOutput(output); err != nil {
				return err
			}
			path, err := k.path()
			if err != nil {
				return err
			}
			if err := present(path); err != nil {
				return err
			}
			rec, err := handshake.RevokeRecord(path, args[0], uint64(k.Now().Unix()), k.Rules)
			if errors.Is(err, handshake.ErrNoRecord) {
				if hint := k.labelHint(path, args[0]); hint != "" {
					return Usage("%s: %w%s", path, err, hint)
				}
			}
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if err := k.wait(c.Context(), path, "the key is marked revoked"); err != nil {
				return err
			}
			return k.report(c.OutOrStdout(), output, "revoked", rec)
		},
	}
	AddOutput(c, &output)
	return c
}

func (k *keys) listCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "list",
		Short: "list the enrolled keys",
		Long: "list shows every key that was enrolled, what it may do, until when, and whether it has been\n" +
			"revoked.",
		Example: k.example("list", "list -o json"),
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := CheckOutput(output); err != nil {
				return err
			}
			path, err := k.path()
			if err != nil {
				return err
			}
			if err := present(path); err != nil {
				return err
			}
			records, err := handshake.ListRecords(path, k.Rules)
			if err != nil {
				return err
			}
			return k.list(c.OutOrStdout(), Paint(c), output, records)
		},
	}
	AddOutput(c, &output)
	return c
}

// wait returns once a running daemon has loaded the file.
func (k *keys) wait(ctx context.Context, path, done string) error {
	ctx, cancel := context.WithTimeout(ctx, k.LoadWait)
	defer cancel()
	if err := handshake.WaitLoaded(ctx, path); err != nil {
		return fmt.Errorf("%s in the file, but it is not known to be in force: %w", done, err)
	}
	return nil
}

// keyJSON is a registry record as the commands print it.
type keyJSON struct {
	KeyID         string   `json:"key_id"`
	PublicKey     string   `json:"public_key"`
	Label         string   `json:"label"`
	Scope         []string `json:"scope"`
	ExpiresAt     uint64   `json:"expires_at"`
	RevokedAt     *uint64  `json:"revoked_at"`
	CoordinatorID string   `json:"coordinator_id,omitempty"`
	State         string   `json:"state"`
}

func (k *keys) json(r *handshake.Record) keyJSON {
	out := keyJSON{
		KeyID: handshake.FormatKeyID(r.KeyID), PublicKey: handshake.FormatPublicKey(r.PublicKey),
		Label: r.Label, Scope: strings.Split(k.Rules.Scopes.Format(r.Scope), ","),
		ExpiresAt: r.ExpiresAt, State: k.state(r),
	}
	if r.Revoked() {
		out.RevokedAt = &r.RevokedAt
	}
	if r.Coordinator != (frames.CoordinatorID{}) {
		out.CoordinatorID = r.Coordinator.String()
	}
	return out
}

func (k *keys) state(r *handshake.Record) string {
	switch {
	case r.Revoked():
		return "revoked"
	case uint64(k.Now().Unix()) >= r.ExpiresAt:
		return "expired"
	}
	return "active"
}

// report prints one record after an edit.
func (k *keys) report(w io.Writer, output, done string, r handshake.Record) error {
	if output == "json" {
		return PrintJSON(w, k.json(&r))
	}
	_, err := fmt.Fprintf(w, "%s %s label=%s scope=%s expires=%s\n", done, handshake.FormatKeyID(r.KeyID), r.Label,
		k.Rules.Scopes.Format(r.Scope), rfc3339(r.ExpiresAt))
	return err
}

func (k *keys) list(w io.Writer, paint term.Paint, output string, records []handshake.Record) error {
	if output == "json" {
		all := make([]keyJSON, len(records))
		for i := range records {
			all[i] = k.json(&records[i])
		}
		return PrintJSON(w, all)
	}
	t := term.NewTable(w)
	head := "LABEL\tSTATE\tSCOPE\tEXPIRES\t"
	if k.Rules.NeedCoordinator {
		head += "COORDINATOR\t"
	}
	fmt.Fprintln(t, paint.Heading(head+"KEY ID"))
	for i := range records {
		r := &records[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t", r.Label, paint.State(k.state(r)), k.Rules.Scopes.Format(r.Scope), rfc3339(r.ExpiresAt))
		if k.Rules.NeedCoordinator {
			fmt.Fprintf(t, "%s\t", r.Coordinator)
		}
		fmt.Fprintln(t, handshake.FormatKeyID(r.KeyID))
	}
	return t.Flush()
}

func rfc3339(secs uint64) string { return time.Unix(int64(secs), 0).UTC().Format(time.RFC3339) }

// AddOutput adds -o/--output, table or json.
func AddOutput(c *cobra.Command, output *string) {
	c.Flags().StringVarP(output, "output", "o", "table", "output format: table or json")
	fixed(c, "output", "table", "json")
}

// CheckOutput refuses a format that AddOutput does not name.
func CheckOutput(output string) error {
	if output != "table" && output != "json" {
		return Usage("--output must be table or json%s", suggest.Hint(output, []string{"table", "json"}))
	}
	return nil
}

// PrintJSON writes v as indented JSON and a line feed.
func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
