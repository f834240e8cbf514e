package main

import (
	"context"
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/frames"
)

func (a *app) snapshotCommand() *cobra.Command {
	var admin, quiet bool
	save := &cobra.Command{
		Use:   "save FILE",
		Short: "Take a snapshot, verify it and keep it",
		Long: `Take a snapshot of all that this key may see, verify it and keep it in a file, which replaces one that is
there only once all of it is durable.`,
		Example: `  coordctl snapshot save monday.snap
  coordctl snapshot save monday.snap --without-operations`,
		Args: exactArgs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			caps := readCaps
			if admin {
				caps |= frames.CapAdministration
			}
			if quiet {
				caps |= frames.CapWithoutOperations
			}
			return a.session(cmd.Context(), client.Options{Offered: caps}, false, func(ctx context.Context, s *session) error {
				return s.save(ctx, args[0])
			})
		},
	}
	save.Flags().BoolVar(&admin, "admin", false, "with ADMIN records, which change with every activation")
	save.Flags().BoolVar(&quiet, "without-operations", false, "without OPERATION records")
	verify := &cobra.Command{
		Use:     "verify FILE",
		Short:   "Recompute a kept snapshot's order, totals and digest",
		Long:    `Recompute a kept snapshot's order, totals and digest. No coordinator is asked.`,
		Example: `  coordctl snapshot verify monday.snap`,
		Args:    exactArgs("FILE"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.verifyFile(args[0]) },
	}
	diff := &cobra.Command{
		Use:   "diff A B",
		Short: "Say whether two kept snapshots hold byte for byte the same records",
		Long: `Say whether two kept snapshots hold byte for byte the same records, whoever was in charge when they were
taken. The exit code is 1 when they differ, as with diff(1).`,
		Example: `  coordctl snapshot diff monday.snap tuesday.snap`,
		Args:    exactArgs("A", "B"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.diffFiles(args[0], args[1]) },
	}
	return group("snapshot", "Keep and check snapshots", `Keep and check snapshots: all the records that this key may see, as of one event, with a digest.`, save, verify, diff)
}

func (s *session) save(ctx context.Context, path string) error {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	defer snap.Close()
	err = s.conn.SaveSnapshot(path, snap)
	s.a.bar().End()
	if err != nil {
		return err
	}
	o := object{{"file", path}, {"coordinator_id", snap.Guard.CoordinatorID.String()}, {"authority_epoch", snap.Guard.Epoch},
		{"activation_sequence", snap.Guard.Activation}, {"base_event_sequence", snap.Base}, {"page_count", snap.Pages},
		{"record_count", snap.Records}, {"canonical_sha256", hex.EncodeToString(snap.Digest[:])}}
	return s.a.print(o)
}

// verified opens a snapshot file and checks all of it.
func (a *app) verified(path string) (*client.SnapshotFile, error) {
	f, err := client.OpenSnapshotFile(path)
	if err != nil {
		return nil, err
	}
	f.Progress = a.tell
	err = f.Verify()
	a.bar().End()
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (a *app) verifyFile(path string) error {
	f, err := a.verified(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := f.Header
	return a.print(object{{"file", path}, {"verified", true}, {"coordinator_id", h.Guard.CoordinatorID.String()},
		{"authority_epoch", h.Guard.Epoch}, {"activation_sequence", h.Guard.Activation}, {"base_event_sequence", h.Base},
		{"record_count", h.Records}, {"canonical_sha256", hex.EncodeToString(h.Digest[:])}, {"taken_at", a.time(h.TakenAt)}})
}

// diffFiles compares two sound files. Files that differ are exit code 1, as with diff(1).
func (a *app) diffFiles(pathA, pathB string) error {
	fa, err := a.verified(pathA)
	if err != nil {
		return err
	}
	defer fa.Close()
	fb, err := a.verified(pathB)
	if err != nil {
		return err
	}
	defer fb.Close()
	same, first, err := client.SameRecords(fa, fb)
	if err != nil {
		return err
	}
	ha, hb := fa.Header, fb.Header
	if a.structured() {
		err = a.emit(object{{"same_records", same}, {"records", []uint64{ha.Records, hb.Records}},
			{"authority_epochs", []uint64{uint64(ha.Guard.Epoch), uint64(hb.Guard.Epoch)}}})
	} else if same {
		_, err = fmt.Fprintf(a.stdout, "same: %d records are byte for byte the same (epoch %d and epoch %d)\n", ha.Records, ha.Guard.Epoch, hb.Guard.Epoch)
	} else {
		_, err = fmt.Fprintf(a.stdout, "different: from record %d on (%d records at epoch %d, %d at epoch %d)\n", first+1, ha.Records, ha.Guard.Epoch, hb.Records, hb.Guard.Epoch)
	}
	if err == nil && !same {
		return errDifferent
	}
	return err
}

// errDifferent gives `snapshot diff` its exit code; the difference has been printed.
var errDifferent = fmt.Errorf("the snapshots differ")
