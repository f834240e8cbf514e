package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/clock"
	"coordinator/internal/durable"
	"coordinator/internal/shell"
	"coordinator/server/authority"
	"coordinator/server/backup"
	"coordinator/server/store"
	"coordinator/witness"
)

// askTime bounds how long the witness may take to say whether the old lease lives.
const askTime = 10 * time.Second

// restoreReport is what restore prints with -o json.
type restoreReport struct {
	StateDir string `json:"state"`
	Backup   string `json:"backup"`
	Socket   string `json:"socket"`
	backup.Cut
	// NewIncarnation is that of the store from here on.
	NewIncarnation string `json:"new_store_incarnation"`
	LinkPublicKey  string `json:"link_public_key"`
	OldLinkKey     string `json:"old_link_key,omitempty"`
	// Witness says how it is known that no lease lives.
	Witness string `json:"witness"`
	Keys    int    `json:"active_keys"`
	// Enrol are commands that let the restored coordinator act, and Revoke those that keep
	// what is left of the old one from acting ever again.
	Enrol  []string `json:"enrol"`
	Revoke []string `json:"revoke"`
}

func restoreCommand(state *string) *cobra.Command {
	var output, witnessKey string
	c := &cobra.Command{
		Use:   "restore BACKUP",
		Short: "make a new state directory from a backup, and say what it takes to serve it",
		Long: "restore checks the whole backup, and then makes the directory that --state names,\n" +
			"which must be new or empty. It refuses while the lease of the old coordinator may\n" +
			"live: it asks the witness with --witness-key or with the old directory's link.ed25519\n" +
			"where that is still there; without either it waits out the longest lease that the\n" +
			"backup can have left behind.\n\n" +
			"What came after the backup's event cut is gone: clients report lost history, and\n" +
			"process owners answer for work that they did since, and start none of it again.\n" +
			"The new directory has a new link key, which must be enrolled with the lines that\n" +
			"restore prints; revoke the old one with the others.",
		Example: "  coordinatord restore /backup/coordinator-monday --state /var/lib/coordinator",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			dir, err := stateDir(state)
			if err != nil {
				return err
			}
			r := &restorer{
				ctx: c.Context(), tell: newTeller(c, output, c.ErrOrStderr()), witnessKey: witnessKey,
			}
			report, err := r.restore(args[0], dir)
			r.tell.bar.End()
			if err != nil {
				return coded(err)
			}
			return report.print(c.OutOrStdout(), output)
		},
	}
	c.Flags().StringVar(&witnessKey, "witness-key", "", "a key file with which the witness may be asked (scope status)")
	daemon.AddOutput(c, &output)
	return c
}

// A restorer is one restore under way.
type restorer struct {
	ctx        context.Context
	tell       *teller
	witnessKey string
}

func (r *restorer) restore(from, dir string) (*restoreReport, error) {
	from, err := filepath.Abs(from)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if from, err = filepath.EvalSymlinks(from); err != nil { // one backup, whatever a link says meanwhile
		return nil, err
	}
	m, err := backup.Check(r.ctx, from, r.tell.bar.Of("checking the backup"))
	r.tell.bar.End()
	if err != nil {
		return nil, err
	}
	cfg, err := configOf(m, from, dir)
	if err != nil {
		return nil, err
	}
	asked, err := r.leaseOver(m, cfg)
	if err != nil {
		return nil, err
	}
	report := &restoreReport{StateDir: dir, Backup: from, Socket: cfg.path(socketFile), Cut: m.Cut, OldLinkKey: m.LinkKey, Witness: asked}
	return report, r.make(m, cfg, report)
}

// configOf is the backup's coordinator.toml as it will stand in dir.
func configOf(m *backup.Manifest, from, dir string) (*config, error) {
	file := filepath.Join(from, backup.ConfigFile)
	data, err := os.ReadFile(file) // of the size and digest in the manifest
	if err != nil {
		return nil, err
	}
	cfg, err := parseConfig(dir, file, data)
	if err != nil {
		return nil, err
	}
	if cfg.CoordinatorID.String() != m.CoordinatorID {
		return nil, &backup.DamageError{Path: file, Problem: "is of another coordinator than the manifest"}
	}
	return cfg, nil
}

// make makes the directory and completes the report.
func (r *restorer) make(m *backup.Manifest, cfg *config, report *restoreReport) error {
	to, err := backup.NewRestored(cfg.StateDir, report.Backup, m, r.tell.line)
	if err != nil {
		return err
	}
	err = to.Fill(r.ctx, r.tell.bar.Of("restoring"))
	if err != nil {
		return err
	}
	// As the coordinator will read it, with the rows that are in it.
	if err := agrees(r.ctx, m, cfg.StateDir, r.tell.quietly()); err != nil {
		return to.Abandon(err)
	}
	incarnation, err := frames.NewID[frames.IncarnationID](rand.Reader)
	if err == nil {
		err = store.Renew(cfg.StateDir, incarnation)
	}
	if err != nil {
		return to.Abandon(err)
	}
	key, err := handshake.CreateKey(cfg.path(linkKey), rand.Reader)
	if err != nil {
		return to.Abandon(err)
	}
	if report.Keys, err = activeKeys(cfg.path(registryFile)); err != nil {
		return to.Abandon(err)
	}
	report.NewIncarnation, report.LinkPublicKey = incarnation.String(), handshake.FormatPublicKey(key.Public())
	report.lines(cfg)
	var text bytes.Buffer
	if err := report.print(&text, "text"); err != nil {
		return to.Abandon(err)
	}
	if err := durable.Replace(cfg.path(backup.ReportFile), text.Bytes(), durable.PrivateFile); err != nil {
		return to.Abandon(err)
	}
	return to.Finish()
}

// activeKeys counts the records that let somebody in.
func activeKeys(path string) (n int, err error) {
	registry, err := handshake.OpenRegistry(path, handshake.RegistryOptions{Clock: clock.System(), KnownScopes: handshake.EndpointScopes()})
	if err != nil {
		return 0, err
	}
	now := clock.System().Now().Unix()
	for _, rec := range registry.Snapshot().Records {
		if !rec.Revoked() && rec.ExpiresAt > now {
			n++
		}
	}
	return n, nil
}

// lines are the commands at the witness and the owners.
func (r *restoreReport) lines(cfg *config) {
	old := keyID(r.OldLinkKey)
	add := func(program, socket, quic, scope string) {
		at := filepath.Dir(socket)
		if quic != "" {
			at = "DIR_AT_" + quic
		}
		line := program + " keys --state " + shell.Quote(at)
		r.Enrol = append(r.Enrol, fmt.Sprintf("%s add%s --coordinator %s %s", line, scope, cfg.CoordinatorID, r.LinkPublicKey))
		if old != "" {
			r.Revoke = append(r.Revoke, line+" revoke "+old)
		}
	}
	add("witnessd", cfg.WitnessSocket, cfg.WitnessQUIC, "")
	for _, o := range cfg.Owners {
		add("ownerd", o.Socket, o.QUIC, " --scope effects,facts")
	}
}

// print writes the report for people or for programs. The commands are the lines that begin
// with two spaces.
func (r *restoreReport) print(w io.Writer, output string) error {
	if output == "json" {
		return daemon.PrintJSON(w, r)
	}
	fmt.Fprintf(w, `coordinator %s is restored in %s
It goes back to event %d, commit %d, under epoch %d, activation %d: to %s, %v ago.
What came later is lost; every client that was shown more of it will say so.
%s

`, r.CoordinatorID, r.StateDir, r.EventCut, r.Commit, r.Epoch, r.Activation, r.Time.Format(time.RFC3339),
		time.Since(r.Time).Round(time.Second), r.Witness)
	fmt.Fprintln(w, "Enrol its new link key:")
	for _, l := range r.Enrol {
		fmt.Fprintln(w, "  "+l)
	}
	if len(r.Revoke) > 0 {
		fmt.Fprintln(w, "Revoke the old one, so that nothing left of the old coordinator acts again:")
		for _, l := range r.Revoke {
			fmt.Fprintln(w, "  "+l)
		}
	}
	_, err := fmt.Fprintf(w, "%d client keys may connect, as of the backup: revoke those again that you revoked since:\n  coordinatord keys --state %s list\n"+
		"Then serve, at %s:\n  coordinatord serve --state %s\nAll this is kept in %s.\n",
		r.Keys, shell.Quote(r.StateDir), r.Socket, shell.Quote(r.StateDir), filepath.Join(r.StateDir, backup.ReportFile))
	return err
}

// A leaseLivesError refuses a restore beside a coordinator that may still act.
type leaseLivesError struct{ problem string }

// Error says what to do.
func (e *leaseLivesError) Error() string {
	return e.problem + "; nothing was made"
}

// leaseOver refuses while the lease of the old coordinator lives, and says how it knows.
//
// It keeps an operator from a mistake. What keeps two coordinators from acting at once is
// the witness, which grants the restored one nothing while the old lease lives.
func (r *restorer) leaseOver(m *backup.Manifest, cfg *config) (string, error) {
	if err := notRunning(m.Source, cfg.CoordinatorID); err != nil {
		return "", err
	}
	key, path, err := r.askingKey(m)
	if err != nil {
		return "", err
	}
	if key != nil {
		st, err := ask(r.ctx, cfg, key)
		if err == nil {
			return answered(m, st)
		}
		if r.witnessKey != "" {
			return "", daemon.Exit(daemon.ExitWitness, fmt.Errorf("the witness cannot be asked with %s: %w", path, err))
		}
		r.tell.line(fmt.Sprintf("the witness cannot be asked with %s: %v", path, err))
	}
	if err := waitedOut(m, time.Now()); err != nil {
		return "", err
	}
	return "The witness was not asked. No lease that the backup knows of lives; where the old coordinator still runs, this one will get none.", nil
}

// waitedOut judges by the clock alone: whatever lease there was at the cut, or was asked for
// then, is over.
func waitedOut(m *backup.Manifest, now time.Time) error {
	last := m.Time
	if m.LeaseExpiresAt > 0 && m.LeaseExpiresAt <= math.MaxInt64 {
		if end := time.Unix(int64(m.LeaseExpiresAt), 0); end.After(last) {
			last = end
		}
	}
	if end := last.Add(authority.MaxLeaseSeconds * time.Second); now.Before(end) {
		return daemon.Exit(daemon.ExitLeaseHeld, &leaseLivesError{fmt.Sprintf(
			"the witness was not asked, and a lease of the old coordinator may live until %s: wait until then, "+
				"or name a key with which the witness may be asked (--witness-key)", end.UTC().Format(time.RFC3339))})
	}
	return nil
}

// notRunning refuses while the coordinator id runs on the backup's source, if that is here.
func notRunning(source string, id frames.CoordinatorID) error {
	if _, err := os.Lstat(filepath.Join(source, lockFile)); err != nil {
		return nil //nolint:nilerr // it is not here
	}
	if there, err := loadConfig(source); err == nil && there.CoordinatorID != id {
		return nil // this is another host, where another one has the same place
	}
	lock, err := authority.LockStore(source)
	var held *durable.HeldError
	if errors.As(err, &held) {
		return daemon.Exit(daemon.ExitHeld, &leaseLivesError{fmt.Sprintf("the coordinator of this backup runs on %s: %v", source, held)})
	}
	if err != nil {
		return nil //nolint:nilerr // another user's, or not a directory: the lease tells
	}
	return lock.Release()
}

// askingKey is the key with which the witness can be asked, or nil.
func (r *restorer) askingKey(m *backup.Manifest) (*handshake.Key, string, error) {
	path := r.witnessKey
	if path == "" {
		path = filepath.Join(m.Source, linkKey)
	}
	key, err := handshake.LoadKey(path)
	switch {
	case err == nil && (r.witnessKey != "" || handshake.FormatPublicKey(key.Public()) == m.LinkKey):
		return key, path, nil
	case err == nil, r.witnessKey == "" && errors.Is(err, fs.ErrNotExist):
		return nil, "", nil
	case r.witnessKey == "":
		r.tell.line(fmt.Sprintf("the witness is not asked with the old link key: %v", err))
		return nil, "", nil
	}
	return nil, "", daemon.Exit(daemon.ExitConfig, err)
}

func ask(ctx context.Context, cfg *config, key *handshake.Key) (*witness.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	client, err := witnessClient(cfg, key)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // it was only asked
	st, err := client.Status(ctx)
	return &st, err
}

// answered judges what the witness says.
func answered(m *backup.Manifest, st *witness.Status) (string, error) {
	switch {
	case st.LeaseRemaining > 0:
		return "", daemon.Exit(daemon.ExitLeaseHeld, &leaseLivesError{fmt.Sprintf(
			"the lease of activation %d at epoch %d lives for %v more: stop the old coordinator, or wait until it is over", st.Activation, st.LastEpoch, st.LeaseRemaining)})
	case uint64(st.LastEpoch) < m.Epoch || uint64(st.Activation) < m.Activation:
		return "", daemon.Exit(daemon.ExitRolledBack, &leaseLivesError{fmt.Sprintf(
			"the witness knows epoch %d and activation %d, the backup is of epoch %d and activation %d: bring back the witness's own newest state, "+
				"or make a successor with `witnessd init --above`", st.LastEpoch, st.Activation, m.Epoch, m.Activation)})
	}
	return fmt.Sprintf("The witness says that no lease lives; its last was of epoch %d, activation %d.", st.LastEpoch, st.Activation), nil
}
