package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/frames"
)

func (a *app) archiveCommand() *cobra.Command {
	var op string
	var ifRevision uint64
	c := &cobra.Command{
		Use:   "objective ID",
		Short: "Remove an objective that has ended, with everything beneath it",
		Long: `Remove an objective that is completed or cancelled, with its runs, sessions, bindings,
artifacts, signals and evidence. They cannot be brought back, and their ids stay used.
The operations stay until their retention ends.`,
		Example: `  coordctl archive objective 3f1a9c
  coordctl archive objective 3f1a9c --if-revision 4`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("if-revision") && ifRevision == 0 {
				return usage("--if-revision is 0; an objective's revisions start at 1")
			}
			return a.archiveObjective(cmd.Context(), args[0], ifRevision, op)
		},
	}
	c.Flags().Uint64Var(&ifRevision, "if-revision", 0, "only if the objective is at revision `N`")
	c.Flags().StringVar(&op, "op", "", opFlagHelp)
	return group("archive", "Remove an object and everything beneath it", `Remove an object that has ended and everything beneath it. It cannot be brought back.`, c)
}

func (a *app) archiveObjective(ctx context.Context, idText string, ifRevision uint64, opText string) error {
	prefix, err := checkPrefix(idText)
	if err != nil {
		return err
	}
	op, retried, err := operationID(opText)
	if err != nil {
		return err
	}
	text := func(id string) again {
		line := fmt.Sprintf("archive objective %s --op %v", id, op)
		if ifRevision != 0 {
			line += fmt.Sprintf(" --if-revision %d", ifRevision)
		}
		return again{args: line}
	}
	return a.mutate(ctx, quietCaps|frames.CapArchive, op, text(prefix), retried, func(ctx context.Context, s *session) error {
		if !s.conn.Info().Capabilities.Has(frames.CapArchive) {
			return &client.RefusedError{Code: frames.CodeCapabilityRequired, Message: "the coordinator does not offer ARCHIVE"}
		}
		id, err := s.resolve(ctx, frames.KindObjective, prefix)
		if err != nil {
			return err
		}
		var pre []frames.Precondition
		if ifRevision != 0 {
			pre = append(pre, frames.Precondition{Object: frames.ObjectRef{Kind: frames.KindObjective, ID: id}, Revision: ifRevision})
		}
		cmd, err := client.NewCommand(op, frames.CommandArchiveObjective, &frames.ArchiveObjective{ObjectiveID: frames.ObjectiveID(id)}, pre...)
		if err != nil {
			return err
		}
		return s.send(ctx, cmd, retried, text(id.String()), object{{"objective_id", id.String()}})
	})
}
