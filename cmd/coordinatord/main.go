// Command coordinatord runs the coordinator endpoint on a state directory:
// init makes one, serve runs it, status says how it is, verify checks it offline,
// compact gives back its free disk, backup and restore copy it and bring it back, keys edits the registry of workload keys that may connect.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"coordinator/cmd/internal/daemon"
	"coordinator/handshake"
	"coordinator/server"
	"coordinator/server/authority"
	"coordinator/server/backup"
	"coordinator/server/store"
)

func main() {
	ctx, stop := daemon.Signals(context.Background(), os.Exit)
	code := daemon.Execute(ctx, newRoot(), os.Stderr)
	stop()
	os.Exit(code)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "coordinatord", Short: "the coordinator daemon: durable, fenced authority for work",
		Long: "coordinatord runs the coordinator endpoint on a state directory: a durable, fenced authority\n" +
			"for work. init makes the directory, serve runs it, and the other commands look after it.",
		Example: "  coordinatord serve --state /var/lib/coordinator\n  coordinatord status --state /var/lib/coordinator",
	}
	var state string
	root.PersistentFlags().StringVar(&state, "state", "", "state directory (required)")
	daemon.AddColor(root)
	root.MarkPersistentFlagDirname("state") //nolint:errcheck // the flag is there
	root.AddCommand(initCommand(&state), serveCommand(&state), verifyCommand(&state), compactCommand(&state), statusCommand(&state),
		backupCommand(&state), restoreCommand(&state),
		daemon.KeysCommand(daemon.KeysOptions{State: &state, Rules: handshake.Rules{Scopes: handshake.EndpointScopes()},
			Line: "coordinatord keys --state /var/lib/coordinator"}))
	return root
}

// stateDir returns the --state flag, which every subcommand needs.
func stateDir(state *string) (string, error) {
	if *state == "" {
		return "", daemon.Usage("--state is missing: name the directory that `coordinatord init` made")
	}
	return *state, nil
}

// coded gives an error of this daemon its exit code.
func coded(err error) error {
	var (
		carried *daemon.Error
		cfg     *configError
		files   *server.DescriptorError
		corrupt *store.CorruptError
		schema  *store.SchemaError
		refused *store.IOError
		lease   *authority.LeaseHeldError
		rolled  *authority.RolledBackError
		copied  *backup.DamageError
		target  *backup.TargetError
	)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &carried): // as of a child process
		return err
	case errors.As(err, &cfg), errors.As(err, &files), errors.Is(err, server.ErrOtherStore):
		return daemon.Exit(daemon.ExitConfig, err)
	case errors.As(err, &copied), errors.Is(err, backup.ErrNoManifest):
		return daemon.Exit(daemon.ExitCorrupt, err)
	case errors.As(err, &target): // nothing was lost, whatever failed there
		return err
	case errors.Is(err, store.ErrOutcomeUnknown), errors.Is(err, store.ErrFailed):
		return daemon.Exit(daemon.ExitWriteFailed, err)
	case errors.As(err, &schema):
		return daemon.Exit(daemon.ExitSchema, err)
	case errors.As(err, &corrupt):
		return daemon.Exit(daemon.ExitCorrupt, err)
	case errors.Is(err, server.ErrStoreFailed), errors.As(err, &refused) && refused.Writes():
		return daemon.Exit(daemon.ExitWriteFailed, err)
	case errors.Is(err, store.ErrNoStore):
		return daemon.Exit(daemon.ExitCorrupt, fmt.Errorf("%w; restore log/ and state.db together from one backup", err))
	case errors.Is(err, store.ErrInUse):
		return daemon.Exit(daemon.ExitHeld, err)
	case errors.As(err, &lease):
		return daemon.Exit(daemon.ExitLeaseHeld, err)
	case errors.As(err, &rolled):
		return daemon.Exit(daemon.ExitRolledBack, err)
	case errors.Is(err, authority.ErrWitnessUnavailable):
		return daemon.Exit(daemon.ExitWitness, err)
	case errors.Is(err, authority.ErrFenced):
		return daemon.Exit(daemon.ExitFenced, err)
	case errors.Is(err, fs.ErrNotExist): // a key or a registry
		return daemon.Exit(daemon.ExitConfig, err)
	}
	return err
}
