package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"coordinator/cmd/internal/daemon"
	"coordinator/cmd/internal/term"
	"coordinator/internal/clock"
	"coordinator/internal/sock"
	"coordinator/witness"

	"github.com/spf13/cobra"
)

// probeWait bounds the connect that tells a running witness from a stopped one.
const probeWait = 2 * time.Second

// statusJSON is what status prints.
type statusJSON struct {
	WitnessID    string      `json:"witness_id"`
	State        string      `json:"state"`
	Socket       string      `json:"socket"`
	Running      bool        `json:"running"`
	MaxLeaseSecs uint16      `json:"max_lease_secs"`
	Coordinators []leaseJSON `json:"coordinators"`
}

type leaseJSON struct {
	CoordinatorID      string `json:"coordinator_id"`
	LastAuthorityEpoch uint64 `json:"last_authority_epoch"`
	ActivationSequence uint64 `json:"activation_sequence"`
	IncarnationID      string `json:"incarnation_id"`
	KeyID              string `json:"key_id"`
	Lease              string `json:"lease"` // live, ended, relinquished, or after_reboot
	LeaseRemainingSecs uint64 `json:"lease_remaining_secs"`
	IssuedAt           uint64 `json:"issued_at"`
	ExpiresAt          uint64 `json:"expires_at"`
}

func statusCommand(state *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:     "status",
		Short:   "show the last activation of each coordinator, whether the witness runs or not",
		Long:    "status reads the state directory, whether the witness runs or not, and changes nothing.",
		Example: "  witnessd status --state /var/lib/coordinator-witness\n  witnessd status --state /var/lib/coordinator-witness -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := daemon.CheckOutput(output); err != nil {
				return err
			}
			dir, err := stateDir(*state)
			if err != nil {
				return err
			}
			s, err := readStatus(c.Context(), dir)
			if err != nil {
				return coded(err)
			}
			if output == "json" {
				return daemon.PrintJSON(c.OutOrStdout(), s)
			}
			return printStatus(c.OutOrStdout(), daemon.Paint(c), s)
		},
	}
	daemon.AddOutput(c, &output)
	return c
}

func readStatus(ctx context.Context, dir string) (*statusJSON, error) {
	conf, err := loadConfig(dir)
	if err != nil {
		return nil, err
	}
	boot, err := clock.BootID()
	if err != nil {
		return nil, err
	}
	id, leases, err := witness.Inspect(dir, boot, clock.System().Now())
	if err != nil {
		return nil, err
	}
	if id != conf.WitnessID {
		return nil, &witness.IdentityError{File: dir, Have: id, Want: conf.WitnessID}
	}
	s := &statusJSON{
		WitnessID: id.String(), State: dir, Socket: conf.Socket, Running: answers(ctx, conf.Socket),
		MaxLeaseSecs: conf.MaxLeaseSecs, Coordinators: []leaseJSON{},
	}
	for _, l := range leases {
		s.Coordinators = append(s.Coordinators, leaseJSON{
			CoordinatorID: l.Coordinator.String(), LastAuthorityEpoch: uint64(l.LastEpoch),
			ActivationSequence: uint64(l.Activation), IncarnationID: l.Incarnation.String(), KeyID: l.Holder.String(),
			Lease:              leaseWord(&l),
			LeaseRemainingSecs: uint64((l.Remaining + time.Second - 1) / time.Second),
			IssuedAt:           l.IssuedAt, ExpiresAt: l.ExpiresAt,
		})
	}
	return s, nil
}

func leaseWord(l *witness.Summary) string {
	switch {
	case l.Spent:
		return "relinquished"
	case l.OtherBoot:
		return "after_reboot"
	case l.Remaining > 0:
		return "live"
	}
	return "ended"
}

// answers reports whether somebody accepts connections on the socket.
func answers(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	c, err := sock.Dial(ctx, socket)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

func printStatus(w io.Writer, paint term.Paint, s *statusJSON) error {
	running := "not running"
	if s.Running {
		running = "running"
	}
	fmt.Fprintf(w, "witness %s, %s\nstate   %s\nsocket  %s\n", s.WitnessID, paint.State(running), s.State, s.Socket)
	if len(s.Coordinators) == 0 {
		_, err := fmt.Fprintln(w, "no coordinator has been activated yet")
		return err
	}
	t := term.NewTable(w)
	fmt.Fprintln(t, paint.Heading("COORDINATOR\tEPOCH\tACTIVATION\tLEASE\tREMAINING"))
	for _, l := range s.Coordinators {
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%ds\n", l.CoordinatorID, l.LastAuthorityEpoch, l.ActivationSequence, paint.State(l.Lease), l.LeaseRemainingSecs)
	}
	return t.Flush()
}
