package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"coordinator/client"
	"coordinator/cmd/internal/daemon"
	"coordinator/cmd/internal/mcp"
	"coordinator/cmd/internal/stdio"
)

func (a *app) mcpCommand() *cobra.Command {
	var readOnly bool
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve agents over the Model Context Protocol, on standard input and output",
		Long: `Serve an agent over the Model Context Protocol on standard input and output: tools to list,
read, command, wait and verify, and resources that tell when they change. An agent's host
starts this command by itself; give it the full path, and --context where the usual context
is not the one that is meant.

Standard output carries the protocol alone; what else there is to say goes to standard error.
It ends when standard input does, and at Ctrl-C or SIGTERM. A coordinator that is not there is
no reason to end: the tools say so, and it is found when it comes. --timeout bounds one call,
but for waits, which have their own bound.

With --read-only there are no tools that change anything, and no more than reading is asked of
the coordinator.`,
		Example: `  coordctl mcp --read-only
  coordctl --context staging mcp`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.mcp(cmd.Context(), readOnly) },
	}
	c.Flags().BoolVar(&readOnly, "read-only", false, "offer only what changes nothing")
	return c
}

func (a *app) mcp(ctx context.Context, readOnly bool) (err error) {
	c, err := client.LoadContext(a.contextPath)
	if err != nil {
		return err
	}
	opts := mcp.Options{Context: c, ReadOnly: readOnly, Timeout: a.timeout, Version: daemon.ReadBuild().Version,
		Logger: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if opts.Key, err = a.key(); err != nil {
		return err
	}
	if opts.Cwd, err = os.Getwd(); err != nil {
		return err
	}
	s, err := mcp.New(opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	r, w, release, err := a.stdio(ctx)
	if err != nil {
		return err
	}
	defer release()
	return s.Serve(ctx, r, w)
}

// stdio is the two ends of the standard streams.
func (a *app) stdio(ctx context.Context) (io.ReadCloser, io.WriteCloser, func(), error) {
	in, isFile := a.stdin.(*os.File)
	out, ok := a.stdout.(*os.File)
	if !isFile || !ok {
		return nil, nil, nil, usage("mcp needs files as standard input and output")
	}
	return stdio.Open(ctx, in, out)
}
