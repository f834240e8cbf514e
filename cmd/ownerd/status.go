package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"coordinator/cmd/internal/daemon"
	"coordinator/cmd/internal/term"
	"coordinator/frames"
	"coordinator/handshake"
	"coordinator/internal/sock"
	"coordinator/owner"

	"github.com/spf13/cobra"
)

// probeWait bounds the connect that tells a running owner from a stopped one.
const probeWait = 2 * time.Second

// statusJSON is what status prints.
type statusJSON struct {
	identity
	Running     bool            `json:"running"`
	Effects     map[string]int  `json:"effects"`
	Closed      int             `json:"bindings_closed"`
	Lost        int             `json:"bindings_lost"`
	OutputBytes uint64          `json:"output_bytes"`
	Bindings    []bindingJSON   `json:"bindings"`
	Authorities []authorityJSON `json:"authorities"`
}

type bindingJSON struct {
	BindingID     string `json:"binding_id"`
	CoordinatorID string `json:"coordinator_id"`
	IncarnationID string `json:"incarnation_id"`
	State         string `json:"state"` // live, or waiting: its facts are not acknowledged
	ProcessGroup  uint32 `json:"process_group"`
	LastSequence  uint64 `json:"last_source_sequence"`
	Acked         uint64 `json:"acknowledged_through"`
	OutputBytes   uint64 `json:"output_bytes"`
}

type authorityJSON struct {
	CoordinatorID      string `json:"coordinator_id"`
	AuthorityEpoch     uint64 `json:"authority_epoch"`
	ActivationSequence uint64 `json:"activation_sequence"`
}

var stateNames = map[frames.EffectState]string{
	frames.EffectDispatched: "in_hand", frames.EffectSucceeded: "succeeded", frames.EffectRejected: "rejected",
	frames.EffectIndeterminate: "indeterminate", owner.NeverSeen: "never_seen",
}

func statusCommand(state *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:     "status",
		Short:   "show effects, live processes and facts that wait, whether the owner runs or not",
		Long:    "status reads the state directory, whether the owner runs or not, and changes nothing.",
		Example: "  ownerd status --state /var/lib/coordinator-owner\n  ownerd status --state /var/lib/coordinator-owner -o json",
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
	id, err := describe(dir)
	if err != nil {
		return nil, err
	}
	fp, err := handshake.ParseFingerprint(id.Authority)
	if err != nil {
		return nil, err
	}
	sum, err := owner.Inspect(dir, fp)
	if err != nil {
		return nil, err
	}
	s := &statusJSON{
		identity: *id, Running: answers(ctx, id.Socket), Effects: map[string]int{}, Closed: sum.Closed, Lost: sum.Lost,
		OutputBytes: sum.OutputBytes, Bindings: []bindingJSON{}, Authorities: []authorityJSON{},
	}
	for state, name := range stateNames {
		s.Effects[name] = sum.Attempts[state]
	}
	for _, b := range sum.Bindings {
		word := "waiting"
		if b.Live && s.Running {
			word = "live"
		}
		s.Bindings = append(s.Bindings, bindingJSON{
			BindingID: b.ID.String(), CoordinatorID: b.Coordinator.String(), IncarnationID: b.Incarnation.String(), State: word,
			ProcessGroup: b.Group, LastSequence: b.Last, Acked: b.Acked, OutputBytes: b.Output,
		})
	}
	for _, a := range sum.Authorities {
		s.Authorities = append(s.Authorities, authorityJSON{a.Coordinator.String(), uint64(a.Epoch), uint64(a.Activation)})
	}
	return s, nil
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
	fmt.Fprintf(w, "owner %s, %s\nstate   %s\nsocket  %s\ngroups  %v\n", s.Authority, paint.State(running), s.State, s.Socket, s.Groups)
	fmt.Fprintf(w, "effects %d succeeded, %d rejected, %d indeterminate, %d never seen, %d in hand\n", s.Effects["succeeded"],
		s.Effects["rejected"], s.Effects["indeterminate"], s.Effects["never_seen"], s.Effects["in_hand"])
	fmt.Fprintf(w, "output  %d bytes stored; %d bindings closed, %d lost\n", s.OutputBytes, s.Closed, s.Lost)
	for _, a := range s.Authorities {
		fmt.Fprintf(w, "coordinator %s at epoch %d, activation %d\n", a.CoordinatorID, a.AuthorityEpoch, a.ActivationSequence)
	}
	if len(s.Bindings) == 0 {
		_, err := fmt.Fprintln(w, "no process runs and no facts wait")
		return err
	}
	t := term.NewTable(w)
	fmt.Fprintln(t, paint.Heading("BINDING\tSTATE\tGROUP\tFACTS\tACKNOWLEDGED\tOUTPUT"))
	for _, b := range s.Bindings {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\n", b.BindingID, paint.State(b.State), b.ProcessGroup, b.LastSequence, b.Acked, b.OutputBytes)
	}
	return t.Flush()
}
