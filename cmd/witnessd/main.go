// Command witnessd runs the witness: the daemon that grants a coordinator its one lease.
//
// It reads flags and configuration and wires package witness to a Unix socket, a key and a
// registry. The rules live there.
package main

import (
	"context"
	"errors"
	"os"

	"coordinator/cmd/internal/daemon"
	"coordinator/handshake"
	"coordinator/witness"

	"github.com/spf13/cobra"
)

// Names of the files in a witness's state directory that this program reads.
const (
	configFile   = "witness.toml"
	authorityKey = "workload-authority.ed25519"
	registryFile = "workload-keys"
	socketFile   = "witness.sock"
)

func main() {
	os.Exit(daemon.Execute(context.Background(), rootCommand(), os.Stderr))
}

func rootCommand() *cobra.Command {
	var state string
	root := &cobra.Command{
		Use:   "witnessd",
		Short: "the witness that grants a coordinator its one lease",
		Long: "witnessd runs the witness: it grants a coordinator its one lease, and remembers the highest epoch\n" +
			"that it granted. It runs apart from the coordinator, as a user of its own or on a third host.",
		Example: "  witnessd serve --state /var/lib/coordinator-witness\n  witnessd status --state /var/lib/coordinator-witness",
	}
	root.PersistentFlags().StringVar(&state, "state", "", "the witness's own state directory (required)")
	daemon.AddColor(root)
	root.MarkPersistentFlagDirname("state") //nolint:errcheck // the flag is there
	root.AddCommand(
		initCommand(&state),
		serveCommand(&state),
		statusCommand(&state),
		daemon.KeysCommand(daemon.KeysOptions{State: &state, Rules: registryRules(), Line: "witnessd keys --state /var/lib/coordinator-witness"}),
	)
	return root
}

func registryRules() handshake.Rules {
	return handshake.Rules{Scopes: witness.ScopeNames(), NeedCoordinator: true}
}

// coded gives the errors of package witness their exit codes.
func coded(err error) error {
	var corrupt *witness.CorruptError
	var missing *witness.MissingError
	var schema *witness.SchemaError
	var identity *witness.IdentityError
	var placement *witness.PlacementError
	switch {
	case errors.As(err, &corrupt), errors.As(err, &missing):
		return daemon.Exit(daemon.ExitCorrupt, err)
	case errors.As(err, &schema):
		return daemon.Exit(daemon.ExitSchema, err)
	case errors.As(err, &identity), errors.As(err, &placement):
		return daemon.Exit(daemon.ExitConfig, err)
	case errors.Is(err, witness.ErrFailed):
		return daemon.Exit(daemon.ExitWriteFailed, err)
	}
	return err
}
