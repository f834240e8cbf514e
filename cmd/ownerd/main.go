// Command ownerd runs the process owner: the daemon that starts processes for coordinators,
// keeps the journal of them and serves their output.
//
// It reads flags and configuration and wires package owner to a Unix socket, a key and a
// registry. The rules live there.
package main

import (
	"context"
	"errors"
	"os"

	"coordinator/cmd/internal/daemon"
	"coordinator/handshake"
	"coordinator/owner"

	"github.com/spf13/cobra"
)

// Names of the files in an owner's state directory that this program reads.
const (
	configFile   = "owner.toml"
	authorityKey = "workload-authority.ed25519"
	registryFile = "workload-keys"
	socketFile   = "owner.sock"
)

func main() {
	owner.RunHeld() // does not return in a process that waits to become a command
	os.Exit(daemon.Execute(context.Background(), rootCommand(), os.Stderr))
}

func rootCommand() *cobra.Command {
	var state string
	root := &cobra.Command{
		Use:   "ownerd",
		Short: "the owner that runs processes and tells the truth about them",
		Long: "ownerd runs the process owner: it starts processes for coordinators on terminals of their own,\n" +
			"keeps a journal of them, and tells what became of them. It runs as a user of its own, whose\n" +
			"rights the processes have.",
		Example: "  ownerd serve --state /var/lib/coordinator-owner\n  ownerd status --state /var/lib/coordinator-owner",
	}
	root.PersistentFlags().StringVar(&state, "state", "", "the owner's own state directory (required)")
	daemon.AddColor(root)
	root.MarkPersistentFlagDirname("state") //nolint:errcheck // the flag is there
	root.AddCommand(
		initCommand(&state),
		serveCommand(&state),
		statusCommand(&state),
		daemon.KeysCommand(daemon.KeysOptions{State: &state, Rules: registryRules(), Line: "ownerd keys --state /var/lib/coordinator-owner"}),
	)
	return root
}

func registryRules() handshake.Rules {
	return handshake.Rules{Scopes: owner.ScopeNames(), NeedCoordinator: true}
}

// coded gives the errors of package owner their exit codes.
func coded(err error) error {
	var corrupt *owner.CorruptError
	var missing *owner.MissingError
	var schema *owner.SchemaError
	var identity *owner.IdentityError
	switch {
	case errors.As(err, &corrupt), errors.As(err, &missing):
		return daemon.Exit(daemon.ExitCorrupt, err)
	case errors.As(err, &schema):
		return daemon.Exit(daemon.ExitSchema, err)
	case errors.As(err, &identity):
		return daemon.Exit(daemon.ExitConfig, err)
	case errors.Is(err, owner.ErrFailed):
		return daemon.Exit(daemon.ExitWriteFailed, err)
	}
	return err
}
